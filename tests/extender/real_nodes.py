"""Nodes that are served by the node's server itself, as the agent's reports come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from extender.node_server import report
from k8s_rdma.http_server import HttpServer, listen
from k8s_rdma.http_server.asgi import Access
from k8s_rdma.server.agent_link import Deliveries, Shown, outage_answers, report_answers
from k8s_rdma.server.app import NodeApp

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from k8s_rdma.wire.report import NodeReport


class NoTraffic:
    """For a node with an agent that reports no traffic."""

    async def exposition(self) -> bytes:
        return b""


@dataclass(slots=True)
class RealNode:
    """One node. settings: of its server, such as `tls`; tokens: as of `NodeApp`."""

    name: str
    address: str
    tokens: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    shown: Shown = field(init=False)
    app: NodeApp = field(init=False)
    server: HttpServer | None = None
    serving: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.shown = Shown(report_answers(self._next(report(self.name))))

    def show(self, told: NodeReport) -> None:
        """From now on, and to those who wait for it."""
        self.shown.show(report_answers(self._next(told)))

    def holds(self, **held: Any) -> None:
        self.show(report(self.name, held=held))

    def lose_agent(self) -> None:
        self.shown.show(outage_answers("its socket is gone", datetime(2026, 1, 1, tzinfo=UTC)))

    async def start(self, listener: socket.socket) -> None:
        self.app = NodeApp(self.shown, NoTraffic(), Deliveries(), access=Access(tokens=self.tokens))
        self.server = HttpServer(self.app, shutdown_s=1, **self.settings)
        self.serving = asyncio.create_task(self.server.serve(listener))
        while not self.server.started:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """As the process ends: those who wait are answered, connections are closed."""
        self.app.stopping.set()
        self.server.stop()
        await self.serving

    def connections(self) -> int:
        return len(self.server.state.connections)

    def _next(self, told: NodeReport) -> NodeReport:
        self.generation += 1
        return type(told)(
            node=told.node,
            generation=f"real.{self.generation}",
            ledger=told.ledger,
            pfs=told.pfs,
            allocations=told.allocations,
        )


@asynccontextmanager
async def real_nodes(*names: str, **settings: Any) -> AsyncIterator[tuple[int, dict[str, RealNode]]]:
    """Servers of these nodes, each at an address of its own, all at one port."""
    tokens = settings.pop("tokens", None)
    port, nodes = 0, {}
    async with AsyncExitStack() as stack:
        for index, name in enumerate(names):
            node = RealNode(name=name, address=f"127.0.8.{index + 1}", tokens=tokens, settings=settings)
            listener = stack.enter_context(listen(node.address, port))
            port = listener.getsockname()[1]
            await node.start(listener)
            stack.push_async_callback(node.stop)
            nodes[name] = node
        yield port, nodes
