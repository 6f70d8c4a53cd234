"""A node's `/v1/node` as the extender meets it, over a real socket, and as bad as wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    Range,
    Rates,
    ReportedPod,
    encode_report,
    rates_of,
)

PF0 = "0000:03:00.0"
PF1 = "0000:03:00.1"


def pf(
    pci: str = PF0, *, vfs: int = 4, mbps: int | None = 10_000, foreign: Sequence[int] = (), **more: object
) -> PfReport:
    """A PF, with a foreign VF for each of these minimum rates."""
    return PfReport(
        name=f"enp3s0f{pci[-1]}",
        pci=pci,
        driver="mlx5_core",
        capacity_vfs=vfs,
        link_mbps=mbps,
        rates=more.pop("rates", rates_of(EVERY_RATE)),
        foreign=tuple(
            ForeignVf(vf=index, why="of this test", min_tx_rate=rate, max_tx_rate=0)
            for index, rate in enumerate(foreign)
        ),
        **more,
    )


def rates(*, step: int = 1, weights: int | None = None) -> Rates:
    takes = Range(step=step, smallest=1, largest=100_000)
    return Rates(min=takes, max=takes, sum_checked=False, needs_link=False, weights=weights)


def held_interface(pf: str, rate: int) -> Interface:
    return Interface(
        pf=pf,
        vf=0,
        ifname="eth0",
        mac="",
        min_tx_rate=rate,
        max_tx_rate=0,
        set_min_tx_rate=rate,
        set_max_tx_rate=0,
        enforced=Enforced(min="hardware" if rate else None, max=None),
    )


Held = Mapping[str, int | Sequence[int]]
"""Pods by UID, with an interface on the first PF for each of these reservations, Mb/s."""


def report(node: str, *pfs: PfReport, generation: int = 1, held: Held | None = None) -> NodeReport:
    pfs = pfs or (pf(),)
    allocations = tuple(
        Allocation(
            pod=ReportedPod(namespace="default", name=f"pod-{uid}", uid=uid),
            container_id=f"c-{uid}",
            phase="attached",
            interfaces=tuple(
                held_interface(pfs[0].pci, rate) for rate in ([rates] if isinstance(rates, int) else rates)
            ),
        )
        for uid, rates in (held or {}).items()
    )
    return NodeReport(
        node=node, generation=f"epoch.{generation}", ledger="ok", pfs=pfs, allocations=allocations
    )


@dataclass(slots=True)
class NodeServer:
    """One node. answering: cleared to let questions wait. raw: sent instead of any answer.

    holds_polls: it waits as long as a long poll asks for; else it ignores long polls, as older servers do.

    hang_up: the next question on a connection that was used before is not answered but cut. late_s: how long
    it takes to answer. twice: each answer is followed by itself. restless: each answer is another
    report. etag: in place of the report's.
    """

    name: str
    address: str
    report: NodeReport
    raw: bytes | None = None
    hang_up: bool = False
    holds_polls: bool = False
    late_s: float = 0.0
    etag: bytes = b""
    twice: bool = False
    restless: bool = False
    asked: int = 0
    connections: int = 0
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    conditions: list[bytes] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    verdict: bytes = b"HTTP/1.1 204 No Content\r\n\r\n"

    def holds(self, **held: int | Sequence[int]) -> None:
        """Report these allocations from now on (see `report`)."""
        generation = int(self.report.generation.partition(".")[2]) + 1
        self.report = report(self.name, *self.report.pfs, generation=generation, held=held)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        asked_before = False
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if self.hang_up and asked_before:
                    self.hang_up = False
                    return
                asked_before = True
                if head.startswith(b"POST /v1/placements "):
                    size = re.search(rb"Content-Length: ([0-9]+)", head)
                    assert size
                    self.delivered.append((await reader.readexactly(int(size[1]))).decode())
                    writer.write(self.verdict)
                    continue
                self.asked += 1
                self.heard.set()
                held = re.search(rb"timeout_s=([0-9.]+)", head) if self.holds_polls else None
                if held:
                    await asyncio.sleep(float(held[1]))
                await self.answering.wait()
                await asyncio.sleep(self.late_s)
                if self.restless:
                    self.holds()
                writer.write(self._answer(head) * (2 if self.twice else 1))
                await writer.drain()
                if self.raw is not None:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        if self.raw is not None:
            return self.raw
        etag = self.etag or f'"{self.report.generation}"'.encode()
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        condition = lines.get(b"If-None-Match")
        if b"?watch=" in head and self.holds_polls:
            condition = etag
        if condition is not None:
            self.conditions.append(condition)
        if condition == etag:
            return b"HTTP/1.1 304 Not Modified\r\nETag: %b\r\n\r\n" % etag
        body = encode_report(self.report)
        return b"HTTP/1.1 200 OK\r\nETag: %b\r\nContent-Length: %d\r\n\r\n%b" % (etag, len(body), body)


@asynccontextmanager
async def node_servers(*names: str) -> AsyncIterator[tuple[int, dict[str, NodeServer]]]:
    """Servers of these nodes, each at an address of its own, all at one port."""
    port, nodes = 0, {}
    async with AsyncExitStack() as stack:
        for index, name in enumerate(names):
            node = NodeServer(name=name, address=f"127.0.7.{index + 1}", report=report(name))
            node.answering.set()
            server = await asyncio.start_server(node.talk, node.address, port)
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            nodes[name] = node
        yield port, nodes
