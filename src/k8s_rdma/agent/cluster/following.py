"""Keeping up with objects of the API server: list, watch, and begin again when the watch is lost."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import structlog

from k8s_rdma.kube.api import API_ERRORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import NoReturn

    from k8s_rdma.kube.api import Event
    from k8s_rdma.kube.time import Time

_log = structlog.get_logger()

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0

STEADY_S = 60.0
"""A watch that lasted for so long was a good one: its end, which is bound to come, is nothing to tell of."""


async def keep_following(
    lost: str, stream: Callable[[], AsyncIterator[Event[Any]]], take: Callable[[Event[Any]], None], time: Time
) -> NoReturn:
    """Hand over every event of a stream, and of the next one when it ends, until cancelled.

    lost: the log's event when it fails twice in a row.
    """
    failures = 0
    while True:
        started = time.monotonic()
        error = await _follow(stream, take)
        failures = 1 if time.monotonic() - started >= STEADY_S else failures + 1
        if failures == 2:
            _log.warning(lost, error=error)
        await time.pause(min(FIRST_RETRY_S * 2 ** (failures - 1), LAST_RETRY_S))


async def _follow(stream: Callable[[], AsyncIterator[Event[Any]]], take: Callable[[Event[Any]], None]) -> str:
    """Take events until there are no more; why that is so."""
    try:
        async with aclosing(cast("Any", stream())) as events:
            async for event in events:
                take(event)
    except API_ERRORS as error:
        return error.message
    return "the watch ended"
