"""Refusals of pods in a row, and whether they are expected to end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import TYPE_CHECKING

from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, Reason

if TYPE_CHECKING:
    from k8s_rdma.core.types import PodUid

GAP_S = 300.0
"""The longest pause within a streak of refusals; kubelet tries again within seconds to minutes."""

_MAX_PODS = 1024
"""The limit of remembered pods; the one with the oldest refusal makes room for a new one."""

_WILL_NOT_FIT_HERE = frozenset(
    {
        Reason.STALE_PLACEMENT,
        Reason.INSUFFICIENT,
        Reason.EXCEEDS_CAPACITY,
        Reason.NO_SUCH_PF,
        Reason.DRIVER_REFUSES,
        Reason.NO_RDMA,
    }
)


class Refusals:
    """The refusals of each pod since it last got its interfaces."""

    def __init__(self) -> None:
        """Start without refusals."""
        self._streaks: PodTable[Streak] = PodTable(PodLimits(pods=_MAX_PODS))

    def note(self, uid: PodUid, reason: Reason, now: float) -> Streak:
        """Add a refusal, and return its streak."""
        kind, previous = outlook(reason), self._streaks.pop(uid)
        goes_on = previous is not None and previous.outlook is kind and now - previous.last <= GAP_S
        streak = Streak(outlook=kind, started_at=now, last=now)
        if previous is not None and goes_on:
            streak = replace(previous, last=now)
        self._streaks.put(uid, streak)
        self._streaks.trim()
        return streak

    def streak_of(self, uid: PodUid, now: float) -> Streak | None:
        """Return the pod's current streak, if any."""
        streak = self._streaks.by_uid.get(uid)
        return streak if streak is not None and now - streak.last <= GAP_S else None

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that got its interfaces, or is gone."""
        self._streaks.pop(uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """Refusals of one outlook in a row; times by a monotonic clock, in seconds."""

    outlook: Outlook
    started_at: float
    last: float

    @property
    def lasts_s(self) -> float:
        """The time from the first refusal to the last."""
        return self.last - self.started_at


@unique
class Outlook(Enum):
    """The expected end of a refusal.

    PASSING: it ends by itself (CNI error 11, try again later). LASTING: another node may have the resources
    that this one lacks. UNKNOWN: the pod or the configuration has to change, or something is broken.
    """

    PASSING = "passing"
    LASTING = "lasting"
    UNKNOWN = "unknown"


def outlook(reason: Reason) -> Outlook:
    """Classify a refusal by its reason."""
    if STATUS[reason].cni == TRY_AGAIN_LATER:
        return Outlook.PASSING
    return Outlook.LASTING if reason in _WILL_NOT_FIT_HERE else Outlook.UNKNOWN
