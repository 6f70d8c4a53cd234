"""What became of the last attempt to schedule each pod, for people who ask."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PodUid
from k8s_rdma.extender.telling.outcomes import BOUND, FIT, NOTHING_ASKED, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_PODS = 10_000
MAX_AGE_S = 900.0
"""As in `waiting`: a pod that nobody has tried for so long was not seen to end."""

_GOOD = frozenset({FIT, BOUND, NOTHING_ASKED})
_VERBS = frozenset({"filter", "bind"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A refusal; at, first_at: of this one, and of the first since the pod last fitted somewhere."""

    outcome: Outcome
    at: float
    first_at: float

    @property
    def why(self) -> str:
        """In one line: the error, or how many nodes there are of each cause."""
        told = self.outcome
        if told.error:
            return f"{told.node}: {told.error}" if told.node else told.error
        counts = sorted(told.reasons.items(), key=lambda item: (-item[1], item[0]))
        causes = ", ".join(f"{count} {reason}" for reason, count in counts)
        return f"0/{told.candidates} nodes: {causes or 'none was a candidate'}"


class Attempts:
    """The refusals by pod; bounded, those tried longest ago are forgotten."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pods: dict[PodUid, Attempt] = {}

    def heard(self, outcome: Outcome) -> None:
        """A verb was answered; what filter and bind say counts."""
        if outcome.verb not in _VERBS:
            return
        uid = PodUid(outcome.uid)
        before = self._pods.pop(uid, None)
        if outcome.reason in _GOOD:
            return
        now = self._clock()
        self._pods[uid] = Attempt(outcome=outcome, at=now, first_at=before.first_at if before else now)
        while len(self._pods) > MAX_PODS:
            del self._pods[next(iter(self._pods))]

    def settled(self, uid: PodUid) -> None:
        """The pod is bound, or gone."""
        self._pods.pop(uid, None)

    def settle_missing(self, listed: Collection[PodUid], since: float) -> None:
        """The pods that were last tried before that time and are not listed are gone."""
        for uid in [uid for uid, attempt in self._pods.items() if attempt.at < since and uid not in listed]:
            self.settled(uid)

    def of(self, uid: PodUid) -> Attempt | None:
        """The pod's last refusal."""
        return self._pods.get(uid)

    def named(self, pod: str) -> PodUid | None:
        """The UID of the pod of that name (`namespace/name`) that was refused last."""
        found = (uid for uid, attempt in reversed(self._pods.items()) if attempt.outcome.pod == pod)
        return next(found, None)

    def pending(self) -> list[Attempt]:
        """The pods that wait, the longest first."""
        limit = self._clock() - MAX_AGE_S
        for uid in [uid for uid, attempt in self._pods.items() if attempt.at < limit]:
            self.settled(uid)
        return sorted(self._pods.values(), key=lambda attempt: attempt.first_at)
