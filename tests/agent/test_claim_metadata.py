"""Device metadata of claims, from preparation to the end: in the files that containers have mounted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine
from agent.test_claims import FOR_CLAIMS, Running, scenario
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError
from resource_claims import claim, interface, of_pod, prepare

if TYPE_CHECKING:
    from pathlib import Path

CONTAINER = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c"
FILE = "rdma.k8s-rdma.io-metadata.json"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """`f0` is for claims, with 4 VFs and a link of 100 Gb/s; RDMA devices."""
    made = Machine(tmp_path, rdma=True)
    made.rules = (FOR_CLAIMS, PfRule())
    return made


def directory(machine: Machine) -> Path:
    return machine.directory / "host/run/k8s-rdma/claim-metadata"


def names(machine: Machine) -> set[str]:
    return {path.name for path in directory(machine).glob("*")}


def said(machine: Machine, request: str, claim: str = "claim-1") -> dict[str, Any]:
    """The first object of a request's file."""
    lines = (directory(machine) / f"{claim}_{request}.json").read_text().splitlines()
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found


def generation(machine: Machine, request: str) -> int:
    return int(said(machine, request)["metadata"]["generation"])


def mounts(machine: Machine, claim: str = "claim-1") -> dict[str, list[dict[str, Any]]]:
    """The mounts of a claim's CDI devices, by device."""
    path = machine.directory / f"host/var/run/cdi/k8s-rdma.io-claim_{claim}.json"
    devices = json.loads(path.read_bytes())["devices"]
    return {each["name"]: each["containerEdits"].get("mounts", []) for each in devices}


def test_prepared_request_has_a_read_only_file_in_containers_that_request_it(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="25G"), interface("b", bandwidth="5G"))
        assert names(machine) == {"claim-1_a.json", "claim-1_b.json"}
        assert mounts(machine) == {
            f"claim-1.{request}": [
                {
                    "hostPath": f"/run/k8s-rdma/claim-metadata/claim-1_{request}.json",
                    "containerPath": f"{CONTAINER}/{request}/{FILE}",
                    "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
                }
            ]
            for request in "ab"
        }
        [device] = said(machine, "a")["requests"][0]["devices"]
        prepared, _ = agent.node.ledger.prepared_for(PodUid("uid-p"))
        assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": prepared.pci}
        assert "networkData" not in device
        assert ((directory(machine) / "claim-1_a.json").stat().st_mode & 0o777) == 0o644

    scenario(machine, play)


def test_interface_is_described_from_its_add_to_the_end_of_its_sandbox(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G", maxTxRate="80G"))
        inode = (directory(machine) / "claim-1_a.json").stat().st_ino
        await agent.add()
        [device] = said(machine, "a")["requests"][0]["devices"]
        [receipt] = agent.node.ledger.of_container("c1")
        assert device["networkData"] == {
            "interfaceName": receipt.interfaces[0].ifname,
            "hardwareAddress": receipt.interfaces[0].mac,
        }
        assert device["attributes"]["rdma.k8s-rdma.io/maxRate"] == {"int": 80_000}
        assert generation(machine, "a") == 2
        await agent.delete()
        [device] = said(machine, "a")["requests"][0]["devices"]
        assert "networkData" not in device
        assert generation(machine, "a") == 3
        assert (directory(machine) / "claim-1_a.json").stat().st_ino == inode  # a mount would keep it
        await agent.unprepare()
        assert not names(machine)

    scenario(machine, play)


def test_devices_of_one_request_share_a_file_that_is_mounted_once(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="5G"), interface("a", bandwidth="5G"))
        assert [len(found) for found in mounts(machine).values()] == [1, 0]
        assert len(said(machine, "a")["requests"][0]["devices"]) == 2

    scenario(machine, play)


def test_claim_of_a_template_has_the_path_of_the_pods_name(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        made = {"resource.kubernetes.io/pod-claim-name": "net-c"}
        metadata = {"name": "c", "namespace": "default", "uid": "claim-1", "annotations": made}
        document = of_pod(claim(interface("a"), metadata=metadata), "p")
        await agent.claims.prepare(prepare(document))
        [mount] = mounts(machine)["claim-1.a"]
        assert mount["containerPath"] == f"{CONTAINER.replace('claims/c', 'claimtemplates/net-c')}/a/{FILE}"
        assert said(machine, "a")["podClaimName"] == "net-c"

    scenario(machine, play)


def test_annotation_that_names_another_claim_of_the_pod_does_not_move_the_file(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        forged = {"resource.kubernetes.io/pod-claim-name": "../../../etc"}
        metadata = {"name": "c", "namespace": "default", "uid": "claim-1", "annotations": forged}
        await agent.claims.prepare(prepare(of_pod(claim(interface("a"), metadata=metadata), "p")))
        [mount] = mounts(machine)["claim-1.a"]
        assert mount["containerPath"] == f"{CONTAINER}/a/{FILE}"

    scenario(machine, play)


def test_restarted_agent_keeps_the_files_and_removes_stale_ones(machine: Machine) -> None:
    async def first(agent: Running) -> None:
        await agent.prepare(interface("a"))
        await agent.add()

    async def second(agent: Running) -> None:
        (directory(machine) / "claim-0_a.json").write_text("of a claim that ended while no agent ran")
        await machine.specifications.restore()
        assert names(machine) == {"claim-1_a.json"}
        assert generation(machine, "a") == 2

    scenario(machine, first)
    scenario(machine, second)


def test_claim_whose_file_cannot_be_written_is_not_prepared(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        directory(machine).parent.mkdir(parents=True)
        directory(machine).write_text("a file in the place of the directory")
        with pytest.raises(K8sRdmaError, match=r"device file /run/k8s-rdma/claim-metadata/claim-1_a\.json"):
            await agent.prepare(interface("a"))
        assert not agent.cdi_files()
        directory(machine).unlink()
        await agent.prepare(interface("a"))
        assert names(machine) == {"claim-1_a.json"}

    scenario(machine, play)


def test_link_in_place_of_a_file_is_replaced_and_not_followed(machine: Machine, tmp_path: Path) -> None:
    async def play(agent: Running) -> None:
        precious = tmp_path / "precious"
        precious.write_text("of the host")
        directory(machine).mkdir(parents=True)
        (directory(machine) / "claim-1_a.json").symlink_to(precious)
        await agent.prepare(interface("a"))
        assert precious.read_text() == "of the host"
        assert generation(machine, "a") == 1

    scenario(machine, play)
