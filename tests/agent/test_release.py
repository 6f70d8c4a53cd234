"""VFs come home although an obstacle is in their way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.machine import Machine, asks, call
from agent.scripted_plugin import ERROR, MODERN, ScriptedPlugin, addresses
from factories import PF0, hardware, interface, receipt
from k8s_rdma.agent.release import release, spare_name
from k8s_rdma.core.kernel import Hardware, NameTakenError, NoSuchVfError, OtherMacError, Unreadable
from k8s_rdma.core.ledger import Phase
from k8s_rdma.core.step import BringHome, Step, VfHome
from k8s_rdma.errors import K8sRdmaError, KernelError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_end_that_fails_each_time_is_logged_once_until_its_failure_differs(machine: Machine) -> None:
    """It is tried every 10 s, for each attachment, as long as another plugin fails."""
    plugin = ScriptedPlugin(machine.directory)
    plugin.speak(MODERN, ADD=addresses("10.0.0.5/24"))

    async def scenario() -> None:
        with machine.running() as (node, verbs), capture_logs() as logs:
            netns = machine.hardware.create_namespace()
            env = replace(call("ADD"), path=str(machine.directory))
            await verbs.add(env, netns, machine.stdin(asks({}), ipam={"type": plugin.name}))
            machine.hardware.destroy_namespace(netns)
            for fault in (ERROR, ERROR, "exit 3", "exit 3", ERROR):
                plugin.speak(MODERN, DEL=fault)
                assert not await verbs.reconcile()
            failures = [log["error"] for log in logs if log["event"] == "reconcile_failed"]
            assert len(failures) == 3
            assert "exit status 3" in failures[1]
            plugin.speak(MODERN, DEL="exit 0")
            assert await verbs.reconcile()
            assert node.ledger.receipts == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("destroyed", [False, True])
def test_vf_whose_name_was_taken_comes_home_under_its_spare_name(machine: Machine, destroyed: bool) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            ).receipt
            lost = next(each for each in receipt.interfaces if each.home.name == "f0v0")
            machine.hardware.add_interface("f0v0")
            if destroyed:
                machine.hardware.destroy_namespace(netns)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts
            assert not machine.markers()
            names = [vf.netdev for vf in machine.kernel.observe().pfs[0].vfs]
            assert names == [spare_name(lost.pci), "f0v1", "f0v2", "f0v3"]
            assert node.hardware == machine.kernel.observe()
            # It is as good as any other, and comes home with its last name.
            for _ in range(2):
                netns = machine.hardware.create_namespace()
                again = (await verbs.add(call("ADD"), netns, machine.stdin(asks({}, {})))).receipt
                assert again.interfaces[0].home.name == spare_name(lost.pci)
                await verbs.delete(call("DEL"), "net")

    asyncio.run(scenario())


class Strict:
    """A kernel for `release`, in which a VF has no other MAC than its PF's, and a name is taken."""

    def __init__(self, mac: str, taken: str = "") -> None:
        self.mac, self.taken = mac, taken
        self.homes: list[VfHome] = []

    def apply(self, step: Step) -> None:
        if not isinstance(step, BringHome):
            return
        if step.home.name == self.taken:
            raise NameTakenError(f"{self.taken} is taken")
        if step.home.mac != self.mac:
            raise OtherMacError("EADDRNOTAVAIL", mac=self.mac)
        self.homes.append(step.home)


@pytest.mark.parametrize("taken", ["", "0v0"])
def test_vf_comes_home_with_the_mac_that_its_pf_gave_it_meanwhile(taken: str) -> None:
    held = receipt("c1", interface(PF0, 0))
    kernel = Strict("02:00:00:00:aa:01", taken)
    [home] = release(held, kernel, hardware).interfaces
    assert kernel.homes == [home.home]
    assert home.home.mac == kernel.mac
    assert home.home.name == (spare_name(home.pci) if taken else "0v0")


class WithoutVfs:
    """A kernel for `release`, in which the PF has lost its driver, and all VFs with it."""

    def __init__(self, error: type[KernelError]) -> None:
        self._error = error

    def apply(self, step: Step) -> None:
        raise self._error("the PF has 0 VFs") if isinstance(step, BringHome) else KernelError("no such PF")


def unseen() -> Hardware:
    return Hardware((), (Unreadable("PF 0000:03:00.0", "no driver is bound to it"),))


def test_vfs_that_went_with_their_pfs_driver_need_not_come_home() -> None:
    held = receipt("c1", interface(PF0, 0, maximum=5), interface(PF0, 1))
    assert len(release(held, WithoutVfs(NoSuchVfError), unseen).interfaces) == 2


def test_vfs_of_a_pf_that_cannot_be_looked_at_stay_the_pods() -> None:
    with pytest.raises(KernelError, match="2 of its VFs' changes not undone"):
        release(receipt("c1", interface(PF0, 0)), WithoutVfs(KernelError), unseen)


def test_vf_whose_spare_name_is_taken_as_well_is_not_home() -> None:
    held = receipt("c1", interface(PF0, 0))
    [each] = held.interfaces
    own = replace(held, interfaces=(replace(each, home=replace(each.home, name=spare_name(each.pci))),))
    with pytest.raises(KernelError, match="1 of its VFs' changes not undone"):
        release(own, Strict(each.home.mac, spare_name(each.pci)), hardware)


def test_collection_succeeds_and_the_receipt_stays_when_only_rates_could_not_be_undone(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.kernel.fail(index=1)
            stdin = machine.stdin(None, **{"cni.dev/valid-attachments": []})
            await verbs.collect(call("GC"), stdin)
            assert machine.hardware.interface("f0v0") is not None
            assert [left.phase for left in node.ledger.receipts.values()] == [Phase.RELEASING]
            await verbs.collect(call("GC"), stdin)
            assert not node.ledger.receipts
            assert machine.is_pristine()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.kernel.fail(index=0)
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.collect(call("GC"), stdin)

    asyncio.run(scenario())


def test_spare_names_are_names_of_netdevs_and_differ() -> None:
    pcis = [f"{domain}:{rest}" for domain in ("0000", "00010000") for rest in ("03:00.1", "03:01.0", PF0[5:])]
    names = {spare_name(pci) for pci in pcis}
    assert len(names) == len(pcis)
    assert all(len(name) <= 15 and name.isalnum() for name in names)
