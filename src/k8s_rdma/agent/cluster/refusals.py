"""How long pods have been refused, and whether the cause can go away while they stay on this node."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import TYPE_CHECKING

from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, Reason

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PodUid

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

GAP_S = 300.0
"""After so long without a refusal the next one begins anew; kubelet tries again within seconds to minutes."""

_MOST = 1024
"""Pods that are remembered; the one that was refused longest ago makes room."""


@unique
class Outlook(Enum):
    """What is to be expected of a refusal.

    PASSING: it goes away by itself, as the runtime is told (CNI error 11). LASTING: another node may have
    what this one has not. OTHER: the pod or the configuration has to change, or something is broken.
    """

    PASSING = "passing"
    LASTING = "lasting"
    OTHER = "other"


def outlook(reason: Reason) -> Outlook:
    """What is to be expected of a refusal for that reason."""
    if STATUS[reason].cni == TRY_AGAIN_LATER:
        return Outlook.PASSING
    return Outlook.LASTING if reason in _WILL_NOT_FIT_HERE else Outlook.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """Refusals of one outlook in a row; times by a monotonic clock, in seconds."""

    outlook: Outlook
    since: float
    last: float

    @property
    def lasts_s(self) -> float:
        """From the first to the last."""
        return self.last - self.since


class Refusals:
    """The refusals of each pod since it last got what it asks for."""

    def __init__(self) -> None:
        """Nobody was refused."""
        self._streaks: OrderedDict[PodUid, Streak] = OrderedDict()

    def note(self, uid: PodUid, reason: Reason, now: float) -> Streak:
        """Add a refusal; the streak that it belongs to."""
        kind, before = outlook(reason), self._streaks.pop(uid, None)
        goes_on = before is not None and before.outlook is kind and now - before.last <= GAP_S
        streak = Streak(outlook=kind, since=now, last=now)
        if before is not None and goes_on:
            streak = replace(before, last=now)
        self._streaks[uid] = streak
        if len(self._streaks) > _MOST:
            self._streaks.popitem(last=False)
        return streak

    def of(self, uid: PodUid, now: float) -> Streak | None:
        """The streak that goes on, if one does."""
        streak = self._streaks.get(uid)
        return streak if streak is not None and now - streak.last <= GAP_S else None

    def forget(self, uid: PodUid) -> None:
        """It has what it asks for, or is gone."""
        self._streaks.pop(uid, None)
