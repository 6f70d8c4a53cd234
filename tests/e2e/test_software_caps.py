"""Caps that software keeps, and a pod's attacks on them: processes, namespaces and kernel are real."""

from __future__ import annotations

import asyncio
import re
import subprocess
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from resource import RLIMIT_NOFILE, prlimit
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from e2e.node import Node, pod
from e2e.test_rest import URL, serve
from k8s_rdma_demo.cluster.cni_runtime import AttachError, CniRuntime, remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

SOFTWARE: dict[str, Any] = {"max_tx_rate": 200, "enforce": "software"}
OURS = re.compile(r"qdisc tbf 7264: root refcnt \d+ rate 200Mbit burst 10\d{4}b ")
MOMENTS_S = [0.004 * number**2 for number in range(6)]


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    """A node whose agent looks at caps ten times a second."""
    node = make_node(4)
    node.settings["reconcileS"] = 0.1
    node.start_agent()
    return node


def run(node: Node, scenario: Callable[[CniRuntime, Sandbox], Awaitable[None]]) -> None:
    """With a pod whose cap software keeps; in the end all is as before."""

    async def main() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", SOFTWARE))
        await scenario(runtime, sandbox)
        await runtime.delete(sandbox)

    asyncio.run(main())
    assert node.leftovers() == {}
    assert "7264:" not in tc("show")


def tc(*arguments: str, inside: Sandbox | None = None) -> str:
    enter = ["nsenter", f"--net={inside.netns}"] if inside else []
    ended = subprocess.run([*enter, "tc", "qdisc", *arguments], capture_output=True, text=True, check=True)
    return ended.stdout


def ip(inside: Sandbox | None, *arguments: str) -> None:
    enter = ["nsenter", f"--net={inside.netns}"] if inside else []
    subprocess.run([*enter, "ip", *arguments], capture_output=True, check=True)


def capped(sandbox: Sandbox, ifname: str = "eth0") -> bool:
    return OURS.match(tc("show", "dev", ifname, inside=sandbox)) is not None


def told(node: Node) -> tuple[str | None, list[str]]:
    """Who keeps the pod's cap, and the problems of PFs."""
    report = node.try_report()
    assert report is not None
    [allocation] = report.allocations
    [interface] = allocation.interfaces
    return interface.enforced.max, [problem for pf in report.pfs for problem in pf.problems]


def events(node: Node) -> list[str]:
    return [entry["event"] for entry in node.log() if entry["event"].startswith("cap_")]


@contextmanager
def no_more_files(node: Node) -> Iterator[None]:
    """The agent cannot open more files for a while; its open ones stay open."""
    opened = [int(each.name) for each in Path(f"/proc/{node.agent.pid}/fd").iterdir()]
    free = next(number for number in count() if number not in opened)
    before = prlimit(node.agent.pid, RLIMIT_NOFILE)
    prlimit(node.agent.pid, RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        prlimit(node.agent.pid, RLIMIT_NOFILE, before)


def removed(sandbox: Sandbox, ifname: str = "eth0") -> str:
    tc("del", "dev", ifname, "root", inside=sandbox)
    return ifname


def replaced(sandbox: Sandbox) -> str:
    tc("replace", "dev", "eth0", "root", "handle", "1:", "pfifo", inside=sandbox)
    return "eth0"


def weakened(sandbox: Sandbox) -> str:
    change = "change dev eth0 root handle 7264: tbf rate 200mbit burst 1gb limit 1mb"
    tc(*change.split(), inside=sandbox)
    return "eth0"


def renamed(sandbox: Sandbox, name: str = "mine") -> str:
    """Its cap goes last: if the agent looks in between, the interface is whole."""
    ip(sandbox, "link", "set", "eth0", "down")
    ip(sandbox, "link", "set", "eth0", "name", name)
    return removed(sandbox, name)


def renamed_to_no_text(sandbox: Sandbox) -> str:
    return renamed(sandbox, "\udcff\x1b[2J")


def test_cap_is_put_back_later_when_the_agent_could_not_open_a_socket(node: Node) -> None:
    async def scenario(_runtime: CniRuntime, sandbox: Sandbox) -> None:
        with no_more_files(node):
            removed(sandbox)
            node.wait("the log", lambda: events(node) == ["cap_lost"])
            assert not capped(sandbox)
        node.wait("the cap", lambda: capped(sandbox))
        node.wait("the log", lambda: events(node) == ["cap_lost", "cap_restored"])
        assert [each["error"] for each in node.log() if "Too many open files" in each.get("error", "")]

    run(node, scenario)


@pytest.mark.parametrize("alter", [removed, replaced, weakened, renamed, renamed_to_no_text])
def test_cap_that_a_pod_took_away_is_put_back_by_the_next_look(
    node: Node, alter: Callable[[Sandbox], str]
) -> None:
    async def scenario(_runtime: CniRuntime, sandbox: Sandbox) -> None:
        assert capped(sandbox)
        assert told(node) == ("software", [])
        ifname = alter(sandbox)
        node.wait("the cap", lambda: capped(sandbox, ifname))
        node.wait("the log", lambda: events(node) == ["cap_restored"])
        assert told(node) == ("software", [])

    run(node, scenario)


def test_server_counts_caps_that_were_put_back(node: Node) -> None:
    async def scenario(_runtime: CniRuntime, sandbox: Sandbox) -> None:
        with httpx2.Client(base_url=URL, trust_env=False, timeout=30) as http:
            serve(node, http)
            [allocation] = http.get("/v1/node").json()["allocations"]
            assert allocation["interfaces"][0]["enforced"] == {"min": None, "max": "software"}
            removed(sandbox)
            counted = 'k8s_rdma_software_caps_restored_total{node="w1"} 1.0\n'
            node.wait("the metric", lambda: counted in http.get("/metrics").text)
            assert 'k8s_rdma_software_caps_lost{node="w1"} 0.0\n' in http.get("/metrics").text

    run(node, scenario)


def test_interface_that_a_pod_moved_on_is_a_problem_until_it_is_back(node: Node) -> None:
    async def scenario(runtime: CniRuntime, sandbox: Sandbox) -> None:
        other = await runtime.create(pod("other"))
        holder = await asyncio.create_subprocess_exec("nsenter", f"--net={other.netns}", "sleep", "1000")
        ip(sandbox, "link", "set", "eth0", "down")
        ip(sandbox, "link", "set", "eth0", "netns", str(holder.pid))
        node.wait("the problem", lambda: told(node)[0] == "accounted")
        [problem] = told(node)[1]
        assert "pod default/p has as eth0, is not limited to 200 Mb/s by software now: " in problem
        ip(other, "link", "set", "eth0", "netns", sandbox.netns)
        node.wait("the cap", lambda: capped(sandbox))
        node.wait("the report", lambda: told(node) == ("software", []))
        assert events(node) == ["cap_lost", "cap_restored"]
        holder.kill()
        await holder.wait()
        remove_namespace_at(Path(other.netns))

    run(node, scenario)


def test_cap_that_a_pod_took_away_while_the_agent_was_dead_is_there_once_it_serves(node: Node) -> None:
    async def scenario(_runtime: CniRuntime, sandbox: Sandbox) -> None:
        node.kill_agent()
        removed(sandbox)
        node.settings["reconcileS"] = 3600
        node.start_agent()
        assert capped(sandbox)

    run(node, scenario)


def test_vf_of_a_pod_that_vanished_has_no_cap_for_the_next(node: Node) -> None:
    async def scenario(runtime: CniRuntime, sandbox: Sandbox) -> None:
        remove_namespace_at(Path(sandbox.netns))
        node.wait("the ledger", lambda: not node.markers())
        assert "7264:" not in tc("show")
        following = await runtime.add(pod("q", {}))
        assert "tbf" not in tc("show", inside=following)
        await runtime.delete(following)

    run(node, scenario)


def test_agent_killed_at_any_moment_of_an_add_leaves_no_cap_that_del_does_not_end(node: Node) -> None:
    async def scenario(moment_s: float) -> None:
        runtime = node.runtime(chained=False)
        adding = asyncio.create_task(runtime.add(pod("p", *[SOFTWARE] * 8)))
        await asyncio.sleep(moment_s)
        node.kill_agent()
        left = None
        with suppress(AttachError):
            left = await adding
        if (failed := adding.exception()) is not None:
            assert isinstance(failed, AttachError)
            left = failed.leftover
        node.start_agent()
        if left is not None:
            await runtime.delete(left)

    for moment_s in MOMENTS_S:
        asyncio.run(scenario(moment_s))
        assert node.leftovers() == {}
        assert "7264:" not in tc("show")
