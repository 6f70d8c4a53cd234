"""The agent's knowledge as a `NodeReport`, on its way out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, cast

from k8s_rdma import __version__
from k8s_rdma.agent.sockets.state_socket import StatePublisher
from k8s_rdma.wire.node_report import NodeReports
from k8s_rdma.wire.rest import encode_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.agent.node import Node
    from k8s_rdma.wire.rest import NodeReport


class Reporter:
    """Tells the node's state."""

    def __init__(self, node: Node, problems: Callable[[], tuple[str, ...]] = tuple) -> None:
        """Begin a new epoch. problems: those of the agent itself at this moment, one sentence each."""
        self._node = node
        self._problems = problems
        self._told_problems: tuple[str, ...] = ()
        self._reports = NodeReports(node.name, uuid.uuid4().hex[:12], agent_version=__version__)
        self._told: NodeReport | None = None
        self._encoded = b""
        self.publisher = StatePublisher(self._report)

    async def publish(self) -> None:
        """Send the state to all readers that have another one."""
        await self.publisher.publish()

    async def publish_problems(self) -> None:
        """As `publish`, if the agent's own problems are others than in the last report."""
        if self._problems() != self._told_problems:
            await self.publish()

    def now(self) -> NodeReport:
        """The report of this moment; the same object as before if nothing changed."""
        self._report()
        return cast("NodeReport", self._told)

    async def other_than(self, known: NodeReport | None) -> NodeReport:
        """The report, as soon as it is not the known one."""
        sent = None if known is None else self._encoded
        while self._told is known:
            sent = await self.publisher.other_than(sent)
        return cast("NodeReport", self._told)

    def _report(self) -> bytes:
        self._told_problems = self._problems()
        node = self._node
        report = self._reports.of(node.hardware, node.ledger, node.caps.lost, self._told_problems)
        if report is not self._told:
            self._told, self._encoded = report, encode_report(report)
        return self._encoded
