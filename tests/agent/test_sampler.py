"""Traffic on demand: how many samples are taken, and whose traffic it was."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from factories import PF0, PF1
from k8s_rdma.agent.sampler import Sampler
from k8s_rdma.core.kernel import PauseFrames
from k8s_rdma.wire.report import ReportedPod
from k8s_rdma.wire.state_socket import Counters, decode_counters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.machine import Verbs
    from k8s_rdma.agent.node import Node


class Sampled:
    """A node's sampler, at a time of the test's choosing; it never waits."""

    def __init__(self, machine: Machine, node: Node, verbs: Verbs) -> None:
        self.time_s = 100.0
        self.machine, self.node, self.verbs = machine, node, verbs
        self.sampler = Sampler(
            node=node,
            worker=machine.worker,
            quiet=verbs.idle,
            pause_frames=machine.kernel.pause_frames,
            now=lambda: self.time_s,
            pause=self.wait,
        )
        self.waited: list[float] = []

    async def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.time_s += seconds

    async def ask(self) -> Counters:
        return decode_counters(await self.sampler.counters())


def run(machine: Machine, scenario: Callable[[Sampled], Awaitable[None]]) -> None:
    async def main() -> None:
        with machine.running() as (node, verbs):
            await scenario(Sampled(machine, node, verbs))

    asyncio.run(main())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def sent(machine: Machine, told: Counters) -> list[int]:
    return [vf.tx_bytes for vf in told.vfs if vf.pf == PF0]


def test_pause_frames_are_counted_by_pf_and_priority(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        machine.hardware.pause_frames["f1"] = {3: PauseFrames(sent=4, received=5)}
        [pauses] = (await it.ask()).pauses
        assert (pauses.pf, pauses.pf_name, pauses.priority) == (PF1, "f1", 3)
        assert (pauses.tx_frames, pauses.rx_frames) == (4, 5)

    run(machine, scenario)


def test_traffic_is_reported_with_the_pod_that_holds_the_vf(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        netns = machine.hardware.create_namespace()
        receipt = (await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt
        machine.hardware.count("eth0", netns, tx_packets=2, tx_bytes=100)
        told = await it.ask()
        assert (told.node, told.age_s, told.failed_samples) == ("w1", 0, 0)
        held = receipt.interfaces[0].vf
        of_pod = [vf for vf in told.vfs if vf.pod]
        assert [(vf.pf, vf.vf, vf.pf_name) for vf in of_pod] == [(held.pf, held.index, "f0")]
        assert of_pod[0].pod == ReportedPod(namespace="default", name="p", uid="uid-p")
        assert (of_pod[0].ifname, of_pod[0].tx_bytes, of_pod[0].tx_packets) == ("eth0", 100, 2)
        assert {(vf.pf, vf.vf) for vf in told.vfs} == {(pf, index) for pf in (PF0, PF1) for index in range(4)}
        await it.verbs.delete(call("DEL"), "net")
        it.time_s += 15
        assert not [vf for vf in (await it.ask()).vfs if vf.pod]

    run(machine, scenario)


def test_sample_is_taken_anew_only_when_15_s_have_passed(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        await it.ask()
        for seconds, age_s, counted in ((10, 10, 0), (3.9, 13.9, 0), (1.2, 0, 8), (13, 13, 8)):
            machine.hardware.count("f0v0", None, tx_bytes=4)
            it.time_s += seconds
            told = await it.ask()
            assert told.age_s == pytest.approx(age_s, abs=0.001)
            assert sent(machine, told)[0] == (12 if counted else 0)

    run(machine, scenario)


def test_question_that_comes_a_little_early_waits(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        await it.ask()
        it.time_s += 14.25
        assert (await it.ask()).age_s == 0
        assert it.waited == [0, 0.75]

    run(machine, scenario)


def test_simultaneous_readers_share_a_sample(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        held = threading.Event()
        busy = asyncio.create_task(machine.worker.run(held.wait))
        asking = [asyncio.create_task(it.ask()) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        asking[0].cancel()  # the one whose sample waits for its turn on the worker
        for _ in range(20):
            await asyncio.sleep(0)
        held.set()
        await busy
        told = await asyncio.gather(*asking[1:])
        assert [each.age_s for each in told] == [0] * 4
        assert machine.kernel.samples == 1

    run(machine, scenario)


def test_failed_sample_is_counted_and_the_last_one_is_reported(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        machine.hardware.silent = "netlink says no"
        told = await it.ask()
        assert (told.age_s, told.vfs, told.failed_samples) == (None, (), 1)
        machine.hardware.silent = ""
        assert (await it.ask()).failed_samples == 1  # and it is not tried again at once
        it.time_s += 15
        assert (await it.ask()).age_s == 0
        machine.hardware.silent = "netlink says no"
        it.time_s += 15
        told = await it.ask()
        assert (told.age_s, len(told.vfs), told.failed_samples) == (15, 8, 2)

    run(machine, scenario)


def test_scans_of_the_hardware_are_reported_too(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        it.node.refresh()
        machine.hardware.silent = "netlink says no"
        it.node.refresh()
        scans = (await it.ask()).scans
        assert (scans.total, scans.failed) == (3, 1)
        assert scans.seconds > 0

    run(machine, scenario)


def test_sample_waits_until_no_pod_does(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        asked = []

        async def ask_meanwhile() -> None:
            asked.append(asyncio.create_task(it.ask()))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asked[0].done()

        machine.on_prepared = ask_meanwhile
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))
        told = await asked[0]
        assert [vf.ifname for vf in told.vfs if vf.pod] == ["eth0"]

    run(machine, scenario)


def test_sample_is_taken_though_pods_wait_when_that_lasts(machine: Machine) -> None:
    async def scenario(it: Sampled) -> None:
        async def wait_for_it() -> None:
            assert (await it.ask()).age_s == 0

        machine.on_prepared = wait_for_it
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))

    run(machine, scenario)
