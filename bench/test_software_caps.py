"""The cost of caps that software enforces: on ADD, and by the check of each of them every ten seconds.

ADD is timed as in `test_cni_add`, with and without caps in turn, in a namespace that stays. The check is that
of `linux.kernel` for each pod that has such a cap: one socket in its namespace, and lists of its links and
queueing disciplines; in the thread's own time, because it never waits, and by the clock.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from bench.cni_plugin import PROGRAM, QUIET_S, Plugin, Rounds, needs_root, netconf
from e2e.node import ANNOTATIONS, Node
from k8s_rdma.core.step import CapInterface, NetnsRef
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netlink.traffic_control import root_qdiscs
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.pod_interface import cap_interface
from k8s_rdma.linux.vf.moves import netdevs_by_device
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at, remove_namespace_at

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Record

ROUNDS = {1: 30, 8: 15}
PODS = 100


WAYS: dict[str, dict[str, Any]] = {"uncapped": {}, "capped": {"max_tx_rate": 100, "enforce": "software"}}


def asking(node: Node, count: int, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a pod that asks for so many interfaces."""
    wish = json.dumps([wanted] * count)
    delivered = {ANNOTATIONS: {"rdma_interfaces_required": wish}}
    return netconf(node, count, None) | {"runtimeConfig": delivered}


@needs_root
@pytest.mark.parametrize("count", ROUNDS)
def test_add_with_a_cap_of_software(node: Node, record: Record, count: int) -> None:
    netns = node.directory / "netns" / "pod"
    create_namespace_at(netns)
    ways = {
        way: Plugin(str(PROGRAM), node, netns, asking(node, count, wanted), container=way)
        for way, wanted in WAYS.items()
    }
    rounds = Rounds()
    for number in range(ROUNDS[count] + 1):
        if number == 1:
            rounds = Rounds()  # the first one warms up
        for way, plugin in ways.items():
            time.sleep(QUIET_S)
            rounds.time(way, lambda plugin=plugin: plugin.run("ADD"))
            plugin.run("DEL")
    interfaces = "1 interface" if count == 1 else f"{count} interfaces"
    record(
        f"CNI ADD of {interfaces} with caps of software, beyond none",
        budget=None,
        measured=rounds.beyond("capped", "uncapped"),
        unit="ms",
        note=f"{rounds['capped']:.1f} and {rounds['uncapped']:.1f} ms",
    )


@needs_root
def test_look_at_caps(tmp_path: Path, record: Record) -> None:
    namespaces = Namespaces()
    with ExitStack() as stack:
        pods = [_capped(tmp_path / f"pod{number}", namespaces, stack) for number in range(PODS)]
        clock, processor = [], []
        for _ in range(20):
            started, used = time.perf_counter(), time.thread_time()
            for netns in pods:
                _look(netns, namespaces)
            clock.append((time.perf_counter() - started) * 1e3)
            processor.append((time.thread_time() - used) * 1e3)
    record(
        f"look at the caps of software of {PODS} pods, every 10 s",
        budget=None,
        measured=median(processor),
        unit="ms",
        note=f"of processor time, {median(clock):.1f} ms by the clock",
    )


def _capped(path: Path, namespaces: Namespaces, stack: ExitStack) -> NetnsRef:
    create_namespace_at(path)
    stack.callback(remove_namespace_at, path)
    netns = namespaces.find(str(path))
    assert netns is not None
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as there:
        there.create("create", named("rdma0"), of_kind("ifb"))
    cap_interface(CapInterface(netns=netns, ifname="rdma0", max_tx_rate_mbps=100), namespaces)
    return netns


def _look(netns: NetnsRef, namespaces: Namespaces) -> None:
    """Look as `SriovKernel.caps` does, which would find no VF among links without hardware."""
    assert namespaces.alive(netns)
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as there:
        netdevs_by_device(there, namespace)
        assert [each.mbps for each in root_qdiscs(there.socket, "look").values() if each.mbps] == [100]
