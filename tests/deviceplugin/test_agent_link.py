"""State that is kept of the agent's reports."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from deviceplugin.played_agent import report
from k8s_rdma.deviceplugin.device_monitor import DevicesLink
from linux.small_machine import PF, vf_pci


def link(calls: list[float]) -> DevicesLink:
    return DevicesLink(Path("none"), changed=lambda: calls.append(1.0), clock=lambda: 7.0)


def test_report_says_which_devices_pods_have() -> None:
    calls: list[float] = []
    agent = link(calls)
    assert (agent.report, agent.silent_since) == (None, 7.0)
    agent.reported(report("mlx5_2", slots=("s.slot-1",)))
    assert agent.report is not None
    [given] = agent.report.allocated
    assert (given.name, given.pci, given.pf, given.vf, given.pod_uid) == ("mlx5_2", vf_pci(1), PF, 1, "u1")
    assert (agent.report.held_slots, agent.report.pfs) == ({"s.slot-1"}, {PF})
    assert (agent.silent_since, len(calls)) == (None, 1)


def test_report_that_says_the_same_is_no_news() -> None:
    calls: list[float] = []
    agent = link(calls)
    agent.reported(report("mlx5_1"))
    agent.reported(replace(report("mlx5_1"), generation="e.2"))
    assert len(calls) == 1
    agent.reported(report())
    assert len(calls) == 2


def test_last_state_is_kept_when_the_agent_is_lost() -> None:
    calls: list[float] = []
    agent = link(calls)
    agent.reported(report("mlx5_1"))
    told = agent.report
    agent.disconnected()
    agent.disconnected()
    assert (agent.report, agent.silent_since, len(calls)) == (told, 7.0, 2)
    agent.reported(report("mlx5_1"))
    assert (agent.silent_since, len(calls)) == (None, 3)


def test_pf_that_the_agent_cannot_look_at_is_its_all_the_same() -> None:
    agent = link([])
    agent.reported(report())
    agent.reported(replace(report(), pfs=(), unreadable=("PF eth0: EIO",)))
    assert agent.report is not None
    assert agent.report.pfs == {PF}
    agent.reported(replace(report(), pfs=()))
    assert agent.report.pfs == frozenset()


def test_attempt_that_fails_is_one() -> None:
    async def scenario() -> None:
        agent = link([])
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(agent.run())
            await agent.wait_for_attempt()
            following.cancel()
        assert agent.report is None

    asyncio.run(scenario())
