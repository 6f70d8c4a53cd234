"""Gangs: how many of their pods have a place, and how many it takes; until then their binds wait.

A bind waits with its place reserved, and is written when as many places of the gang are reserved as its
PodGroup says: no pod of a gang is bound while fewer pods are promised a place. This holds whatever filter was
asked, also in a process that has just become the one that binds and knows of no pod that another process
filtered.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from k8s_rdma.core.types import Gang, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.pod_store import PendingPod, PodStore
from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, ApiUncertainError, ApiUnreachableError, ClusterApi

if TYPE_CHECKING:
    _Waiting = dict[PodUid, asyncio.Future[None]]

T = TypeVar("T")
ApiError = ApiRefusedError | ApiUnreachableError | ApiUncertainError

_YOUNG_S = 10.0
"""A PodGroup's number is not read again while it is younger: a gang is filtered and bound within that."""
_FAILED_S = 1.0
"""Nor is one that could not be read: kube-scheduler may ask for its pods hundreds of times in a second."""

_MAX_KNOWN = 1000


@dataclass(slots=True, kw_only=True)
class Gangs:
    """The numbers of gangs' PodGroups, and how many of their members have a place.

    A member that asks for no interfaces counts as one that has a place: who schedules it is who counts it.
    clock: seconds, monotonic.
    """

    api: ClusterApi
    state: ClusterState
    pods: PodStore
    clock: Callable[[], float]
    _min_counts: OrderedDict[Gang, tuple[int | ApiError, float]] = field(default_factory=OrderedDict)
    _locks: WeakValueDictionary[Gang, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def placed(self, gang: Gang, added: Iterable[PodUid] = ()) -> int:
        """Count the gang's pods with a place: bound, being bound, or none of ours. added: further ones."""
        members = self.pods.members(gang).items()
        placed = {uid for uid, has_place in members if has_place or self.state.nodes_of(uid)}
        return len(placed.union(added))

    def member_count(self, gang: Gang) -> int | None:
        """The number of pods that the gang needs, as it was last read; None where that is not known."""
        count, _ = self._min_counts.get(gang, (None, 0.0))
        return count if isinstance(count, int) else None

    def judge(self, pod: PendingPod) -> PendingPod:
        """Return the pod, without a gang if its PodGroup is known to bind no pods together."""
        return pod if pod.gang is None or self.member_count(pod.gang) != 0 else replace(pod, gang=None)

    async def min_count(self, gang: Gang) -> int:
        """Read the number of pods that the gang needs, once for all concurrent callers; API_ERRORS."""
        async with self._locks.setdefault(gang, asyncio.Lock()):
            count, read_at = self._min_counts.get(gang, (0, float("-inf")))
            if self.clock() - read_at >= (_YOUNG_S if isinstance(count, int) else _FAILED_S):
                count = await self._read(gang)
            if isinstance(count, int):
                return count
            raise count.with_traceback(None)

    async def _read(self, gang: Gang) -> int | ApiError:
        count: int | ApiError
        try:
            count = await self.api.get_min_count(gang)
        except API_ERRORS as error:
            count = error
        self._min_counts[gang] = count, self.clock()
        self._min_counts.move_to_end(gang)
        if len(self._min_counts) > _MAX_KNOWN:
            del self._min_counts[first_of_greediest(self._min_counts, lambda cached: cached.namespace)]
        return count


def first_of_greediest(items: Iterable[T], namespace: Callable[[T], str]) -> T:
    """The first item of the namespace that has most: what one has too much of costs no other."""
    counts = Counter(map(namespace, items))
    greediest = max(counts, key=counts.__getitem__)
    return next(item for item in items if namespace(item) == greediest)


@dataclass(slots=True, kw_only=True)
class Quorum:
    """The binds that wait.

    pause_s: how long after the last one of its gang a bind waits for another. longest_s: at most altogether;
    what is reserved for it meanwhile is not available to other pods.
    """

    gangs: Gangs
    pause_s: float = 2.0
    longest_s: float = 5.0
    _waiting: dict[Gang, dict[PodUid, asyncio.Future[None]]] = field(default_factory=dict)
    _arrived: dict[Gang, float] = field(default_factory=dict)

    async def reached(self, gang: Gang, uid: PodUid, min_count: int) -> bool:
        """Wait for the pod's gang; to be called as soon as its place is reserved, which this relies on.

        Nothing is awaited after the last of them is there or the time is over, so that either all that wait
        go on, or the one whose time is over does not count for others any more once its caller gave up.
        """
        loop = asyncio.get_running_loop()
        began = self._arrived[gang] = loop.time()
        waiting = self._waiting.setdefault(gang, {})
        waiting[uid] = reached = loop.create_future()
        if self.gangs.placed(gang, waiting) >= min_count:
            for granted in waiting.values():
                if not granted.done():
                    granted.set_result(None)
        try:
            while not reached.done():
                end = min(self._arrived[gang] + self.pause_s, began + self.longest_s)
                if end <= loop.time():
                    return False
                await asyncio.wait([reached], timeout=end - loop.time())
            return True
        finally:
            self._leave(gang, uid, waiting)

    def _leave(self, gang: Gang, uid: PodUid, waiting: _Waiting) -> None:
        del waiting[uid]
        if not waiting:
            del self._waiting[gang], self._arrived[gang]
