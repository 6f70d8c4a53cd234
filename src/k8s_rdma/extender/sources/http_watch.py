"""A node's long poll (`GET /v1/node?watch=...`): told of a change within the time that the way takes."""

from __future__ import annotations

import asyncio
import random
from enum import Enum, auto, unique
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from k8s_rdma.extender.sources.http_get import Answer, HttpPeer

PATH = "/v1/node"

_EARLY = 0.9
"""Of the time that the server was to wait: an answer before it does not come of having waited."""

_SPREAD = 0.2
"""Of that time, so that a thousand nodes do not answer at the same moment."""


@unique
class Told(Enum):
    """What the answer says."""

    CHANGED = auto()
    UNCHANGED = auto()
    NOT_HELD = auto()
    """The server did not wait: it knows no long poll, has no room for it, is ending, or has no report."""


async def watch(peer: HttpPeer, etag: str, *, hold_s: float, timeout_s: float) -> tuple[Told, Answer]:
    """Wait until the node's report is not `etag` any more, or for about `hold_s`.

    OSError and TimeoutError when there was no answer by then; timeout_s: for the way.
    """
    hold_s = round(hold_s * (1 - _SPREAD * random.random()), 3)
    generation = quote(etag.removeprefix("W/").strip('"'), safe="")
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(hold_s + timeout_s):
        answer = await peer.get(f"{PATH}?watch={generation}&timeout_s={hold_s:g}")
    if answer.status == 200 and answer.etag not in (None, etag):
        return Told.CHANGED, answer
    waited_s = asyncio.get_running_loop().time() - began
    held = answer.status == 304 and waited_s >= _EARLY * hold_s
    return (Told.UNCHANGED if held else Told.NOT_HELD), answer
