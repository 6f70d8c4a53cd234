"""Reports of the node to the readers of `state.sock`, and counters to those who ask (`wire.state`)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, cast

from k8s_rdma import __version__
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.node_report import NodeReports
from k8s_rdma.wire.rest import encode_report
from k8s_rdma.wire.state import HEADER, Kind, decode_header, encode_message

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from k8s_rdma.agent.node import Node
    from k8s_rdma.wire.rest import NodeReport

    Send = Callable[[Kind, bytes], Awaitable[None]]

SEND_TIMEOUT_S = 10.0
"""A reader that takes longer for one message is cut off; it will connect again."""


class StatePublisher:
    """The latest report, and that there is a new one. A report that nobody reads is never made."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """render: makes the report of now, the same bytes while nothing differs."""
        self._render = render
        self._report: bytes | None = None
        self._change = asyncio.Condition()

    async def publish(self) -> None:
        """Say that there may be something new."""
        async with self._change:
            self._report = None
            self._change.notify_all()

    async def wait_for_change(self, previous: bytes | None) -> bytes:
        """The report, as soon as it is not the known one."""
        async with self._change:
            while (report := self._latest()) == previous:
                await self._change.wait()
            return report

    def _latest(self) -> bytes:
        if self._report is None:
            self._report = self._render()
        return self._report


class StateSocket:
    """Speaks `wire.state`: sends each reader every report that is new to it, and counters when it asks."""

    def __init__(self, publisher: StatePublisher, sample: Callable[[], Awaitable[bytes]]) -> None:
        """sample: makes the body of a COUNTERS message."""
        self._publisher = publisher
        self._sample = sample

    async def talk(self, connection: socket.socket) -> None:
        """Serve one reader until it hangs up, or says what no reader says."""
        send = _sender(connection)
        both = [
            asyncio.ensure_future(self._stream(send)),
            asyncio.ensure_future(self._answer(connection, send)),
        ]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        sent = None
        while True:
            sent = await self._publisher.wait_for_change(sent)
            await send(Kind.REPORT, sent)

    async def _answer(self, connection: socket.socket, send: Send) -> None:
        """Answer each request; ends where the reader does."""
        while header := await _receive(connection, HEADER.size):
            try:
                kind, _ = decode_header(header)
            except MalformedError:
                return
            if kind is not Kind.SAMPLE:
                return
            await send(Kind.COUNTERS, await self._sample())


def _sender(connection: socket.socket) -> Send:
    """Sends whole messages, one after the other whoever has them sent."""
    turn = asyncio.Lock()

    async def send(kind: Kind, body: bytes) -> None:
        async with turn, asyncio.timeout(SEND_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(connection, encode_message(kind, body))

    return send


async def _receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes; none where the peer ends before them."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(connection, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


class Reporter:
    """Tells the node's state."""

    def __init__(self, node: Node, problems: Callable[[], tuple[str, ...]] = tuple) -> None:
        """Begin a new epoch. problems: those of the agent itself at this moment, one sentence each."""
        self._node = node
        self._problems = problems
        self._last_problems: tuple[str, ...] = ()
        self._reports = NodeReports(node.name, uuid.uuid4().hex[:12], agent_version=__version__)
        self._last_report: NodeReport | None = None
        self._encoded = b""
        self.publisher = StatePublisher(self._report)

    async def publish(self) -> None:
        """Send the state to all readers that have another one."""
        await self.publisher.publish()

    async def publish_problems(self) -> None:
        """As `publish`, if the agent's own problems are others than in the last report."""
        if self._problems() != self._last_problems:
            await self.publish()

    def now(self) -> NodeReport:
        """The report of this moment; the same object as before if nothing changed."""
        self._report()
        return cast("NodeReport", self._last_report)

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """The report, as soon as it is not the known one."""
        sent = None if previous is None else self._encoded
        while self._last_report is previous:
            sent = await self.publisher.wait_for_change(sent)
        return cast("NodeReport", self._last_report)

    def _report(self) -> bytes:
        self._last_problems = self._problems()
        node = self._node
        report = self._reports.build(node.hardware, node.ledger, node.caps.failures, self._last_problems)
        if report is not self._last_report:
            self._last_report, self._encoded = report, encode_report(report)
        return self._encoded
