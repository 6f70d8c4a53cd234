"""Reports of the node to the readers of `state.sock` (`wire.state_socket`)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, NoReturn, cast

from k8s_rdma import __version__
from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.report import NodeReport, encode_report
from k8s_rdma.wire.report_builder import NodeReports, Refusals, Unenforced
from k8s_rdma.wire.state_socket import (
    HEADER,
    MessageKind,
    PlacementVerdict,
    decode_header,
    encode_message,
    encode_verdict,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.inventory import Gpu

    Send = Callable[[MessageKind, bytes], Awaitable[None]]


PLACEMENT_PAUSE_S = 0.05
"""The pause after each placement of a reader: anybody may send some, and to verify one takes time."""

SOON_S = 0.1
"""The time after which a change is published although its call goes on: an IPAM plugin may take long."""

SEND_TIMEOUT_S = 10.0
"""The longest time for one message; a slower reader is disconnected, and connects again."""


class Reporter:
    """Reports the node's state."""

    def __init__(  # noqa: PLR0913 - what a report is made of
        self,
        node: Node,
        problems: Callable[[], tuple[str, ...]] = tuple,
        gpus: Callable[[], tuple[Gpu, ...]] = tuple,
        refusals: Callable[[], Refusals] = dict,
        *,
        takes_placements: bool = False,
        further: Sequence[StatePublisher] = (),
    ) -> None:
        """Begin a new epoch.

        problems: those of the agent itself at this moment, one sentence each. gpus: those of this moment.
        refusals: the changes of running pods' rates that are not made at this moment. takes_placements: as in
        `NodeReport`.
        further: publish whenever the report is published, since they are made of the node's state, too.
        """
        self._node = node
        self._problems = problems
        self._gpus = gpus
        self._refusals = refusals
        self._last_problems: tuple[str, ...] = ()
        self._reports = NodeReports(
            node.name,
            uuid.uuid4().hex[:12],
            agent_version=__version__,
            takes_placements=takes_placements,
        )
        self._last_report: NodeReport | None = None
        self._encoded = b""
        self.publisher = StatePublisher(self._report)
        self._publishers = (self.publisher, *further)
        self._is_due = asyncio.Event()

    async def publish(self) -> None:
        """Send the state to all readers that have another one."""
        self._is_due.clear()
        for publisher in self._publishers:
            await publisher.publish()

    def publish_soon(self) -> None:
        """Have `run` publish the state unless a call that ends soon does.

        To make a report takes as much processor time as to move a VF, and a call that takes its usual time
        ends before.
        """
        self._is_due.set()

    async def run(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> NoReturn:
        """Publish the state after `publish_soon`. pause: as `asyncio.sleep`."""
        while True:
            await self._is_due.wait()
            await pause(SOON_S)
            if self._is_due.is_set():
                await self.publish()

    async def publish_problems(self) -> None:
        """Publish, if the agent's own problems differ from the last report's."""
        if self._problems() != self._last_problems:
            await self.publish()

    def now(self) -> NodeReport:
        """Make the current report; the same object as before if it says the same."""
        self._report()
        return cast("NodeReport", self._last_report)

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """Wait until the report differs from the previous one, and return it."""
        sent = None if previous is None else self._encoded
        while self._last_report is previous:
            sent = await self.publisher.wait_for_change(sent)
        return cast("NodeReport", self._last_report)

    def _report(self) -> bytes:
        self._last_problems = self._problems()
        node = self._node
        report = self._reports.build(
            node.hardware,
            node.ledger,
            Unenforced(caps=node.caps.failures, refusals=self._refusals()),
            self._last_problems,
            self._gpus(),
        )
        if report is not self._last_report:
            self._last_report, self._encoded = report, encode_report(report)
        return self._encoded


class StatePublisher:
    """Holds the latest report and wakes readers of a new one. A report is made when somebody reads it."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """render: makes the current report, the same bytes while it says the same."""
        self._render = render
        self._report: bytes | None = None
        self._change = asyncio.Event()

    async def publish(self) -> None:
        """Wake readers: the report may have changed."""
        self._report = None
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def wait_for_change(self, previous: bytes | None) -> bytes:
        """Wait until the report differs from the previous one, and return it."""
        while (report := self._latest()) == previous:
            await self._change.wait()
        return report

    def _latest(self) -> bytes:
        if self._report is None:
            self._report = self._render()
        return self._report


class StateSocket:
    """Sends each reader every report that is new to it, and answers its requests."""

    def __init__(
        self,
        publisher: StatePublisher,
        sample: Callable[[], Awaitable[bytes]],
        deliver: Callable[[bytes], None],
    ) -> None:
        """sample: makes the body of a COUNTERS message. deliver: as `PodCluster.deliver`."""
        self._publisher = publisher
        self._sample = sample
        self._deliver = deliver

    async def talk(self, connection: socket.socket) -> None:
        """Serve one reader until it hangs up or breaks the protocol."""
        send = _sender(connection)
        await wait_for_first(self._stream(send), self._answer(connection, send))

    async def _stream(self, send: Send) -> None:
        sent = None
        while True:
            sent = await self._publisher.wait_for_change(sent)
            await send(MessageKind.REPORT, sent)

    async def _answer(self, connection: socket.socket, send: Send) -> None:
        """Answer each request until the reader hangs up."""
        while header := await _receive(connection, HEADER.size):
            try:
                kind, length = decode_header(header)
            except MalformedError:
                return
            if kind is MessageKind.SAMPLE:
                await send(MessageKind.COUNTERS, await self._sample())
            elif kind is MessageKind.PLACEMENT and (text := await _receive(connection, length)):
                await send(MessageKind.VERDICT, encode_verdict(await self._verdict(text)))
                await asyncio.sleep(PLACEMENT_PAUSE_S)
            else:
                return

    async def _verdict(self, text: bytes) -> PlacementVerdict:
        """Take a placement; a fault is an answer, too, because any reader may send one."""

        async def deliver() -> PlacementVerdict:
            self._deliver(text)
            return PlacementVerdict()

        return await AgentCall(
            name="placement_delivery",
            perform=deliver,
            failed=_refusing,
            logs_success=False,
            logs_refusal=False,
        ).answer()


def _refusing(error: K8sRdmaError) -> PlacementVerdict:
    return PlacementVerdict(reason=error.reason, message=error.message)


def _sender(connection: socket.socket) -> Send:
    """Make a sender of whole messages, one at a time for several tasks."""
    turn = asyncio.Lock()

    async def send(kind: MessageKind, body: bytes) -> None:
        async with turn, asyncio.timeout(SEND_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(connection, encode_message(kind, body))

    return send


async def _receive(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes; empty if the peer hangs up before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(connection, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data
