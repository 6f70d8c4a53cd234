"""Writes to pods, of Bindings and of changed rates: one at a time of each pod, and settled if unanswered.

A write is made of one version of its pod, so that any later write to the pod refuses it. If it gets no
answer, the pod is touched, because a write of an earlier version takes no effect after that
(`extender.leadership`). If the API server refuses the touch or does not answer, the reservation stands until
the pod is read at a time when the write can no longer be under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import structlog

from k8s_rdma.kube.errors import API_ERRORS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.types import NodeName, PodUid
    from k8s_rdma.extender.leadership import Fence, FencedPod

_Answer = TypeVar("_Answer")

_READ_AGAIN_S = 5.0
_POLL_S = 0.05

_log = structlog.get_logger()


class PodWrite(Protocol):
    """A write of this process to a pod, and the reservation that is held for it."""

    @property
    def kind(self) -> str:
        """The beginning of the log's events: `bind` or `rate_change`."""
        ...

    @property
    def written_pod(self) -> Pod:
        """The pod."""
        ...

    @property
    def node(self) -> NodeName:
        """The node on which a reservation is held for the write."""
        ...

    def stands(self) -> bool:
        """Report whether the write may still take effect, as far as this process knows."""
        ...

    def doubt(self) -> None:
        """Keep the reservation, because the write got no answer."""
        ...

    def settle(self, fenced_pod: FencedPod, *, late: bool) -> None:
        """Settle the write by the pod's current state.

        late: the write cannot be under way any more.
        """
        ...


class PodWriter:
    """Orders writes, and settles those in doubt; an async context manager that owns the settling.

    The state is in memory only. The next leader counts the written placements, and must not make promises
    while a write is `undecided` and not fenced.

    doubts: the tasks that settle writes without an answer, one for each write.
    """

    def __init__(
        self, fence: Fence, clock: Callable[[], float], *, api_request_timeout_s: float = 60.0
    ) -> None:
        """Begin without writes.

        clock: seconds, monotonic.
        api_request_timeout_s: how long a write without an answer may still take effect if pods may not be
            touched.
        """
        self._fence = fence
        self._clock = clock
        self._api_request_timeout_s = api_request_timeout_s
        self._locks: WeakValueDictionary[PodUid, asyncio.Lock] = WeakValueDictionary()
        self._tasks = asyncio.TaskGroup()
        self.doubts: dict[asyncio.Task[None], PodWrite] = {}
        self._under_way: list[PodWrite] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self.doubts:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def undecided(self) -> list[str]:
        """List the pods, `namespace/name`, to which a write of this process may yet take effect."""
        in_doubt = [write for write in self.doubts.values() if write.stands()]
        return sorted({write.written_pod.full_name for write in (*self._under_way, *in_doubt)})

    async def finish(self, within_s: float) -> None:
        """Return when no write is undecided any more, or after that time; log the remaining writes then."""
        began = self._clock()
        while self.undecided() and self._clock() - began < within_s:  # noqa: ASYNC110  it ends in many places
            await asyncio.sleep(min(_POLL_S, within_s))
        if undecided := self.undecided():
            _log.error(
                "binds_left_in_doubt", pods=undecided, api_request_timeout_s=self._api_request_timeout_s
            )

    def lock(self, uid: PodUid) -> asyncio.Lock:
        """Return the lock of a pod: one write of a pod at a time."""
        return self._locks.setdefault(uid, asyncio.Lock())

    async def track(self, write: PodWrite, work: Awaitable[_Answer]) -> _Answer:
        """Count a write as under way until its work ends; after a cancellation its outcome is unknown."""
        self._under_way.append(write)
        try:
            answer = await work
        except asyncio.CancelledError:
            write.doubt()
            raise
        self._under_way.remove(write)
        return answer

    def settle_later(self, write: PodWrite) -> None:
        """Read the pod until the write has taken effect or can no longer take effect."""
        task = self._tasks.create_task(self._settle(write))
        self.doubts[task] = write
        task.add_done_callback(self.doubts.pop)
        _log.warning(f"{write.kind}_in_doubt", pod=write.written_pod.full_name, node=write.node)

    async def _settle(self, write: PodWrite) -> None:
        pod, late_at = write.written_pod, self._clock() + self._api_request_timeout_s
        while write.stands():
            await asyncio.sleep(min(_READ_AGAIN_S, self._api_request_timeout_s))
            async with self.lock(pod.uid):
                # If it does not stand, the pod was seen bound or gone, or a later write took over.
                if write.stands():
                    late = self._clock() >= late_at
                    try:
                        fenced_pod = await self._fence.read(pod)
                    except API_ERRORS as error:
                        _log.warning(
                            f"{write.kind}_still_in_doubt",
                            pod=pod.full_name,
                            node=write.node,
                            error=error.message,
                        )
                    else:
                        write.settle(fenced_pod, late=late)
