"""Bounded tables of pods: the memory for pods is limited, no matter what their owners do."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.types import PodUid

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLimits:
    """The limits of a table.

    pods: the number of pods.
    weight: the sum of what the pods take, for example interfaces or characters of annotations.
    age_s: the time after which an entry is of no use.
    """

    pods: int
    weight: float = inf
    age_s: float = inf


class PodTable(Generic[_Value]):
    """One value for each pod, in the order in which they were put.

    If a limit is exceeded, the entries of the owner that takes most are in excess, the oldest first, because
    one namespace's excess must not cost others. Without owners it is the oldest of all.

    by_uid: the values; to be read only.
    """

    __slots__ = ("_entered", "_limits", "_owner", "_owners", "_weigh", "_weight", "_weights", "by_uid")

    def __init__(
        self,
        limits: PodLimits,
        *,
        weigh: Callable[[_Value], int] | None = None,
        owner: Callable[[_Value], str] | None = None,
    ) -> None:
        """Begin empty. weigh: the weight of a pod, by default 1. owner: for example its namespace."""
        self._limits = limits
        self._weigh = weigh
        self._owner = owner
        self.by_uid: dict[PodUid, _Value] = {}
        self._entered: dict[PodUid, float] = {}
        self._owners: dict[str, dict[PodUid, int]] = {}
        self._weights: dict[str, int] = {}
        self._weight = 0

    def put(self, uid: PodUid, value: _Value, entered_at: float | None = None) -> None:
        """Put a value, as the latest entry. entered_at: s; None for an entry without age."""
        if uid in self.by_uid:
            self.pop(uid)
        self.by_uid[uid] = value
        if entered_at is not None:
            self._entered[uid] = entered_at
        weight = 1 if self._weigh is None else self._weigh(value)
        self._weight += weight
        if self._owner is not None:
            owner = self._owner(value)
            pods = self._owners.get(owner)
            if pods is None:
                pods = self._owners[owner] = {}
                self._weights[owner] = 0
            pods[uid] = weight
            self._weights[owner] += weight

    def replace(self, uid: PodUid, value: _Value) -> None:
        """Put a value of the same owner and weight in place of the pod's; its order and age stay."""
        self.by_uid[uid] = value

    def pop(self, uid: PodUid) -> _Value | None:
        """Take out the pod; return its value, if it is there."""
        if uid not in self.by_uid:
            return None
        value = self.by_uid.pop(uid)
        if self._entered:
            self._entered.pop(uid, None)
        if self._owner is None:
            self._weight -= 1 if self._weigh is None else self._weigh(value)
            return value
        owner = self._owner(value)
        pods = self._owners[owner]
        weight = pods.pop(uid)
        self._weight -= weight
        self._weights[owner] -= weight
        if not pods:
            del self._owners[owner], self._weights[owner]
        return value

    def excess(self) -> PodUid | None:
        """Return the pod that has to go first, if the table exceeds a limit."""
        if len(self.by_uid) <= self._limits.pods and self._weight <= self._limits.weight:
            return None
        if self._owner is None:
            return next(iter(self.by_uid))
        greediest = max(self._weights, key=self._weights.__getitem__)
        return next(iter(self._owners[greediest]))

    def trim(self) -> None:
        """Take out pods until the table is within its limits, for a table that no index depends on."""
        while (uid := self.excess()) is not None:
            self.pop(uid)

    def entered_before(self, time: float) -> list[PodUid]:
        """List the pods whose entries are from before that time."""
        return [uid for uid, entered_at in self._entered.items() if entered_at < time]

    def expired(self, now: float) -> list[PodUid]:
        """List the pods whose entries are older than the limit."""
        return self.entered_before(now - self._limits.age_s)
