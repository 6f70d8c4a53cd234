"""Gangs: which pods belong to one, how many of them have a place, and how many it takes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from k8s_rdma.core.gang import Gang
from k8s_rdma.core.ids import PodUid
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.kube.api import (
    API_ERRORS,
    ApiRefusedError,
    ApiUncertainError,
    ApiUnreachableError,
    ClusterApi,
)
from k8s_rdma.wire.annotation import ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.kube.api import PodView

ApiError = ApiRefusedError | ApiUnreachableError | ApiUncertainError

_YOUNG_S = 10.0
"""A PodGroup's number is not read again while it is younger: a gang is filtered and bound within that."""
_FAILED_S = 1.0
"""Nor is one that could not be read: kube-scheduler may ask for its pods hundreds of times in a second."""

_MAX_KNOWN = 1000


@dataclass(slots=True, kw_only=True)
class Gangs:
    """The members of gangs as the pod watch shows them, and the numbers of their PodGroups.

    A member that asks for no interfaces counts as one that has a place: who schedules it is who counts it.
    clock: seconds, monotonic.
    """

    api: ClusterApi
    state: ClusterState
    clock: Callable[[], float]
    _members: dict[Gang, dict[PodUid, bool]] = field(default_factory=dict)
    _gangs: dict[PodUid, Gang] = field(default_factory=dict)
    _min_counts: OrderedDict[Gang, tuple[int | ApiError, float]] = field(default_factory=OrderedDict)
    _locks: WeakValueDictionary[Gang, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def see(self, pod: PodView) -> None:
        """The pod as the API server just told it, not finished."""
        if pod.gang is None:
            return
        bound = pod.node is not None or not pod.annotations.get(ANNOTATION)
        self._members.setdefault(pod.gang, {})[pod.uid] = bound
        self._gangs[pod.uid] = pod.gang

    def end(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        gang = self._gangs.pop(uid, None)
        if gang is None:
            return
        del self._members[gang][uid]
        if not self._members[gang]:
            del self._members[gang]

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Whoever is not among all pods that there are is gone."""
        for uid in [uid for uid in self._gangs if uid not in listed]:
            self.end(uid)

    def placed(self, gang: Gang, more: Iterable[PodUid] = ()) -> int:
        """How many of its pods have a place: bound, being bound, or none of ours. more: others that do."""
        members = self._members.get(gang, {})
        placed = {uid for uid, bound in members.items() if bound or self.state.nodes_of(uid)}
        return len(placed.union(more))

    def known(self, gang: Gang) -> int | None:
        """How many pods it takes, as it was last read; None where that is not known."""
        count, _ = self._min_counts.get(gang, (None, 0.0))
        return count if isinstance(count, int) else None

    def judge(self, pod: PendingPod) -> PendingPod:
        """The pod, of no gang where it is known that its PodGroup binds nobody together."""
        return pod if pod.gang is None or self.known(pod.gang) != 0 else replace(pod, gang=None)

    async def min_count(self, gang: Gang) -> int:
        """How many pods it takes; API_ERRORS. Read once for all that ask at the same time."""
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
            self._min_counts.popitem(last=False)
        return count
