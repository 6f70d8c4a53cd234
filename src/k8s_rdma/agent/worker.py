"""The thread that owns the kernel and the ledger: blocking calls of the agent's loop, one after the other.

A CNI ADD makes three calls, or five with addresses. By a ThreadPoolExecutor each takes half as much
processor time again: three futures and four rounds of the loop instead of one and two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Runs blocking calls one after the other on its own thread.

    opened: files and sockets that the calls use; they are closed after the last call, the latest first.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self.opened = ExitStack()
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._make_calls, name="kernel", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call and wait for it; a call ends even if its caller is cancelled.

        It runs in the caller's context, so that its log lines name the operation.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(partial(copy_context().run, call, *args, **kwargs), answer))
        return await answer

    def close(self) -> None:
        """Wait for the running call, cancel those that have not begun, and close the files and sockets."""
        with self.opened:
            with suppress(Empty):
                while (waiting := self._calls.get_nowait()) is not None:
                    waiting.cancel()
            self._calls.put(None)
            self._thread.join()

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
            del call  # its arguments end with it, not with the next call


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """A call of the worker. answer: of the caller's loop; it is cancelled if the caller is."""

    work: Callable[[], T]
    answer: asyncio.Future[T]

    def make(self) -> None:
        """Make the call, and give its caller the result or the error."""
        try:
            result = self.work()
        except BaseException as error:
            self._have_loop(partial(self._fail, error))
        else:
            self._have_loop(partial(self._succeed, result))

    def cancel(self) -> None:
        """Cancel the caller's wait."""
        self._have_loop(self.answer.cancel)

    def _have_loop(self, settle: Callable[[], object]) -> None:
        """Have the caller's loop settle the answer, unless the loop has ended."""
        with suppress(RuntimeError):
            self.answer.get_loop().call_soon_threadsafe(settle)

    def _succeed(self, result: T) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
