"""Informers list and watch objects of the API server, again whenever a watch is lost. Time is an object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, NoReturn, TypeVar, cast

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.kube.errors import API_ERRORS

T = TypeVar("T")
_log = structlog.get_logger()

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0

STEADY_S = 60.0
"""A watch that lasted for so long was a good one: that the API server ends it is no failure."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Some of the objects there are, while a list is under way; `Listed` ends it and names the rest.

    is_anew: whether the list began again, so that objects on pages before this one may be gone.
    """

    items: tuple[T, ...]
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The complete list, with the pages before it; objects that are not on it are gone.

    is_anew: as of `ListPage`.
    """

    items: tuple[T, ...]
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object that is new or different."""

    item: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object that was deleted, or does not belong to the followed objects any more; in its last state."""

    item: T


Event = ListPage[T] | Listed[T] | Changed[T] | Deleted[T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """monotonic: in seconds, as `time.monotonic`. now: with a time zone. pause: as `asyncio.sleep`."""

    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    pause: Callable[[float], Awaitable[None]]


REAL_TIME = Time(monotonic=time.monotonic, now=lambda: datetime.now(UTC), pause=asyncio.sleep)


async def follow(
    subject: str,
    stream: Callable[[], AsyncIterator[Event[Any]]],
    on_event: Callable[[Event[Any]], None],
    *,
    time: Time = REAL_TIME,
    first_retry_s: float = FIRST_RETRY_S,
) -> NoReturn:
    """List and watch: hand over every event of a stream, and of a new one when it is lost, until cancelled.

    The delay before a new stream doubles to 30 s. It is reset after a stream that lasted for `STEADY_S` or
    brought changes since its list. A change that makes `on_event` fail is left out.

    subject: the followed objects, for the log.
    """
    backoff = Backoff(first_retry_s, LAST_RETRY_S)
    while True:
        started, error = time.monotonic(), None
        try:
            async with aclosing(cast("Any", stream())) as events:
                async for event in events:
                    if isinstance(event, ListPage | Listed):
                        on_event(event)
                    else:
                        handle_item(subject, on_event, event)
                        backoff.reset()
        except API_ERRORS as failure:
            error = failure.message
        if time.monotonic() - started >= STEADY_S:
            backoff.reset()
        ended_again, delay_s = backoff.failing, backoff.fail()
        if error or ended_again:
            _log.warning("watch_lost", what=subject, error=error or "the watch ended", again_in_s=delay_s)
        await time.pause(delay_s)


def handle_item(subject: str, handle: Callable[[T], None], item: T) -> None:
    """Hand over one object, or one change of it.

    The content of one object must not end the process, nor keep it from learning of all others. So an object
    that makes `handle` fail, which is a defect, is logged and left out.
    """
    try:
        handle(item)
    except Exception:
        _log.exception("object_failed", what=subject)
