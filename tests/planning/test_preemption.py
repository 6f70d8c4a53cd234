"""Evictions on a planned cluster: who goes, where, for whom, and when no pod does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from extender.node_server import pf, report
from k8s_rdma.planning.preemption import NO_ROOM
from k8s_rdma.planning.snapshot import NamespaceLimit, NodeRecord, PodRecord, PriorityClass
from k8s_rdma.planning.whatif import FitAnswer, fit, headroom
from k8s_rdma.wire.objects.pod import PreemptionPolicy
from k8s_rdma.wire.rdma_node import status_of
from planning.small_clusters import asks, manifest, node, planned, read_workloads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.planning.planned_cluster import Workload


VFS = "k8s-rdma.io/vf"
GANG = {"scheduling.x-k8s.io/pod-group": "g"}
CLASSES = (
    PriorityClass(name="urgent", value=1_000),
    PriorityClass(name="patient", value=1_000, preemption_policy=PreemptionPolicy.NEVER),
)


def holder(name: str, node: str, *rates: int, **more: Any) -> PodRecord:
    """A pod that is bound, and takes its VFs and a core."""
    defaults: dict[str, Any] = {"namespace": "team", "devices": {VFS: len(rates)}, "requests": {"cpu": 1_000}}
    return PodRecord(name=name, uid=name, node=node, annotations=asks(*rates), **{**defaults, **more})


def full(name: str, **held: int) -> NodeRecord:
    """A node of 10 Gb/s all of whose VFs are in use."""
    return node(name, pf(vfs=len(held)), held=held)


def urgent(*rates: int, name: str = "urgent", vfs: int | None = None, **more: Any) -> list[Workload]:
    limits = {VFS: str(len(rates) if vfs is None else vfs)}
    pod = {
        "priorityClassName": name,
        "containers": [{"resources": {"limits": limits}}],
        **more.pop("pod", {}),
    }
    return read_workloads(manifest(*rates, pod=pod, **more), classes=CLASSES)


def asked(workloads: list[Workload], *nodes: NodeRecord, **more: Any) -> FitAnswer:
    return fit(planned(*nodes, **{"vf_resource": VFS, **more}), workloads, preempt=True)


def victims(answer: FitAnswer) -> Mapping[str, str]:
    return {eviction.pod.partition("/")[2]: eviction.node for eviction in answer.evictions}


OLDER, YOUNGER = {"started": "2026-11-20T00:00:00Z"}, {"started": "2026-11-21T00:00:00Z"}
TWO_PODS = (holder("much", "w1", 8_000, **OLDER), holder("little", "w1", 1_000, **YOUNGER))


def test_pod_that_has_the_bandwidth_goes_and_not_the_younger_one():
    answer = asked(urgent(7_000), full("w1", much=8_000, little=1_000), pods=TWO_PODS)
    assert answer.fits
    [eviction] = answer.evictions
    assert (eviction.pod, eviction.node, eviction.workload) == ("team/much", "w1", "team/web")
    assert eviction.to == ""
    assert "Mb/s" in eviction.why


def test_younger_pod_is_evicted_too_if_the_other_may_not_free_enough():
    much, little = TWO_PODS
    for pods in (
        (holder("much", "w1", 8_000, requests={"cpu": 500}, **OLDER), little),
        (much, holder("little", "w1", 1_000, requests=None, **YOUNGER)),
    ):
        answer = asked(urgent(7_000), full("w1", much=8_000, little=1_000), pods=pods)
        assert victims(answer) == {"much": "w1", "little": "w1"}
    picky = urgent(7_000, pod={"affinity": {"podAffinity": {}}})
    assert len(asked(picky, full("w1", much=8_000, little=1_000), pods=TWO_PODS).evictions) == 2


def test_no_pod_is_evicted_without_preemption():
    cluster = planned(full("w1", much=8_000, little=1_000), pods=TWO_PODS, vf_resource=VFS)
    answer = fit(cluster, urgent(7_000))
    assert (answer.fits, answer.evictions, answer.workloads[0].no_eviction) == (False, (), "")


def test_evicted_pods_are_placed_on_nodes_with_room():
    answer = asked(
        urgent(7_000),
        full("w1", much=8_000, little=1_000),
        node("w2", pf(vfs=4, mbps=5_000)),
        pods=(
            holder("much", "w1", 8_000, **OLDER),
            holder("little", "w1", 1_000, requests={"cpu": 9_000}, **YOUNGER),
        ),
    )
    assert [(eviction.pod, eviction.to) for eviction in answer.evictions] == [
        ("team/much", ""),
        ("team/little", "w1"),  # it went because it might not fit, and does
    ]


TOGETHER = {"gang": "g", "disrupted_together": True}


def test_pods_of_a_gang_that_is_disrupted_together_go_whole():
    pods = (holder("a", "w1", 4_000, **TOGETHER), holder("b", "w1", 4_000, **TOGETHER))
    answer = asked(urgent(3_000), full("w1", a=4_000, b=4_000), pods=pods)
    assert answer.fits
    assert victims(answer) == {"a": "w1", "b": "w1"}
    alone = tuple(replace(pod, disrupted_together=False) for pod in pods)
    assert len(asked(urgent(3_000), full("w1", a=4_000, b=4_000), pods=alone).evictions) == 1


@pytest.mark.parametrize(
    ("changes", "elsewhere"),
    [
        ({}, "w2"),
        ({"disrupted_together": None}, "w1"),
        ({"group_priority": 1_000}, "w1"),
    ],
)
def test_pods_of_a_gang_that_cannot_go_whole_stay(changes: dict[str, Any], elsewhere: str):
    """One has a pod on another node, of one it is not known whether it may, and one is as important."""
    member = {**TOGETHER, **changes}
    pods = (holder("a", "w1", 4_000, **member), holder("b", elsewhere, 4_000, **member))
    both = elsewhere == "w1"
    nodes = (
        full("w1", a=4_000, **({"b": 4_000} if both else {})),
        full("w2", **({} if both else {"b": 4_000})),
    )
    answer = asked(urgent(3_000, nodeSelector={"kubernetes.io/hostname": "w1"}), *nodes, pods=pods)
    assert not answer.fits
    assert not answer.evictions
    assert answer.workloads[0].no_eviction == NO_ROOM


def test_other_pods_go_in_place_of_a_gang_that_stays():
    pods = (
        holder("a", "w1", 4_000, **TOGETHER, **YOUNGER),
        holder("b", "w2", 4_000, **TOGETHER, **YOUNGER),
        holder("c", "w1", 4_000, **OLDER),
    )
    nodes = full("w1", a=4_000, c=4_000), full("w2", b=4_000)
    answer = asked(urgent(3_000), *nodes, pods=pods)
    assert victims(answer) == {"c": "w1"}


def test_pods_of_equal_or_higher_priority_stay():
    for priority in (1_000, 2_000):
        pods = (holder("a", "w1", 8_000, priority=priority),)
        answer = asked(urgent(7_000), full("w1", a=8_000), pods=pods)
        assert not answer.fits
        assert not answer.evictions
        assert answer.workloads[0].no_eviction == NO_ROOM


def test_no_pod_is_evicted_if_only_bandwidth_is_short():
    answer = asked(urgent(7_000), node("w1", pf(vfs=4), held={"a": 8_000}), pods=(holder("a", "w1", 8_000),))
    assert not answer.fits
    assert not answer.evictions


@pytest.mark.parametrize(
    ("workloads", "vf_resource", "why"),
    [
        (urgent(7_000, name="patient"), VFS, "preemptionPolicy is Never"),
        (urgent(7_000, pod={"preemptionPolicy": "Never"}), VFS, "preemptionPolicy is Never"),
        (urgent(7_000), None, "the extender has no vfResource"),
        (urgent(7_000, vfs=0), VFS, "their containers do not request k8s-rdma.io/vf"),
    ],
)
def test_report_says_why_no_pod_may_be_evicted(workloads: list[Workload], vf_resource: str | None, why: str):
    answer = asked(workloads, full("w1", a=8_000), pods=(holder("a", "w1", 8_000),), vf_resource=vf_resource)
    assert not answer.fits
    assert not answer.evictions
    assert why in answer.workloads[0].no_eviction


@pytest.mark.parametrize(
    ("first", "second", "evicted"),
    [
        ({"priority": 5}, {"priority": 4}, "b"),
        (OLDER, YOUNGER, "b"),
        (YOUNGER, {"started": ""}, "b"),
        ({}, {}, "a"),
    ],
)
def test_node_is_chosen_whose_pods_matter_least(first: dict[str, Any], second: dict[str, Any], evicted: str):
    pods = (holder("a", "w1", 8_000, **first), holder("b", "w2", 8_000, **second))
    answer = asked(urgent(7_000), full("w1", a=8_000), full("w2", b=8_000), pods=pods)
    assert list(victims(answer)) == [evicted]


def test_fewer_victims_are_preferred():
    pods = (holder("a", "w1", 4_000), holder("b", "w1", 4_000), holder("c", "w2", 8_000))
    answer = asked(urgent(7_000), full("w1", a=4_000, b=4_000), full("w2", c=8_000), pods=pods)
    assert victims(answer) == {"c": "w2"}


def test_every_pod_of_a_workload_gets_its_room():
    pods = tuple(holder(f"p{number}", f"w{number}", 8_000) for number in range(4))
    nodes = [full(f"w{number}", **{f"p{number}": 8_000}) for number in range(4)]
    answer = asked(urgent(7_000, replicas=3), *nodes, node("w9"), pods=pods)
    assert answer.fits
    assert answer.workloads[0].nodes == {"w9": 1, "w0": 1, "w1": 1}
    assert victims(answer) == {"p0": "w0", "p1": "w1"}


def test_gang_that_does_not_fit_as_a_whole_evicts_no_pod():
    pods = tuple(holder(f"p{number}", f"w{number}", 8_000) for number in range(2))
    nodes = [full(f"w{number}", **{f"p{number}": 8_000}) for number in range(2)]
    workloads = urgent(7_000, replicas=3, labels=GANG) + urgent(7_000, replicas=1)
    answer = asked(workloads, *nodes, pods=pods)
    assert [found.placed for found in answer.workloads] == [0, 1]
    assert victims(answer) == {"p0": "w0"}
    assert asked(urgent(7_000, replicas=2, labels=GANG), *nodes, pods=pods).fits


def test_workloads_of_higher_priority_come_first_and_evict_no_other():
    low = read_workloads(manifest(9_000, replicas=2), classes=CLASSES)
    answer = asked(low + urgent(9_000), node("w1", pf(vfs=1)))
    assert [(found.placed, found.count) for found in answer.workloads] == [(1, 1), (0, 2)]
    assert not answer.evictions


def test_room_of_pods_that_are_being_deleted_is_waited_for():
    pods = (holder("ends", "w1", 8_000, terminating=True, **YOUNGER), holder("stays", "w1", 1_000, **OLDER))
    answer = asked(urgent(7_000), full("w1", ends=8_000, stays=1_000), pods=pods)
    assert answer.fits
    assert victims(answer) == {}
    pods = (holder("ends", "w1", 5_000, terminating=True, priority=2_000), holder("low", "w1", 4_000))
    answer = asked(urgent(7_000), full("w1", ends=5_000, low=4_000), pods=pods)
    assert victims(answer) == {"low": "w1"}


def test_pods_of_the_own_namespace_make_room_in_its_limit():
    limits = (NamespaceLimit(namespace="team", reserved_mbps=9_000),)
    pods = (holder("own", "w1", 8_000), holder("other", "w2", 8_000, namespace="x"))
    answer = asked(urgent(7_000), full("w1", own=8_000), full("w2", other=8_000), pods=pods, limits=limits)
    assert victims(answer) == {"own": "w1"}


def test_pod_whose_vfs_are_counted_wrong_fits_nowhere():
    [found] = asked(urgent(1_000, vfs=2), node("w1")).workloads
    why = "asks for 1 interfaces, but requests 2 of k8s-rdma.io/vf"
    assert (found.placed, found.obstacles) == (0, {why: 1})


def test_devices_of_exclusive_resources_are_counted_without_vf_resource():
    devices = {"example.com/nic": 1}
    reported = report("w1", pf(vfs=0, pools=devices), held={"a": 0})
    [allocation] = reported.allocations
    interfaces = tuple(replace(entry, pool="example.com/nic") for entry in allocation.interfaces)
    reported = replace(reported, allocations=(replace(allocation, interfaces=interfaces),))
    record = NodeRecord(name="w1", status=status_of(reported))
    pods = (holder("a", "w1", devices=devices),)
    limits = {"resources": {"limits": {"example.com/nic": "1"}}}
    answer = asked(urgent(0, pod={"containers": [limits]}), record, pods=pods, vf_resource=None)
    assert victims(answer) == {"a": "w1"}
    without = node("w2", pf(vfs=4))
    cluster = planned(record, without, pods=pods)
    workloads = urgent(0, pod={"containers": [limits]})
    assert headroom(cluster, workloads).shapes[0].pods == 0
    [found] = fit(cluster, workloads).workloads
    assert found.obstacles == {"too few devices of example.com/nic": 2}
    empty = replace(record, status=status_of(report("w1", pf(vfs=0, pools=devices))))
    assert headroom(planned(empty), workloads).shapes[0].pods == 1
