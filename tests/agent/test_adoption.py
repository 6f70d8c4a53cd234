"""`k8s-rdma agent adopt`, from its command line over the real socket to the fake kernel."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import yaml

import warm_program
from agent.machine import Machine, asks, call
from factories import PF0
from fakes.nodes import FakePodResources
from k8s_rdma.agent.adoption import Adoption
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.report import Reporter
from k8s_rdma.agent.unix_sockets import CniSocket, listen_unix, serve_connections
from k8s_rdma.config.devices import ExclusiveResource, Selector
from k8s_rdma.core.allocation import Scope
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.step import SetRates, VfRate, VfRef, Vlan
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.adopt import AdoptRequest, decode_adopted, encode_adopt
from k8s_rdma.wire.report import decode_report

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from agent.machine import Verbs
    from k8s_rdma.agent.node import Node
    from k8s_rdma.wire.cni_socket import Reply, SocketRequest


class Asked:
    """A node whose agent listens, and the command line."""

    def __init__(
        self, machine: Machine, node: Node, verbs: Verbs, reporter: Reporter, adoption: Adoption
    ) -> None:
        self.machine, self.node, self.verbs, self.reporter = machine, node, verbs, reporter
        self.adoption = adoption

    async def adopt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(adopt, self.machine.directory, *arguments)

    async def told_foreign(self) -> dict[str, list[int]]:
        told = decode_report(await self.reporter.publisher.wait_for_change(None))
        return {pf.name: [vf.vf for vf in pf.foreign] for pf in told.pfs}

    def leave_behind(self, pf: str, vf: int, rate: int) -> None:
        """Set rates as an older plugin did."""
        ref = VfRef(next(pci for pci, each in self.machine.hardware.pfs.items() if each.name == pf), vf)
        self.machine.kernel.apply(
            SetRates(pf=ref.pf, rates=(VfRate(vf, rate, 2 * rate),), previous=(VfRate(vf),))
        )

    def rates(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Those that are set."""
        return {
            (pf.name, vf.index): (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps)
            for pf in self.machine.kernel.observe().pfs
            for vf in pf.vfs
            if vf.min_tx_rate_mbps or vf.max_tx_rate_mbps
        }


def adopt(run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_program.run(["agent", "adopt", "--run-dir", str(run_dir), *arguments], {"PATH": ""})


@asynccontextmanager
async def asked(machine: Machine) -> AsyncIterator[Asked]:
    with machine.running() as (node, verbs), listen_unix(machine.directory / "cni.sock", 0o600) as listener:
        reporter = Reporter(node)
        pod_devices = PodDeviceLookup(machine.kubelet, machine.resources)
        adoption = Adoption(node=node, worker=machine.worker, reporter=reporter, pod_devices=pod_devices)

        async def answer(request: SocketRequest, _netns: int | None, _waiting: Callable[[], bool]) -> Reply:
            return await adoption.call(request)

        serving = asyncio.create_task(serve_connections(listener, CniSocket(answer).talk, limit=8))
        try:
            yield Asked(machine, node, verbs, reporter, adoption)
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


def run(machine: Machine, scenario: Callable[[Asked], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asked(machine) as it:
            await scenario(it)

    asyncio.run(main())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def rows(answer: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The table's rows as words."""
    return [line.split() for line in answer.stdout.splitlines() if line.startswith("f")]


def test_adopt_resets_unused_vfs_and_touches_no_vf_of_a_pod(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        netns, elsewhere = machine.hardware.create_namespace(), machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
        it.leave_behind("f0", 1, 60)
        it.leave_behind("f1", 2, 70)
        machine.hardware.functions[VfRef(PF0, 3)].settings.vlan = Vlan(9)
        machine.hardware.move(machine.hardware.functions[VfRef(PF0, 2)].device, elsewhere.inode, "x")
        before = machine.kernel.observe()
        dry = await it.adopt("--all", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert [row[:2] for row in rows(dry) if "would" in row] == [["f0", "1"], ["f0", "3"], ["f1", "2"]]
        assert machine.kernel.observe() == before
        done = await it.adopt("--all")
        assert done.returncode == 0, done.stderr
        assert [row[:2] for row in rows(done) if "reset" in row] == [["f0", "1"], ["f0", "3"], ["f1", "2"]]
        assert rows(done)[0][:7] == ["f0", "1", "f0v1", "60Mb/s", "120Mb/s", "0", "reset"]
        assert "rates that are not ours: min 60, max 120 Mb/s" in done.stdout
        assert [row[:2] for row in rows(done) if "alone" in row] == [["f0", "2"]]
        assert it.rates() == {("f0", 0): (5, 0)}
        assert machine.hardware.interface("eth0", netns) is not None
        assert await it.told_foreign() == {"f0": [2], "f1": []}

    run(machine, scenario)


def test_adopt_resets_only_the_selected_vfs(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        for vf in (0, 1):
            it.leave_behind("f0", vf, 60)
            it.leave_behind("f1", vf, 70)
        assert (await it.adopt("--pf", "f0", "--vf", "1")).returncode == 0
        assert set(it.rates()) == {("f0", 0), ("f1", 0), ("f1", 1)}
        assert (await it.adopt("--pf", "f1")).returncode == 0
        assert set(it.rates()) == {("f0", 0)}

    run(machine, scenario)


def test_adopt_answers_in_kubectls_forms(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        it.leave_behind("f0", 1, 60)
        asked = ("--all", "--dry-run")
        document = json.loads((await it.adopt(*asked, "-o", "json")).stdout)
        assert [(vf["pf"], vf["vf"], vf["min_tx_rate"]) for vf in document["vfs"]] == [("f0", 1, 60)]
        assert json.loads((await it.adopt(*asked, "--json")).stdout) == document
        assert yaml.safe_load((await it.adopt(*asked, "-oyaml")).stdout) == document
        assert (await it.adopt(*asked, "-o=name")).stdout == "vf/f0/1\n"

    run(machine, scenario)


def test_adopted_vf_goes_to_the_next_pod(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        for pf in ("f0", "f1"):
            for vf in range(4):
                it.leave_behind(pf, vf, 10)
        netns = machine.hardware.create_namespace()
        it.node.refresh()
        with pytest.raises(K8sRdmaError, match="cannot give pod"):
            await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))
        await it.adopt("--pf", "f1", "--vf", "3")
        receipt = (await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt
        assert receipt.interfaces[0].vf.index == 3

    run(machine, scenario)


def test_adopt_of_a_vf_that_a_pod_holds_is_refused_with_the_pod(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
        applied = len(machine.kernel.applied)
        answer = await it.adopt("--pf", "f0", "--vf", "0")
        assert answer.returncode == 1
        assert "held by pod default/p" in answer.stdout
        assert len(machine.kernel.applied) == applied
        assert it.rates() == {("f0", 0): (5, 0)}

    run(machine, scenario)


def test_adopt_holds_up_no_pod_for_longer_than_one_vf_takes(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        for pf in ("f0", "f1"):
            for vf in range(3):
                it.leave_behind(pf, vf, 10)
        it.node.refresh()
        request = encode_adopt(AdoptRequest(), deadline_ms=0)
        left: list[int] = []

        async def claimed() -> None:
            left.append(len(it.rates()))

        machine.on_prepared = claimed
        adopting = asyncio.create_task(it.adoption.call(request))
        await it.verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
        reply = decode_adopted(await adopting)
        assert [vf.outcome for vf in reply.vfs] == ["reset"] * 6
        assert left[0] > 0

    run(machine, scenario)


def test_adopt_leaves_vfs_that_a_pod_got_since_they_were_listed(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        it.leave_behind("f0", 0, 10)
        [found] = it.node.adoptable(Scope())
        it.machine.kernel.reset(found.ref)
        it.node.refresh()
        netns = machine.hardware.create_namespace()
        receipt = (await it.verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))).receipt
        assert receipt.interfaces[0].vf == found.ref
        adopted = it.node.adopt(found)
        assert (adopted.outcome, adopted.why) == ("left alone", "held by pod default/p")
        assert it.rates() == {("f0", 0): (5, 0)}
        machine.hardware.remove_pf(PF0)
        it.node.refresh()
        assert it.node.adopt(found).outcome == "failed"

    run(machine, scenario)


def test_adopt_reports_that_there_is_no_vf_to_reset(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        answer = await it.adopt("--all")
        assert (answer.returncode, answer.stdout) == (0, "no foreign VF: nothing to adopt\n")

    run(machine, scenario)


def test_adopt_fails_when_not_everything_could_be_looked_at(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        machine.hardware.set_unreadable(Unreadable("PF f1", "no answer"))
        it.leave_behind("f0", 1, 60)
        answer = await it.adopt("--all")
        assert answer.returncode == 1
        assert "cannot be checked: PF f1: no answer" in answer.stdout
        assert not it.rates()

    run(machine, scenario)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pf", "eth9"], "PF eth9: not among those of this node that are ours: f0, f1"),
        (["--pf", "f0", "--vf", "9"], "VF 9 of PF f0: unknown; it has 4 VFs"),
        ([], "say which VFs"),
        (["--vf", "1"], "say which VFs"),
        (["--all", "--pf", "f0"], "say which VFs"),
        (["--all", "--vf", "1"], "say which VFs"),
    ],
)
def test_adopt_refuses_impossible_arguments_in_one_line(
    machine: Machine, arguments: list[str], words: str
) -> None:
    async def scenario(it: Asked) -> None:
        it.leave_behind("f0", 1, 60)
        answer = await it.adopt(*arguments)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert words in answer.stderr
        assert answer.stderr.count("\n") == 1
        assert it.rates() == {("f0", 1): (60, 120)}

    run(machine, scenario)


def test_adopt_is_refused_when_the_kernel_is_silent(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        machine.hardware.silent = "netlink says no"
        answer = await it.adopt("--all")
        assert (answer.returncode, answer.stdout) == (2, "")
        assert "netlink says no" in answer.stderr

    run(machine, scenario)


def test_adopt_says_that_the_agent_is_not_running(tmp_path: Path) -> None:
    answer = adopt(tmp_path, "--all")
    assert (answer.returncode, answer.stdout) == (2, "")
    expected = f"k8s-rdma: the agent is not running: no process listens at {tmp_path / 'cni.sock'}\n"
    assert answer.stderr == expected
    listen_unix(tmp_path / "cni.sock", 0o600).close()
    assert adopt(tmp_path, "--all").stderr == expected


def test_adopt_leaves_a_device_alone_that_kubelet_gave_to_a_pod(tmp_path: Path) -> None:
    """The ledger lacks it, because our plugin had no part; unless kubelet answers, no device is adopted."""
    machine = Machine(tmp_path, rdma=True)
    machine.resources = (ExclusiveResource(select=Selector(pfs=("f0",))),)
    machine.kubelet = kubelet = FakePodResources()
    kubelet.allocate("team", "trainer", machine.resources[0].name, "f0r1")

    async def scenario(it: Asked) -> None:
        it.leave_behind("f0", 1, 60)
        it.leave_behind("f0", 2, 70)
        kubelet.silent = True
        refused = await it.adopt("--all")
        assert refused.returncode != 0
        assert "kubelet does not say" in refused.stdout + refused.stderr
        kubelet.silent = False
        done = await it.adopt("--all")
        assert "given to pod team/trainer" in done.stdout
        assert it.rates() == {("f0", 1): (60, 120)}

    run(machine, scenario)


class FaultyLookup(PodDeviceLookup):
    async def exclusive(self) -> dict[str, str]:
        raise RuntimeError("list index out of range")


def test_unexpected_fault_is_an_answer_and_the_agent_goes_on(machine: Machine) -> None:
    async def scenario(it: Asked) -> None:
        adoption = Adoption(
            node=it.node, worker=machine.worker, reporter=it.reporter, pod_devices=FaultyLookup()
        )
        reply = decode_adopted(await adoption.call(encode_adopt(AdoptRequest(), 1000)))
        assert "the agent has a fault: RuntimeError('list index out of range')" in reply.error

    run(machine, scenario)
