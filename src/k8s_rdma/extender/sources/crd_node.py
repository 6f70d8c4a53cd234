"""One node as its agent publishes it: an `RdmaNode`, and a Lease that says that it holds.

A renewal of the Lease says that the report of the generation which it names was published, and was the
node's after the renewal before it was written (`agent.cluster.publisher`). So a node counts as heard
from when a renewal was seen that names what is known here, or what came before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.cluster.facts import NodeFacts, facts_of_status
from k8s_rdma.extender.sources.marks import NEVER
from k8s_rdma.kube.published import RdmaNodeView
from k8s_rdma.wire.rdma_node import decode_status

if TYPE_CHECKING:
    from k8s_rdma.extender.sources.marks import Marks
    from k8s_rdma.kube.api import LeaseView

UNPUBLISHED = "its agent publishes no RdmaNode"
UNRENEWED = "no Lease says yet that what its agent publishes holds"
_AGE_STEP_S = 10

REPORTS_AT_ONCE = 30
REPORTS_PER_S = 1.0
"""Of one node, once it has published so many at once. Taking the largest report that is admissible keeps a
processor busy for 0.07 s, and the nodes share one."""
_MOST_DIGITS = 20
"""Of 64 bits."""


@dataclass(slots=True, kw_only=True)
class WatchedNode:
    """What is known of a node. Times are seconds of the extender's clock.

    learned: whether there is a Node object. published: whether there is an `RdmaNode`.
    facts: of its report; None where nothing may be concluded from it.
    heard_at: when the last renewal was seen that speaks of the report that is known, or of one before it.
    asked_at: after that time the report that is known was the node's.
    told: why the state was told last that the node cannot be read; empty when it can.
    deferred: the last report, where the node publishes too often for it to be taken yet. Until it is, what is
        known is of the one before, which renewals that name the later one do not confirm.
    """

    learned: bool = False
    published: bool = False
    facts: NodeFacts | None = None
    heard_at: float = NEVER
    asked_at: float = NEVER
    told: str = ""
    deferred: RdmaNodeView | None = None
    _why: str = UNPUBLISHED
    _generation: str = ""
    _version: str = ""
    _lease_version: str = ""
    _names: str = ""
    _named_at: float = NEVER
    _renewed_at: float = NEVER
    _heard: bool = True
    _allowance: float = 0.0
    _allowed_at: float = NEVER

    def is_any(self) -> bool:
        """Whether there is anything of the node but a Lease of its name."""
        return self.learned or self.published

    def admit(self, view: RdmaNodeView, now: float) -> bool:
        """Whether a report may be taken now; else it is deferred, in the place of one before."""
        earned = (now - self._allowed_at) * REPORTS_PER_S
        self._allowance, self._allowed_at = min(REPORTS_AT_ONCE, self._allowance + earned), now
        admitted = self._allowance >= 1
        self._allowance -= admitted
        self.deferred = None if admitted else view
        return admitted

    def publish(self, view: RdmaNodeView) -> bool:
        """Take what is published; whether that is something new."""
        if self.published and self._version == view.version:
            return False
        self.published, self._version = True, view.version
        self.facts, self._why, self._generation = None, UNPUBLISHED, ""
        if view.status:
            self._conclude(view)
        self._hear()
        return True

    def unpublish(self) -> None:
        """There is no `RdmaNode` any more."""
        self.published, self._version, self._generation = False, "", ""
        self.facts, self._why, self.heard_at, self.deferred = None, UNPUBLISHED, NEVER, None

    def renew(self, lease: LeaseView, now: float, marks: Marks) -> bool:
        """Take a renewal that is seen now; False when it was seen before."""
        if lease.version == self._lease_version:
            return False
        if _is_count(self._lease_version):
            self._named_at = max(self._named_at, marks.before(int(self._lease_version)))
        self._renewed_at, self._names, self._lease_version = now, lease.holder, lease.version
        self._heard = False
        self._hear()
        return True

    def is_stale(self, now: float, stale_s: float) -> bool:
        """Whether it was not heard from for so long."""
        return now - self.heard_at > stale_s

    def why(self, now: float, stale_s: float) -> str:
        """Why the node cannot be read; empty when it can. Ages in whole tens, so that few differ."""
        if self.facts is None:
            return self._why
        if self.heard_at == NEVER:
            return UNRENEWED
        if not self.is_stale(now, stale_s):
            return ""
        age_s = int((now - self.heard_at) // _AGE_STEP_S * _AGE_STEP_S)
        return f"its agent was not heard from for {age_s} s"

    def _conclude(self, view: RdmaNodeView) -> None:
        try:
            status = decode_status(view.status)
            self._generation = status.generation
            self.facts = facts_of_status(status, view.node)
        except MalformedError as error:
            self._why = error.message

    def _hear(self) -> None:
        """Take the last renewal, if it was not heard so far, and speaks of what is known."""
        if not self._heard and covers(self._generation, self._names):
            self._heard = True
            self.heard_at, self.asked_at = self._renewed_at, self._named_at


def covers(known: str, named: str) -> bool:
    """Whether a report of that generation is the named one or came after it, of the same observer."""
    (epoch, _, counter), (named_epoch, _, named_counter) = known.rpartition("."), named.rpartition(".")
    if epoch != named_epoch or not (_is_count(counter) and _is_count(named_counter)):
        return known == named != ""
    return int(counter) >= int(named_counter)


def _is_count(text: str) -> bool:
    """Whether it is a number as Kubernetes and agents count; a Lease may name anything, at any length."""
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()
