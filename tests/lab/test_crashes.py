"""The agent is killed at random points of ADDs and started again: pods get all they want, or leave no trace.

A point is a system call by which the agent changes something or asks somebody: netlink, the ledger's disk,
another program, a file. strace(1) kills the agent when it is about to make that call.
"""

from __future__ import annotations

import random
import re
import secrets
import sys
from typing import TYPE_CHECKING

import pytest

from tests.lab.cluster import until
from tests.lab.guest_runtime import CniFailed, Sandbox
from tests.lab.lone_node import LoneNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.machine import Background, Machine

FEW, MANY = 4, 20
pytestmark = pytest.mark.long

WISHES = ({"max_tx_rate": 50, "vlan": 7}, {"min_tx_rate": 100}, {"max_tx_rate": 70, "mtu": 1400})
CALLS = (
    "sendto,sendmsg,setns,clone,clone3,vfork,pwrite64,write,fsync,fdatasync,rename,renameat,unlink,unlinkat,"
    "mkdir,mkdirat,symlinkat,linkat"
)
_CALL = re.compile(r"^(\d+)\s+(\w+)\(", re.MULTILINE)
Point = tuple[str, int]
"""A system call's name, and which one of its thread's calls by that name."""


@pytest.fixture(scope="module")
def node(lone_machine: Machine) -> Iterator[LoneNode]:
    node = LoneNode(lone_machine)
    node.set_up()
    yield node
    node.stop()


def traced(node: LoneNode, *options: str) -> Background:
    """strace of the agent's threads, and not of its children; it traces when this returns."""
    tasks = f"/proc/{node.agent_pid()}/task"
    threads = [option for thread in node.sh(f"ls {tasks}").split() for option in ("-p", thread)]
    tracer = node.machine.start("strace", *threads, *options, name="strace")
    script = f"! grep -qh 'TracerPid:.0$' {tasks}/*/status"
    until("strace", lambda: node.machine.run("bash", "-c", script, check=False).returncode == 0, pause_s=0.1)
    return tracer


def points_of_an_add(node: LoneNode) -> list[Point]:
    """Every point of an undisturbed ADD, in the order in which they come."""
    tracer = traced(node, "-e", f"trace={CALLS}", "-o", "/lab/points")
    sandbox = node.add("counted", *WISHES)
    tracer.stop()
    node.delete(sandbox)
    counted: dict[tuple[str, str], int] = {}
    points = []
    for thread, call in _CALL.findall((node.machine.shared / "points").read_text()):
        counted[thread, call] = counted.get((thread, call), 0) + 1
        points.append((call, counted[thread, call]))
    return points


def killed_at(node: LoneNode, point: Point, sandbox: Sandbox) -> bool:
    """An ADD in which the agent is killed at a point; whether it came to that."""
    call, number = point
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    tracer = traced(node, "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
    try:
        node.attach(sandbox)
    except CniFailed:
        node.await_agents_end()
        return True
    node.kill_agent()
    tracer.stop()
    return False


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.timeout(3600))])
def test_agent_killed_at_random_points_of_adds_loses_no_vf(node: LoneNode, kills: int) -> None:
    seed = secrets.randbits(32)
    points = points_of_an_add(node)
    chosen = random.Random(seed).sample(points, k=kills)
    sys.stdout.write(f"seed {seed}: {kills} of {len(points)} points: {chosen}\n")
    assert node.leftovers() == {}
    reached = 0
    for number, point in enumerate(chosen):
        sandbox = node.sandbox("p", *WISHES)
        reached += killed_at(node, point, sandbox)
        node.start_agent()
        if number % 2:
            node.delete(sandbox)
        else:
            node.end_namespace(sandbox)  # and no DEL ever comes
        again = node.add_as_kubelet("p", *WISHES)
        assert sorted(node.inside(again)) == ["eth0", "eth1", "eth2"], point
        node.delete(again)
        assert node.leftovers() == {}, f"seed {seed}, killed at {point}"
        sys.stdout.write(f"{point}: of {number + 1} ADDs {reached} were cut short\n")
    assert reached >= kills // 2, "most points were never reached"
