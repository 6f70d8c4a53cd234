"""Whatever comes in between, room that was made stays the pod's, and is not lost for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.caches import scheduler_cache
from extender.node_server import PF0
from extender.world import interfaces
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid, Strategy
from k8s_rdma.extender.decision_log import DecisionLog
from k8s_rdma.extender.filter import FeasibilityChecker
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.nominated_pods import UNNAMED_S
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.preempt import Budgets, Preempting
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.extender.verdicts import Feasible
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION, read_request
from k8s_rdma.wire.extender import decode_preemption
from k8s_rdma.wire.node_facts import NodeFacts

MBPS = 10_000
VFS = 3
PODS = 7
NODES = (NodeName("w1"), NodeName("w2"))
NOMINATION_S = 100.0

pods = st.integers(0, PODS - 1)
nodes = st.sampled_from(NODES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), pods, nodes),
        st.tuples(st.just("preempt"), pods, st.booleans()),
        st.tuples(st.just("end"), pods, st.none()),
        st.tuples(st.just("start"), pods, st.none()),
        st.tuples(st.just("report"), st.sets(pods), nodes),
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 60]), st.none()),
    ),
    min_size=10,
    max_size=40,
)
wanted = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.sampled_from([0, 3_000, 5_000, 6_000]), min_size=1, max_size=2)),
    min_size=PODS,
    max_size=PODS,
)


class Told:
    """Node states that the test itself reports."""

    async def refresh(self, _nodes: Collection[NodeName], *, newer_than: float) -> None:
        del newer_than


@dataclass
class Play:
    """Actions of schedulers, nodes and users; `room` is the node and end of the room made, by its pod."""

    wanted: Sequence[tuple[int, list[int]]]
    now: float = 1000.0
    bound: dict[int, NodeName] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    room: dict[int, tuple[NodeName, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fit_cache = FitCache(Strategy.BINPACK, "numbers")
        self.cache = scheduler_cache(
            self.clock, fit_cache=fit_cache, nomination_s=NOMINATION_S, assume_s=1e-9
        )
        self.verdicts = FeasibilityChecker(cache=self.cache, clock=self.clock)
        self.preempting = Preempting(
            cache=self.cache,
            states=Told(),
            budgets=Budgets(),
            decision_log=DecisionLog(),
            clock=self.clock,
            ready=lambda: True,
        )
        for node in NODES:
            self.report((), node)

    def clock(self) -> float:
        return self.now

    def pod(self, index: int) -> PendingPod:
        priority, rates = self.wanted[index]
        request = read_request(interfaces(*rates), strict=True).request
        return PendingPod(
            uid=PodUid(f"p{index}"), namespace="d", name=f"p{index}", priority=priority, request=request
        )

    def bind(self, index: int, node: NodeName) -> None:
        """As filter and bind decide together."""
        pod = self.pod(index)
        if index in self.bound or index in self.ended:
            return
        [(_, verdict)] = self.verdicts.on(pod, [node])
        held = self.cache.nominations.against(node, pod.uid, pod.priority)
        situation = self.cache.state.snapshot_if(node, excluded=[pod.uid], holding=held)
        found = self.cache.fit_cache.place(pod.request, situation)
        assert isinstance(verdict, Feasible) is isinstance(found, Placement)
        if not isinstance(found, Placement):
            return
        reservation = Reservation(
            interfaces=found.interfaces, pod=pod.pod, created_at=self.now, stage=Stage.BOUND
        )
        self.cache.state.reserve(node, pod.uid, reservation)
        self.bound[index] = node
        self.cache.pods.on_update(self._view(pod, node))
        self.cache.nominations.on_delete(pod.uid)
        self.room.pop(index, None)
        self._outrank(index, node)

    def preempt(self, index: int, named: bool) -> None:
        """As the scheduler: evict on one of the nodes that are answered, and name it, or fail to."""
        pod = self.pod(index)
        if index in self.bound or index in self.ended:
            return
        lesser = {
            node: [f"p{o}" for o in self._on(node) if self.wanted[o][0] < pod.priority][-1:] for node in NODES
        }
        asked = {node: victims for node, victims in lesser.items() if victims}
        if not asked:
            return
        reply = asyncio.run(self.preempting.preempt(decode_preemption(_args(self, index, asked))))
        victims = {n: list(meta.uids) for n, meta in reply.node_name_to_meta_victims.items()}
        if not victims:
            return
        node = NodeName(max(victims))
        for uid in victims[node]:
            assert self.wanted[int(uid[1:])][0] < pod.priority
            self.end(int(uid[1:]), None)
        until = self.now + (NOMINATION_S if named else UNNAMED_S)
        before = self.room.get(index)
        if named:
            self.cache.nominations.nominated(pod, node)
            if before and before[0] == node:
                until = max(until, before[1])
        self._outrank(index, node)
        self.room[index] = node, until

    def end(self, index: int, _none: None) -> None:
        """The pod is gone; its node may hold its interfaces for a while."""
        if index in self.ended:
            return
        self.ended.add(index)
        self.room.pop(index, None)
        uid = PodUid(f"p{index}")
        self.cache.state.on_delete(uid, self.now)
        self.cache.pods.on_delete(uid)
        self.cache.nominations.on_delete(uid)

    def start(self, index: int, _none: None) -> None:
        """Its node gives the pod the promised interfaces."""
        if index in self.bound and index not in self.ended:
            self.started.add(index)
            self._report(self.bound[index])

    def report(self, kept: Collection[int], node: NodeName) -> None:
        """The node reports its given interfaces, and took back those of gone pods, but for some."""
        self.started -= self.ended - set(kept)
        self._report(node)

    def wait(self, seconds: int, _none: None) -> None:
        self.now += seconds
        self.cache.nominations.expire()
        self.room = {i: (node, until) for i, (node, until) in self.room.items() if until > self.now}

    def check(self) -> None:
        for node in NODES:
            used = self.cache.state.snapshots[node].used.get(PciAddress(PF0), NOTHING_USED)
            assert used.vfs <= VFS
            assert used.mbps <= MBPS
        for index, (node, _) in self.room.items():
            pod = self.pod(index)
            situation = self.preempting._snapshot(pod, node)
            assert self.preempting._fits(pod, situation), (index, node)

    def _on(self, node: NodeName) -> list[int]:
        here = [index for index, where in self.bound.items() if where == node and index not in self.ended]
        return sorted(here, key=lambda index: -self.wanted[index][0])

    def _outrank(self, index: int, node: NodeName) -> None:
        """A more important pod has come: the rest of the room there is no promise any more."""
        for other, (where, _) in list(self.room.items()):
            if where == node and self.wanted[other][0] < self.wanted[index][0]:
                del self.room[other]

    def _report(self, node: NodeName) -> None:
        self.now += 0.001
        reported = {
            PodUid(f"p{index}"): self.state_interfaces(index, node)
            for index in self.started
            if self.bound[index] == node
        }
        pf = Pf(name="enp3s0f0", pci=PciAddress(PF0), capacity_vfs=VFS, link_mbps=MBPS)
        facts = NodeFacts(
            generation=str(self.now),
            inventory=Inventory(node=node, pfs=(pf,)),
            reported=reported,
            foreign={},
            entries={},
        )
        self.cache.state.observe(node, facts, self.now)

    def state_interfaces(self, index: int, node: NodeName) -> Any:
        uid = PodUid(f"p{index}")
        reservation = self.cache.state.reservation(node, uid)
        return reservation.interfaces if reservation else self.cache.state.facts(node).reported[uid]

    def _view(self, pod: PendingPod, node: NodeName) -> PodView:
        return PodView(
            namespace="d",
            name=pod.name,
            uid=pod.uid,
            node=node,
            finished=False,
            annotations={ANNOTATION: "[]"},
            priority=pod.priority,
        )


def _args(play: Play, index: int, asked: dict[NodeName, list[str]]) -> bytes:
    priority, rates = play.wanted[index]
    name = f"p{index}"
    meta = {"name": name, "namespace": "d", "uid": name, "annotations": {ANNOTATION: interfaces(*rates)}}
    victims = {n: {"Pods": [{"UID": uid} for uid in uids]} for n, uids in asked.items()}
    pod = {"metadata": meta, "spec": {"priority": priority}}
    return json.dumps({"Pod": pod, "NodeNameToMetaVictims": victims}).encode()


@given(wanted=wanted, steps=steps)
@settings(max_examples=200)
def test_room_is_lost_to_more_important_pods_only_and_comes_free_in_the_end(wanted, steps):
    play = Play(wanted)
    for index in range(PODS // 2):
        play.bind(index, NODES[index % 2])
    for what, first, second in steps:
        getattr(play, what)(first, second)
        play.check()
    for index in range(PODS):
        play.end(index, None)
    for node in NODES:
        play.report((), node)
    play.wait(int(NOMINATION_S) + 1, None)
    assert not play.cache.nominations.nodes()
    for node in NODES:
        assert play.cache.state.snapshots[node].used.get(PciAddress(PF0), NOTHING_USED) == NOTHING_USED
