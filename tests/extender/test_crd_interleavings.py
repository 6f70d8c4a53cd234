"""Whatever comes late: an ended pod's interfaces are free only by a look of its agent after its end.

One agent that looks, publishes and renews in this order, as `agent.cluster.publisher` does; two
watches that lag behind it by any time, each by its own; an extender that asks for the API server's version
now and then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.node_server import PF0, report
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.kube.informer import Changed
from k8s_rdma.kube.published_api import LeaseView, RdmaNodeView
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma.wire.report import NodeReport

W1 = NodeName("w1")
P = PodUid("p")
STEPS = (
    ("look",),
    ("publish",),
    ("renew",),
    ("look", "publish", "renew"),
    ("status",),
    ("lease",),
    ("ask",),
    ("answer",),
    ("ask", "answer"),
    ("end",),
)
steps = st.lists(st.sampled_from(STEPS), min_size=10, max_size=60).map(
    lambda groups: [step for group in groups for step in group]
)
HELD = Reservation(
    interfaces=(PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=1000, max_tx_rate_mbps=0),),
    pod="default/p",
    created_at=0.0,
    stage=Stage.BOUND,
)


@dataclass
class World:
    """now: counts steps. looked_at: when the agent looked for the report of a generation."""

    now: float = 1.0
    version: int = 100
    generation: int = 0
    looked: NodeReport | None = None
    published: NodeReport | None = None
    looks: dict[str, float] = field(default_factory=dict)
    renewals: dict[str, float] = field(default_factory=dict)
    statuses: deque[RdmaNodeView] = field(default_factory=deque)
    leases: deque[LeaseView] = field(default_factory=deque)
    asked: tuple[float, int] | None = None
    ended_at: float | None = None

    def __post_init__(self) -> None:
        self.state = ClusterState()
        self.states = RdmaNodeInformer(
            self.state,
            None,  # without watches
            lambda: self.now,
            stale_s=1e9,
            namespace="k8s-rdma",
        )
        self.states.learn(W1, ())
        self.state.reserve(W1, P, HELD)

    def step(self, name: str) -> None:
        self.now += 1
        getattr(self, f"_{name}")()
        if self.ended_at is not None and self.state.reservation(W1, P) is None:
            assert self.latest_look() > self.ended_at

    def latest_look(self) -> float:
        """Of the looks whose report, or one after it, is known here, and was said to hold."""
        facts = self.state.facts(W1)
        known = int(facts.generation.partition(".")[2])
        return max(at for named, at in self.renewals.items() if int(named.partition(".")[2]) <= known)

    def _look(self) -> None:
        self.generation += 1
        self.looked = report("w1", generation=self.generation)
        self.looks[self.looked.generation] = self.now

    def _publish(self) -> None:
        if self.looked is None or self.looked is self.published:
            return
        self.version += 1
        self.published = self.looked
        status = encode_status(status_of(self.looked))
        self.statuses.append(RdmaNodeView(node=W1, version=str(self.version), status=status))

    def _renew(self) -> None:
        """Only a published report is renewed, and not twice by one look."""
        if self.published is None or self.looked is not self.published:
            return
        self.version += 1
        named = self.published.generation
        lease = LeaseView(
            namespace="k8s-rdma", name=W1, holder=named, duration_s=40, version=str(self.version)
        )
        self.leases.append(lease)
        self.looked = None

    def _status(self) -> None:
        if self.statuses:
            self.states.on_event(Changed(self.statuses.popleft()))

    def _lease(self) -> None:
        if self.leases:
            lease = self.leases.popleft()
            self.renewals[lease.holder] = self.looks[lease.holder]
            self.states.take_lease(Changed(lease))

    def _ask(self) -> None:
        """The version is of some moment between question and answer: of this one, here."""
        if self.asked is None:
            self.asked = self.now, self.version

    def _answer(self) -> None:
        if self.asked is not None:
            self.states.marks.add(*self.asked)
            self.asked = None

    def _end(self) -> None:
        if self.ended_at is None:
            self.ended_at = self.now
            self.state.on_delete(P, self.now)


LOOKED_BEFORE_AND_RENEWED_AFTER_THE_END = (
    "look publish renew status lease look end ask answer publish renew status lease"
)


@settings(max_examples=500)
@example(LOOKED_BEFORE_AND_RENEWED_AFTER_THE_END.split())
@given(steps)
def test_interfaces_of_an_ended_pod_are_free_only_by_a_report_after_its_end(taken: list[str]) -> None:
    world = World()
    for step in taken:
        world.step(step)


@given(steps)
def test_no_room_is_lost_for_ever(taken: list[str]) -> None:
    """Whatever came before: once the watches have caught up, two renewals later it is free."""
    world = World()
    for step in taken:
        world.step(step)
    world.step("end")
    for _ in range(2):
        for step in ("answer", "ask", "answer", "look", "publish", "renew"):
            world.step(step)
        while world.statuses or world.leases:
            world.step("status")
            world.step("lease")
    assert world.state.reservation(W1, P) is None
    assert sum(used.vfs for used in world.state.snapshots[W1].used.values()) == 0
