"""Watches of the API server: every event handed over, and a new list and watch when one is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import structlog

from k8s_rdma.kube.api import API_ERRORS, Listed, Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma.kube.api import Event


T = TypeVar("T")
_log = structlog.get_logger()


_MAX_DELAY_S = 30.0


async def follow(
    subject: str,
    stream: Callable[[], AsyncIterator[Event[Any]]],
    on_event: Callable[[Event[Any]], None],
    *,
    delay_s: float = 0.5,
) -> NoReturn:
    """Hand over every event of a stream; make a new one when it is lost, after a delay that doubles to 30 s.

    A stream that has brought changes since its list starts the delay anew. A change that makes `on_event`
    fail is left out.
    """
    delay = delay_s
    while True:
        try:
            async with aclosing(cast("Any", stream())) as events:
                async for event in events:
                    if isinstance(event, Page | Listed):
                        on_event(event)
                    else:
                        handle_item(subject, on_event, event)
                        delay = delay_s
        except API_ERRORS as error:
            _log.warning("watch_lost", what=subject, error=error.message, again_in_s=delay)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY_S)


def handle_item(subject: str, handle: Callable[[T], None], item: T) -> None:
    """Hand over one object, or one change of it.

    What somebody wrote into one object must not end the process, nor keep it from hearing of all others: an
    object that makes `handle` fail, which is a defect, is logged and left out.
    """
    try:
        handle(item)
    except Exception:
        _log.exception("object_failed", what=subject)
