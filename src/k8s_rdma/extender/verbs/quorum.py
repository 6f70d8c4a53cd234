"""Have the binds of a gang wait for one another, until as many have a place as its PodGroup says.

A bind comes here with its place reserved, and is written when enough others are, too: none of a gang is bound
of which fewer are promised a place. This holds whatever was told to filter, also of a process that has just
come to bind and knows of none that another one filtered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.gang import Gang
from k8s_rdma.core.ids import PodUid
from k8s_rdma.extender.cluster.gangs import Gangs

if TYPE_CHECKING:
    _Waiting = dict[PodUid, asyncio.Future[None]]


@dataclass(slots=True, kw_only=True)
class Quorum:
    """The binds that wait.

    pause_s: how long after the last one of its gang a bind waits for another. longest_s: at most altogether;
    what is reserved for it meanwhile nobody else gets.
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
            for each in waiting.values():
                if not each.done():
                    each.set_result(None)
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
