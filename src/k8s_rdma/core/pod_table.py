"""Bounded tables of pods: what is remembered of pods takes so much memory, whatever their owners do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.core.types import PodUid

_Value = TypeVar("_Value")


class _Entry(NamedTuple, Generic[_Value]):
    value: _Value
    owner: str
    weight: int
    entered_at: float


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

    Beyond a limit the entries of the owner that takes most are in excess, the oldest first, because what one
    namespace has too much of costs no other. Without owners it is the oldest of all.
    """

    def __init__(
        self,
        limits: PodLimits,
        *,
        weigh: Callable[[_Value], int] = lambda _: 1,
        owner: Callable[[_Value], str] = lambda _: "",
    ) -> None:
        """Begin empty. weigh: what a pod takes. owner: for example its namespace."""
        self.limits = limits
        self._weigh = weigh
        self._owner = owner
        self._entries: dict[PodUid, _Entry[_Value]] = {}
        self._owners: dict[str, dict[PodUid, None]] = {}
        self._weights: Counter[str] = Counter()
        self._weight = 0

    def __len__(self) -> int:
        """Return the number of pods."""
        return len(self._entries)

    def __iter__(self) -> Iterator[PodUid]:
        """Iterate over the pods, the oldest entry first."""
        return iter(self._entries)

    def __reversed__(self) -> Iterator[PodUid]:
        """Iterate over the pods, the latest entry first."""
        return reversed(self._entries)

    def __contains__(self, uid: object) -> bool:
        """Report whether the pod is in the table."""
        return uid in self._entries

    def __getitem__(self, uid: PodUid) -> _Value:
        """Return the pod's value; KeyError without one."""
        return self._entries[uid].value

    def get(self, uid: PodUid) -> _Value | None:
        """Return the pod's value, None without one."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.value

    def values(self) -> Iterator[_Value]:
        """Iterate over the values, the oldest entry first."""
        return (entry.value for entry in self._entries.values())

    def items(self) -> Iterator[tuple[PodUid, _Value]]:
        """Iterate over pods and values, the oldest entry first."""
        return ((uid, entry.value) for uid, entry in self._entries.items())

    def put(self, uid: PodUid, value: _Value, entered_at: float = 0.0) -> None:
        """Put a value, as the latest entry. entered_at: s."""
        self.pop(uid)
        owner, weight = self._owner(value), self._weigh(value)
        self._entries[uid] = _Entry(value, owner, weight, entered_at)
        self._owners.setdefault(owner, {})[uid] = None
        self._weights[owner] += weight
        self._weight += weight

    def replace(self, uid: PodUid, value: _Value) -> None:
        """Put a value of the same owner and weight in place of the pod's; its order and age stay."""
        self._entries[uid] = self._entries[uid]._replace(value=value)

    def pop(self, uid: PodUid) -> _Value | None:
        """Take out the pod; return its value, None without one."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return None
        owned = self._owners[entry.owner]
        del owned[uid]
        self._weights[entry.owner] -= entry.weight
        self._weight -= entry.weight
        if not owned:
            del self._owners[entry.owner], self._weights[entry.owner]
        return entry.value

    def excess(self) -> PodUid | None:
        """Return the pod that has to go first, None within the limits."""
        if len(self._entries) <= self.limits.pods and self._weight <= self.limits.weight:
            return None
        greediest = max(self._weights, key=self._weights.__getitem__)
        return next(iter(self._owners[greediest]))

    def trim(self) -> None:
        """Take out pods until the table is within its limits, for a table that no index depends on."""
        while (uid := self.excess()) is not None:
            self.pop(uid)

    def entered_before(self, time: float) -> list[PodUid]:
        """List the pods whose entries are from before that time."""
        return [uid for uid, entry in self._entries.items() if entry.entered_at < time]

    def expired(self, now: float) -> list[PodUid]:
        """List the pods whose entries are older than the limit."""
        return self.entered_before(now - self.limits.age_s)
