"""Decisions about pods: one line in the log and one count each, and the last refusal of each pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Self

import structlog

from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.types import PodUid
from k8s_rdma.extender.metrics import Reading, samples
from k8s_rdma.extender.settled_pods import SettledPods

FIT = "fit"
BOUND = "bound"
NOTHING_ASKED = "nothing_asked"
STARTING = "starting"
REFUSED = "refused"
SETTLED = "settled"
"""Reasons in addition to the values of `errors.Reason`."""

STARTING_MESSAGE = (
    "the RDMA scheduler extender is starting: it does not hold its lease, or has not listed the cluster's "
    "pods since; try again"
)

MAX_PODS = 10_000
MAX_AGE_S = 900.0
"""The limits of remembered refusals. A pod that is not tried for `MAX_AGE_S` has ended without an event."""

_DONE = frozenset({FIT, BOUND, NOTHING_ASKED, SETTLED})
_VERBS = frozenset({"filter", "bind"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one call of a verb.

    pod: `namespace/name`.
    reason: a value of `errors.Reason`, or a reason of this module, for example `FIT`.
    reasons: the number of candidates by reason, in the same words.
    node: the node of the call, if it was about a single one.
    error: the scheduler's error text if all candidates failed, or the fault of the pod itself.
    """

    verb: str
    pod: str
    uid: str
    reason: str
    candidates: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    node: str | None = None
    error: str = ""
    duration_s: float


class Refusal(str):
    """The scheduler's error text, with the reason in the words of `Outcome`."""

    reason: str

    def __new__(cls, text: str, reason: str) -> Self:
        """Return the text with its reason."""
        refusal = super().__new__(cls, text)
        refusal.reason = reason
        return refusal


class DecisionLog:
    """The outcomes so far.

    decisions: the number of calls by verb and reason.
    verdicts: the number of their candidates by verb and reason.
    on_outcome: called with each outcome.
    """

    def __init__(self, on_outcome: Callable[[Outcome], None] | None = None) -> None:
        self._on_outcome = on_outcome
        self.decisions: Counter[tuple[str, ...]] = Counter()
        self.verdicts: Counter[tuple[str, ...]] = Counter()

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        by_reason = "verb", "reason"
        return {
            "decisions_total": (
                "What verbs decided of pods.",
                "counter",
                lambda: samples(by_reason, self.decisions),
            ),
            "verdicts_total": (
                "Candidates of these decisions.",
                "counter",
                lambda: samples(by_reason, self.verdicts),
            ),
        }

    def record(self, outcome: Outcome) -> None:
        """Count the outcome and log it, as a warning if it has an error."""
        self.decisions[outcome.verb, outcome.reason] += 1
        for reason, count in outcome.reasons.items():
            self.verdicts[outcome.verb, reason] += count
        log = _log.warning if outcome.error else _log.info
        log(
            "decision",
            verb=outcome.verb,
            pod=outcome.pod,
            uid=outcome.uid,
            candidates=outcome.candidates,
            reason=outcome.reason,
            reasons=dict(outcome.reasons),
            node=outcome.node,
            error=outcome.error,
            duration_s=round(outcome.duration_s, 6),
        )
        if self._on_outcome is not None:
            self._on_outcome(outcome)


def main_reason(reasons: Mapping[str, int]) -> str:
    """Return the reason that sums up a pod's candidates: `fit` if one fits, else the commonest refusal."""
    if FIT in reasons:
        return FIT
    return max(reasons, key=lambda reason: reasons[reason], default=NOTHING_ASKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A refusal of a pod.

    refused_at: when this refusal came.
    first_at: when the first refusal came since the pod last fitted on a node.
    """

    outcome: Outcome
    refused_at: float
    first_at: float

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.outcome.pod.partition("/")[0]

    @property
    def causes(self) -> dict[str, int]:
        """The number of nodes for each reason; empty if it is an error."""
        return {} if self.outcome.error else dict(self.outcome.reasons)

    @property
    def why(self) -> str:
        """The cause in one line: the error, or the number of nodes for each reason."""
        outcome = self.outcome
        if outcome.error:
            return f"{outcome.node}: {outcome.error}" if outcome.node else outcome.error
        counts = sorted(outcome.reasons.items(), key=lambda item: (-item[1], item[0]))
        causes = ", ".join(f"{count} {reason}" for reason, count in counts)
        return f"0/{outcome.candidates} nodes: {causes or 'none was a candidate'}"


class LastRefusals:
    """The refusals by pod, limited in number.

    At the limit, the namespace with most of them loses the pods that were tried longest ago.

    settled: pods whose refusals are not kept, because a later one was decided before the pod was settled.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, settled: SettledPods | None = None) -> None:
        self._clock = clock
        self._settled = SettledPods() if settled is None else settled
        limits = PodLimits(pods=MAX_PODS, age_s=MAX_AGE_S)
        self._pods: PodTable[Attempt] = PodTable(limits, owner=lambda attempt: attempt.namespace)

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        help_text = "Time since the first refusal of the pod that waits longest; 0 while none waits."
        return {"longest_wait_seconds": (help_text, "gauge", self._longest_wait_s)}

    def _longest_wait_s(self) -> float:
        pending = self.pending()
        return round(self._clock() - pending[0].first_at, 3) if pending else 0.0

    def record(self, outcome: Outcome) -> None:
        """Keep a refusal of filter or bind; forget the pod's earlier refusals on a success."""
        if outcome.verb not in _VERBS:
            return
        uid = PodUid(outcome.uid)
        previous = self._pods.pop(uid)
        if outcome.reason in _DONE or uid in self._settled:
            return
        now = self._clock()
        attempt = Attempt(outcome=outcome, refused_at=now, first_at=previous.first_at if previous else now)
        self._pods.put(uid, attempt, now)
        self._pods.trim()

    def on_delete(self, uid: PodUid) -> None:
        """Settle a pod that is finished or gone: forget its refusals, and keep no later one."""
        self._settled.add(uid)
        self.forget(uid)

    def forget(self, uid: PodUid) -> None:
        """Forget the pod's refusals."""
        self._pods.pop(uid)

    def retain(self, listed: Collection[PodUid], listed_at: float) -> None:
        """Settle the pods that are gone: last tried before `listed_at`, and not listed."""
        for uid in self._pods.entered_before(listed_at):
            if uid not in listed:
                self.on_delete(uid)

    def last_of(self, uid: PodUid) -> Attempt | None:
        """Return the pod's last refusal, None if there is none."""
        return self._pods.by_uid.get(uid)

    def named(self, pod: str) -> PodUid | None:
        """Return the UID of the pod of that name (`namespace/name`) that was refused last, else None."""
        refused = self._pods.by_uid
        found = (uid for uid in reversed(refused) if refused[uid].outcome.pod == pod)
        return next(found, None)

    def pending(self) -> list[Attempt]:
        """Return the refusals of the pods that wait, the longest wait first."""
        for uid in self._pods.expired(self._clock()):
            self.forget(uid)
        return sorted(self._pods.by_uid.values(), key=lambda attempt: attempt.first_at)
