"""The parts of every process: signals that end it, logs in lines of JSON, waits, and calls that may hang."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def stop_on_signals(*further: signal.Signals) -> asyncio.Event:
    """Return an event of the running loop that SIGTERM, SIGINT and further signals set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *further):
        loop.add_signal_handler(number, stop.set)
    return stop


def configure_logging(process: str) -> None:
    """Set up logging for this process: fixed event names, values as keys. Called once, first of all."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    # A library's warnings are about its callers; those of uvicorn come with every client that speaks no HTTP.
    logging.basicConfig(level=logging.ERROR, handlers=[_OfLibraries()])


class _OfLibraries(logging.Handler):
    """Writes the errors of libraries in our log format."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record."""
        fields = {"logger": record.name, "message": record.getMessage(), "exc_info": record.exc_info}
        structlog.get_logger().log(record.levelno, "library_error", **fields)


async def wait_for_first(*waits: Awaitable[object]) -> None:
    """Wait until one of these is over, and raise as it did; the others are cancelled and ended."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class DetachedCall(Generic[Argument, Result]):
    """Calls a blocking function in a daemon thread, one call at a time.

    A call that hangs, as in a device's driver, blocks that thread alone: not the loop, not the process's end.
    """

    def __init__(self, function: Callable[[Argument], Result], *, name: str) -> None:
        """Start no thread yet. name: of the thread."""
        self._function = function
        self._name = name
        self._lock = asyncio.Lock()
        self._last: Future[Result] | None = None

    async def __call__(self, argument: Argument) -> Result:
        """Return what the function returns; TimeoutError while an abandoned call still hangs."""
        async with self._lock:
            if self._last is not None and not self._last.done():
                raise TimeoutError
            result: Future[Result] = Future()
            self._last = result
            result.set_running_or_notify_cancel()  # who gives up waiting does not end it
            Thread(target=self._resolve, args=(result, argument), name=self._name, daemon=True).start()
            return await asyncio.wrap_future(result)

    def _resolve(self, result: Future[Result], argument: Argument) -> None:
        try:
            result.set_result(self._function(argument))
        except BaseException as error:
            result.set_exception(error)
