"""Run a task in the background for the duration of a block."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run `work` beside the block and cancel it at the block's end.

    What it raises ends the block and comes out of it; what the block raises comes out as it is.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            yield
            task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
