"""What was decided of a pod, told once: a line in the log, and in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

FIT = "fit"
BOUND = "bound"
NOTHING_ASKED = "nothing_asked"
STARTING = "starting"
REFUSED = "refused"
"""Reasons beside those of `errors.Reason`."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one call of a verb.

    pod: `namespace/name`. reason: a value of `errors.Reason`, or one of those above. reasons: how many of the
    candidates were judged so, by the same words. node: the one that it was about. error: what the scheduler
    is told where all failed, or what is wrong with the pod itself, whatever the node.
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
    """What the scheduler is told, and the reason in the words of `Outcome`."""

    reason: str

    def __new__(cls, text: str, reason: str) -> Self:
        """The text with its reason."""
        made = super().__new__(cls, text)
        made.reason = reason
        return made


class Outcomes:
    """The outcomes so far. decisions: by verb and reason; verdicts: candidates, by the same.

    heard: is told of each.
    """

    def __init__(self, heard: Callable[[Outcome], None] | None = None) -> None:
        self._heard = heard
        self.decisions: Counter[tuple[str, ...]] = Counter()
        self.verdicts: Counter[tuple[str, ...]] = Counter()

    def tell(self, outcome: Outcome) -> None:
        """Count it and log it; a warning when there is an error."""
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
        if self._heard is not None:
            self._heard(outcome)


def main_reason(reasons: Mapping[str, int]) -> str:
    """What a pod's candidates come to: `fit` if one fits, or what most of them are refused for."""
    if FIT in reasons:
        return FIT
    return max(reasons, key=lambda reason: reasons[reason], default=NOTHING_ASKED)
