"""Nodes' servers on addresses of the loopback network, honest ones and others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.config.web import NodesEndpoint
from k8s_rdma.http_server import Answer, HttpServer, listen
from k8s_rdma.web.node_traffic import NodeCounterSource, NodeTraffic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.http_server.asgi import Receive, Scope, Send

ADDRESS = "127.0.0.1"
PCI = "0000:41:00.0"
PF = "enp65s0f0np0"


@dataclass(frozen=True, slots=True)
class Vf:
    """A VF that a pod `namespace/name` holds."""

    number: int
    pod: str
    interface: str
    sent: object = 0
    received: object = 0
    reserved_mbps: int = 20_000
    cap_mbps: int = 40_000


def metrics(node: str, *vfs: Vf, age_s: object = 0.0) -> str:
    """The lines that matter of a node's metrics, and some that do not."""
    lines = ["# TYPE k8s_rdma_vf_transmitted_bytes_total counter", 'k8s_rdma_problems{node="x"} 0.0']
    for vf in vfs:
        namespace, _, name = vf.pod.partition("/")
        pod = f'interface="{vf.interface}",namespace="{namespace}",node="{node}"'
        labels = f'{pod},pci="{PCI}",pf="{PF}",pod="{name}",vf="{vf.number}"'
        lines += [
            f"k8s_rdma_vf_transmitted_bytes_total{{{labels}}} {vf.sent}",
            f"k8s_rdma_vf_received_bytes_total{{{labels}}} {vf.received}",
            f"k8s_rdma_vf_reserved_bits_per_second{{{labels}}} {vf.reserved_mbps * 1_000_000}",
        ]
        if vf.cap_mbps:
            lines.append(f"k8s_rdma_vf_cap_bits_per_second{{{labels}}} {vf.cap_mbps * 1_000_000}")
    return "\n".join((*lines, f'k8s_rdma_sample_age_seconds{{node="{node}"}} {age_s}', ""))


@dataclass(slots=True)
class Node:
    """An ASGI application with a node's metrics. tokens: of the requests, as sent."""

    text: str = ""
    status: int = 200
    tokens: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"] == "/metrics"
        self.tokens.append(dict(scope["headers"]).get(b"authorization", b""))
        await Answer(self.text, status=self.status, content_type="text/plain")(scope, receive, send)


@asynccontextmanager
async def node_server(address: str, node: Node, *, port: int = 0) -> AsyncIterator[int]:
    """Serve a node at an address; its port."""
    server = HttpServer(node, shutdown_s=1)
    with listen(address, port) as listener:
        task = asyncio.create_task(server.serve(listener))
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop()
            await task


@asynccontextmanager
async def raw_server(
    address: str, port: int, head: bytes, repeated: bytes, pause_s: float = 0
) -> AsyncIterator[None]:
    """Answer each connection with a head, then with `repeated` again and again, unless it is empty."""
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        try:
            while repeated:
                writer.write(repeated)
                await writer.drain()
                await asyncio.sleep(pause_s)
            await reader.read()
        except OSError:
            return  # the reader has gone
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.create_task(answer(reader, writer)))

    async with await asyncio.start_server(accept, address, port):
        yield
    for task in answering:
        task.cancel()
    await asyncio.gather(*answering, return_exceptions=True)


@dataclass(slots=True)
class Turns:
    """Time that passes as a test says: a reader of nodes pauses until its turn comes."""

    now: float = 1000.0
    pauses: asyncio.Queue[asyncio.Future[None]] = field(default_factory=asyncio.Queue)

    def clock(self) -> float:
        return self.now

    async def pause(self, _seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.pauses.put_nowait(turn)
        await turn

    async def read(self, count: int = 1) -> list[asyncio.Future[None]]:
        """Wait until so many nodes were read, whose next turns these are."""
        return [await self.pauses.get() for _ in range(count)]

    async def again(
        self, turns: list[asyncio.Future[None]], after_s: float = 15.0
    ) -> list[asyncio.Future[None]]:
        """Let these nodes be read once more, after some time."""
        self.now += after_s
        for turn in turns:
            turn.set_result(None)
        return await self.read(len(turns))


@asynccontextmanager
async def reading(
    endpoint: NodesEndpoint, turns: Turns, *, timeout_s: float = 60.0
) -> AsyncIterator[NodeTraffic]:
    """Run a reader of nodes."""
    servers = NodeCounterSource(endpoint, clock=turns.clock, timeout_s=timeout_s)
    traffic = NodeTraffic(servers, clock=turns.clock, pause=turns.pause)
    running = asyncio.create_task(traffic.run())
    try:
        yield traffic
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def measuring(node: Node, turns: Turns) -> AsyncIterator[NodeTraffic]:
    """Run a reader of this node."""
    async with node_server(ADDRESS, node) as port, reading(NodesEndpoint(port=port), turns) as traffic:
        yield traffic
