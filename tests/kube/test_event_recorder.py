"""Writes that wait, and the log of those that fail."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.event_recorder import Outbox
from k8s_rdma.kube.informer import Time

if TYPE_CHECKING:
    from collections.abc import MutableMapping

pytestmark = pytest.mark.anyio
KEY = ("status", "uid-1", "")


async def logged(status: int) -> list[MutableMapping[str, Any]]:
    """Return the log of a write that the API server refuses with that status."""
    tried = asyncio.Event()
    attempts: list[int] = []

    async def write() -> None:
        attempts.append(status)
        raise ApiRefusedError("annotate pod default/p: it says no", status=status)

    async def after() -> None:
        tried.set()

    async def pause(_seconds: float) -> None:
        await asyncio.sleep(0)

    outbox = Outbox(Time(monotonic=lambda: 0.0, now=lambda: datetime.now(UTC), pause=pause))
    with capture_logs() as lines:
        work = asyncio.create_task(outbox.run())
        outbox.put(KEY, write)
        outbox.put(("after", "uid-2", ""), after)
        await tried.wait()
        work.cancel()
        await asyncio.wait([work])
    assert attempts == [status], "nothing is tried again that was refused"
    return lines


async def test_pod_that_is_gone_is_no_warning():
    (line,) = await logged(404)
    assert (line["event"], line["log_level"], line["what"]) == ("object_gone", "info", KEY)


@pytest.mark.parametrize("status", [403, 409, 422])
async def test_other_refusals_are(status: int):
    (line,) = await logged(status)
    assert (line["event"], line["log_level"]) == ("cluster_not_told", "warning")
