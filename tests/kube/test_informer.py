"""List and watch: when a watch is lost, and how soon the next one begins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from k8s_rdma.kube.errors import ApiUncertainError
from k8s_rdma.kube.informer import LAST_RETRY_S, STEADY_S, Changed, Listed, Time, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


class Watches:
    """Streams of one object each, that last so long; `pauses` are those between them."""

    def __init__(self, *lasts_s: float, lost: bool = False, changes: bool = False) -> None:
        self._lasts_s = [*lasts_s]
        self._lost, self._changes = lost, changes
        self.now = 0.0
        self.pauses: list[float] = []
        self.over = asyncio.Event()

    async def stream(self) -> AsyncIterator[Listed[str] | Changed[str]]:
        yield Listed(("listed",))
        if self._changes:
            yield Changed("changed")
        self.now += self._lasts_s.pop(0)
        if self._lost:
            raise ApiUncertainError("connection lost")

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self._lasts_s:
            self.over.set()
            await asyncio.Event().wait()

    async def followed(self) -> list[dict]:
        """The log's lines until the last stream was lost."""
        time = Time(monotonic=lambda: self.now, now=lambda: datetime.now(UTC), pause=self.pause)
        with capture_logs() as lines:
            following = asyncio.create_task(follow("pods", self.stream, lambda _: None, time=time))
            await self.over.wait()
            following.cancel()
        return lines


async def test_delays_double_while_streams_bring_no_event():
    watches = Watches(*[0.0] * 8)
    await watches.followed()
    assert watches.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LAST_RETRY_S, LAST_RETRY_S]


@pytest.mark.parametrize(("lasts_s", "changes"), [(STEADY_S, False), (0.0, True)], ids=["steady", "changes"])
async def test_delays_begin_anew_after_a_good_watch(lasts_s: float, *, changes: bool):
    watches = Watches(lasts_s, lasts_s, lasts_s, changes=changes)
    await watches.followed()
    assert watches.pauses == [0.5, 0.5, 0.5]


async def test_end_of_a_good_watch_is_not_logged_but_the_next_one_in_a_row_is():
    assert await Watches(STEADY_S, STEADY_S).followed() == []
    (line,) = await Watches(STEADY_S, 0.0).followed()
    assert (line["event"], line["what"]) == ("watch_lost", "pods")
    assert (line["error"], line["again_in_s"]) == ("the watch ended", 1.0)


async def test_every_failure_is_logged():
    lines = await Watches(STEADY_S, STEADY_S, lost=True).followed()
    assert [line["error"] for line in lines] == ["connection lost", "connection lost"]
