"""`GET /v1/node?watch=<generation>&timeout_s=<seconds>`: answered when there is another generation."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import describe_unknown, shown
from k8s_rdma.wire.rest import GENERATION_PATTERN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable

    from k8s_rdma.http_server import Answer
    from k8s_rdma.server.answers import Shown

DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 300.0
"""Shorter than what proxies and firewalls forget a silent connection after."""

TimeoutS = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIMEOUT_S)]

MAX_WATCHES = 256
"""At a time, of all clients: an extender has one for each node, and so has whoever else follows it."""

_PARAMETERS = ("watch", "timeout_s")
_MOST_PARAMETERS = 8
_GENERATION = re.compile(GENERATION_PATTERN)
_seconds = msgspec.json.Decoder(TimeoutS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a client waits for: any other generation than the one it has, but for so long only."""

    generation: str
    timeout_s: float


class Watches:
    """Places of clients that wait; who has most of them makes room for who has fewer."""

    def __init__(self, limit: int = MAX_WATCHES) -> None:
        self._limit = limit
        self._active: list[tuple[Hashable, asyncio.Event]] = []

    def acquire(self, client: Hashable) -> asyncio.Event | None:
        """A place, which is set when another client gets it; None where all are taken and no one has more."""
        if len(self._active) >= self._limit:
            count = Counter(holder for holder, _ in self._active)
            greediest, watches = count.most_common(1)[0]
            if watches <= count[client] + 1:
                return None
            next(place for holder, place in self._active if holder == greediest).set()
            self._active = [watch for watch in self._active if not watch[1].is_set()]
        place = asyncio.Event()
        self._active.append((client, place))
        return place

    def give_back(self, place: asyncio.Event) -> None:
        """The client does not wait any more."""
        self._active = [watch for watch in self._active if watch[1] is not place]


def parse_watch(query: bytes) -> Watch | None:
    """The watch that a query string asks for; None without one. MalformedError names the parameter."""
    parameters: dict[str, str] = {}
    for name, value in _fields(query):
        if name not in _PARAMETERS:
            msg = f"{shown(name)}: {describe_unknown(name, _PARAMETERS)}"
            raise MalformedError(msg)
        if name in parameters:
            msg = f"{name}: is given twice"
            raise MalformedError(msg)
        parameters[name] = value
    timeout_s = _timeout_s(parameters.get("timeout_s"))
    if "watch" not in parameters:
        return None
    return Watch(generation=_generation(parameters["watch"]), timeout_s=timeout_s)


async def wait_for_change(watch: Watch, now: Shown, *enough: Awaitable[object]) -> Answer:
    """The document that the client does not have, or that its own is still the one.

    enough: when one of these is done, the client is answered as if the time were over.
    """
    awaited = [asyncio.ensure_future(each) for each in (_wait_for_change(watch.generation, now), *enough)]
    try:
        await asyncio.wait(awaited, timeout=watch.timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in awaited:
            each.cancel()
    answers = now.answers
    unchanged = answers.generation == watch.generation
    return answers.unchanged if unchanged and answers.unchanged else answers.node


async def _wait_for_change(generation: str, now: Shown) -> None:
    while now.answers.generation == generation:
        await now.change()


def _fields(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:  # UnicodeDecodeError among them
        msg = "query: is not made of at most a few name=value"
        raise MalformedError(msg) from error


def _generation(text: str) -> str:
    if not _GENERATION.fullmatch(text):
        msg = f"watch: {shown(text)} is no generation; give that of the document you have"
        raise MalformedError(msg)
    return text


def _timeout_s(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        return _seconds.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        msg = f"timeout_s: {shown(text)} is no number of seconds from 0 to {MAX_TIMEOUT_S:g}"
        raise MalformedError(msg) from error
