"""The thread that owns the kernel and the ledger."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Runs blocking calls one after the other on its own thread."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernel")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call and wait for it; a call that has begun ends even when its caller is cancelled.

        It runs in the caller's context, so that its log lines name the operation.
        """
        loop = asyncio.get_running_loop()
        work = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.shield(loop.run_in_executor(self._pool, work))

    def close(self) -> None:
        """Wait for the running call, and stop."""
        self._pool.shutdown(wait=True, cancel_futures=True)
