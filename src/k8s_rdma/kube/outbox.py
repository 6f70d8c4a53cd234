"""What is to be written to the API server when there is time: one thing at a time, nobody waits for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from k8s_rdma.kube.time import Time

    Write = Callable[[], Awaitable[None]]
    Key = tuple[str, str, str]

_log = structlog.get_logger()

MOST = 512
"""A node has 110 pods, and each at most a status, an eviction and an event or two."""

SETTLE_S = 0.2
"""Before what came first is written: what replaces it, such as a pod's next network, is often on its way."""

PACE_S = 0.05
"""Between two writes: a whole node's pods must not be a burst for the API server."""

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
_GONE = 404
_TOO_MANY_REQUESTS = 429


class Outbox:
    """Writes by key (what it is, of which object, and which of several), of each key the latest alone.

    They are made in the order in which their keys came; what fails is tried again after all others, as it
    may be its own fault.
    """

    def __init__(self, time: Time, *, most: int = MOST) -> None:
        """Nothing is written until `run`. most: what may wait; more than that pushes out the oldest."""
        self._waiting: OrderedDict[Key, Write] = OrderedDict()
        self._most = most
        self._pause = time.pause
        self._filled = asyncio.Event()
        self._retry_s = 0.0

    def put(self, key: Key, write: Write) -> None:
        """Have it written, instead of what waits under this key.

        write: raises as `kube.api` says, and what it raises decides whether it is tried again.
        """
        if key not in self._waiting and len(self._waiting) >= self._most:
            lost, _ = self._waiting.popitem(last=False)
            _log.warning("cluster_not_told", what=lost, why=f"{self._most} others wait to be written")
        self._waiting[key] = write
        self._filled.set()

    def discard(self, uid: str) -> None:
        """Write no more about that object."""
        for key in [key for key in self._waiting if key[1] == uid]:
            del self._waiting[key]

    async def run(self) -> NoReturn:
        """Write what comes, until cancelled."""
        while True:
            await self._filled.wait()
            await self._pause(SETTLE_S)
            while self._waiting:
                key, write = next(iter(self._waiting.items()))
                done = await self._attempt(key, write)
                if self._waiting.get(key) is write:
                    if done:
                        del self._waiting[key]
                    else:
                        self._waiting.move_to_end(key)
                await self._pause(PACE_S if done else self._retry_s)
            self._filled.clear()

    async def _attempt(self, key: Key, write: Write) -> bool:
        """Write once; whether that was all that can be done about it."""
        try:
            await write()
        except API_ERRORS as error:
            if isinstance(error, ApiRefusedError) and error.status == _GONE:
                _log.info("object_gone", what=key, why=error.message)
                return True
            if isinstance(error, ApiRefusedError) and error.status != _TOO_MANY_REQUESTS:
                _log.warning("cluster_not_told", what=key, why=error.message)
                return True
            if not self._retry_s:
                _log.warning("cluster_told_later", what=key, why=error.message)
            self._retry_s = min(max(FIRST_RETRY_S, 2 * self._retry_s), LAST_RETRY_S)
            return False
        except Exception:  # a fault of ours: this one is lost, the others are not
            _log.exception("cluster_fault", what=key)
        self._retry_s = 0.0
        return True
