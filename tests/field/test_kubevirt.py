"""Virtual machines of KubeVirt whose SR-IOV interface comes by ResourceClaim.

Sources: VEP 183, https://github.com/kubevirt/enhancements/pull/185, and the reader in virt-launcher,
`pkg/dra/utils.go`, https://github.com/kubevirt/kubevirt/pull/17661. No KubeVirt runs here: `launcher_reads`
looks for the same file, version, request and attribute, and fails if one is missing.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine
from agent.test_claims import FOR_CLAIMS, Running, scenario
from k8s_rdma.core.namespace_policy import NamespacePolicies, NamespacePolicy
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.dra_networks import KEYS, read_macs
from resource_claims import claim, interface, of_pod, prepare
from resource_claims import pod as pod_object

if TYPE_CHECKING:
    from pathlib import Path

BASE = "/var/run/kubernetes.io/dra-device-attributes"
READ_BY_LAUNCHER = {"metadata.resource.k8s.io/v1alpha1"}
MAC = "de:ad:00:00:be:ef"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, rdma=True)
    made.rules = (FOR_CLAIMS, PfRule())
    return made


def virtual_machine(annotations: dict[str, str], *interfaces: dict[str, Any]) -> Any:
    """The question for the claim of a virtual machine's pod; the claim was made from a template."""
    metadata = {
        "name": "c",
        "namespace": "default",
        "uid": "claim-1",
        "annotations": {"resource.kubernetes.io/pod-claim-name": "net-c"},
    }
    pod = pod_object("p", "uid-p", "c")
    pod["metadata"] |= {"annotations": annotations}
    return prepare(of_pod(claim(*interfaces, metadata=metadata), "p"), pod)


def mac_of(macs: list[str], request: str = "vf", claim_name: str = "net-c") -> dict[str, str]:
    """The annotation that virt-controller writes."""
    entry = {"claimName": claim_name, "requestName": request, "macs": macs}
    return {KEYS[0]: json.dumps([entry])}


def launcher_reads(machine: Machine, claim_name: str, request: str) -> str:
    """The PCI address that virt-launcher finds in its container for a claim that came of a template."""
    specification = machine.directory / "host/var/run/cdi/k8s-rdma.io-claim_claim-1.json"
    devices = json.loads(specification.read_bytes())["devices"]
    mounts = [mount for device in devices for mount in device["containerEdits"].get("mounts", [])]
    directory = PurePosixPath(BASE, "resourceclaimtemplates", claim_name, request)
    [host_path] = [
        mount["hostPath"]
        for mount in mounts
        if PurePosixPath(mount["containerPath"]).parent == directory
        and mount["containerPath"].endswith("-metadata.json")
    ]
    text, decoder = (machine.directory / f"host{host_path}").read_text(), json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        if value["apiVersion"] in READ_BY_LAUNCHER:
            [found] = [each for each in value["requests"] if each["name"] == request]
            [device] = found["devices"]
            return str(device["attributes"]["resource.kubernetes.io/pciBusID"]["string"])
        text = text[end:]
    raise AssertionError("no version that virt-launcher knows")


def test_launcher_finds_the_vf_that_vfio_drives(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        asked = interface("vf", bandwidth="25G", maxTxRate="40G", driver="vfio-pci", spoofCheck=True)
        [device] = await agent.claims.prepare(virtual_machine({}, asked))
        await agent.add()
        [receipt] = agent.node.ledger.of_container("c1")
        [given] = receipt.interfaces
        assert launcher_reads(machine, "net-c", "vf") == given.pci
        assert machine.hardware.functions[given.vf].driver == "vfio-pci"
        assert (given.min_tx_rate_mbps, given.max_tx_rate_mbps) == (25_000, 40_000)
        specification = machine.directory / "host/var/run/cdi/k8s-rdma.io-claim_claim-1.json"
        [described] = json.loads(specification.read_bytes())["devices"]
        assert device.cdi == (f"k8s-rdma.io/claim={described['name']}",)
        nodes = {node["path"] for node in described["containerEdits"]["deviceNodes"]}
        assert "/dev/vfio/vfio" in nodes
        assert len([node for node in nodes if node.startswith("/dev/vfio/")]) == 2

    scenario(machine, play)


@pytest.mark.parametrize(
    "annotations",
    [
        mac_of([MAC]),
        {KEYS[1]: json.dumps([{"claimName": "net-c", "requestName": "vf", "mac": MAC}])},
        {
            KEYS[0]: json.dumps(
                [{"claimName": "disk", "requestName": "vf"}, *json.loads(mac_of([MAC])[KEYS[0]])]
            )
        },
    ],
    ids=["as-proposed", "as-drafted", "beside-another-claim"],
)
def test_vf_has_the_mac_of_the_virtual_machine(machine: Machine, annotations: dict[str, str]) -> None:
    async def play(agent: Running) -> None:
        asked = interface("vf", bandwidth="1G", driver="vfio-pci")
        await agent.claims.prepare(virtual_machine(annotations, asked))
        await agent.add()
        [receipt] = agent.node.ledger.of_container("c1")
        assert machine.hardware.functions[receipt.interfaces[0].vf].settings.mac == MAC

    scenario(machine, play)


def test_macs_go_to_the_devices_of_a_request_in_order(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        macs = [MAC, "de:ad:00:00:be:f0"]
        asked = virtual_machine(mac_of(macs), interface("vf"), interface("vf"), interface("sync"))
        await agent.claims.prepare(asked)
        prepared = agent.node.ledger.prepared_for(PodUid("uid-p"))
        assert [kept.placed.options.mac for kept in prepared] == [*macs, None]

    scenario(machine, play)


@pytest.mark.parametrize(
    ("annotations", "parameters", "why"),
    [
        ({KEYS[0]: "["}, {}, "annotation k8s.v1.cni.cncf.io/dra-networks: no valid JSON"),
        ({KEYS[0]: '{"claimName": 1}'}, {}, "annotation k8s.v1.cni.cncf.io/dra-networks: Expected `array`"),
        (mac_of(["not a MAC"]), {}, "request vf.mac"),
        (mac_of([MAC, "de:ad:00:00:be:f0"]), {}, r"has 2 MACs for its 1 devices"),
        (mac_of([MAC], request="absent"), {}, "has 1 MACs for its 0 devices"),
        (mac_of([MAC]), {"mac": "de:ad:00:00:00:01"}, "by its parameters"),
        ({KEYS[0]: json.dumps([*json.loads(mac_of([MAC])[KEYS[0]])] * 2)}, {}, "a second entry"),
    ],
)
def test_mac_that_cannot_be_had_is_refused_by_its_name(
    machine: Machine, annotations: dict[str, str], parameters: dict[str, str], why: str
) -> None:
    async def play(agent: Running) -> None:
        with pytest.raises(MalformedError, match=why):
            await agent.claims.prepare(virtual_machine(annotations, interface("vf", **parameters)))
        assert not agent.node.ledger.claims

    scenario(machine, play)


def test_mac_of_a_virtual_machine_needs_the_leave_of_its_namespace(machine: Machine) -> None:
    machine.policies = NamespacePolicies(
        policies=(NamespacePolicy(name="vms", namespaces=("default",), macs=((2 << 40, (2 << 40) + 255),)),)
    )

    async def play(agent: Running) -> None:
        with pytest.raises(K8sRdmaError, match="mac"):
            await agent.claims.prepare(virtual_machine(mac_of([MAC]), interface("vf")))

    scenario(machine, play)


def test_annotation_of_another_claim_does_not_apply_to_this_one() -> None:
    assert read_macs(mac_of([MAC], claim_name="net-d"), "net-c") == {}
    assert read_macs({}, "net-c") == {}
