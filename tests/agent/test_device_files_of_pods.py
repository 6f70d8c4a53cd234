"""The files that tell of a pod's devices, as its ADD and DEL go."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, call
from k8s_rdma.agent.cdi_specs import DEVICE_INFO_DIR
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

INFO = f"{DEVICE_INFO_DIR}/net-c1_eth0"
PROGRAM = {"driver": "vfio-pci"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


def stdin(machine: Machine, *interfaces: dict[str, Any], info: str = INFO) -> bytes:
    annotations = {"rdma_interfaces_required": json.dumps(interfaces)}
    told = {"io.kubernetes.cri.pod-annotations": annotations, "CNIDeviceInfoFile": info}
    return machine.stdin(None, runtimeConfig=told)


def files(machine: Machine) -> dict[str, Any]:
    """By their paths on the node."""
    root = machine.directory / "host"
    found = (path for path in root.rglob("*") if path.is_file())
    return {f"/{path.relative_to(root)}": json.loads(path.read_bytes()) for path in found}


def test_files_are_there_from_add_to_delete(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            given = await verbs.add(call("ADD"), netns, stdin(machine, {}, PROGRAM))
            netdev, function = given.receipt.interfaces
            found = files(machine)
            cdi = f"/var/run/cdi/k8s-rdma.io-vf_{function.pci}.json"
            assert set(found) == {INFO, cdi}
            assert found[INFO]["pci"]["pci-address"] == netdev.pci
            assert [each["name"] for each in found[cdi]["devices"]] == [function.pci]
            await verbs.delete(call("DEL"), "net")
            assert files(machine) == {}
            assert machine.is_pristine()

    run(scenario)


def test_file_that_cannot_be_written_undoes_the_add(machine: Machine) -> None:
    async def scenario() -> None:
        (machine.directory / "host").mkdir()
        (machine.directory / "host" / "var").write_text('"no directory"')
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match=f"device file {INFO}: cannot be written"):
                await verbs.add(call("ADD"), netns, stdin(machine, {}))
            assert machine.is_pristine()
            assert not node.ledger.receipts

    run(scenario)


def test_path_outside_of_the_directory_is_refused_before_anything_is_given(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="CNIDeviceInfoFile") as refused:
                await verbs.add(call("ADD"), netns, stdin(machine, {}, info=f"{DEVICE_INFO_DIR}/../../x"))
            assert refused.value.reason is Reason.INVALID_NETCONF
            assert machine.kernel.applied == []

    run(scenario)


def test_files_of_an_attachment_that_a_reboot_ended_are_removed_at_the_start(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, stdin(machine, {}, PROGRAM))
        assert len(files(machine)) == 2
        machine.boot()
        with machine.running(boot_id="boot-2") as (node, verbs):
            await verbs.reconcile()
            assert not node.ledger.receipts
        assert files(machine) == {}

    run(scenario)
