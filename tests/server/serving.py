"""A server over real sockets, and an agent played on a real `state.sock`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx2
import uvloop

from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.http_server import listen
from k8s_rdma.http_server.asgi import EVERYBODY, Access
from k8s_rdma.server.agent_link import AnswersLink, TrafficReader
from k8s_rdma.server.main import serve
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    VfReport,
    encode_report,
    rates_of,
)
from k8s_rdma.wire.state_socket import (
    HEADER,
    Counters,
    MessageKind,
    decode_header,
    encode_counters,
    encode_message,
)
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from pathlib import Path


DEADLINE_S = 120
THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def vf(index: int, *, rate: int = 0, allocated: bool = False) -> VfReport:
    return VfReport(
        vf=index,
        mac=f"0a:00:00:00:00:{index:02x}",
        vlan=0,
        qos=0,
        vlan_proto="N/A",
        spoof_check="OFF",
        trust="ON",
        link_state="Follow",
        min_tx_rate=rate,
        max_tx_rate=0,
        vgt_plus="OFF",
        rate_group=0,
        allocated=allocated,
    )


def foreign(vf: int, rate: int) -> ForeignVf:
    return ForeignVf(vf=vf, why="rates that are not ours", min_tx_rate=rate, max_tx_rate=0)


def report(generation: str = "e.1", **changes: Any) -> NodeReport:
    pf = PfReport(
        name="enp3s0f0",
        pci="0000:03:00.0",
        driver="mlx5_core",
        capacity_vfs=2,
        link_mbps=1000,
        rates=rates_of(EVERY_RATE),
        vfs=(vf(0, rate=300, allocated=True), vf(1)),
    )
    held = Interface(
        pf=pf.pci,
        vf=0,
        ifname="rdma0",
        mac="0a:00:00:00:00:00",
        min_tx_rate=300,
        max_tx_rate=0,
        set_min_tx_rate=300,
        set_max_tx_rate=0,
        enforced=Enforced(min="hardware", max=None),
    )
    allocation = Allocation(
        pod=ReportedPod(namespace="default", name="p", uid="u"),
        container_id="c",
        phase="attached",
        interfaces=(held,),
    )
    fields = {"node": "w1", "ledger": "ok", "pfs": (pf,), "allocations": (allocation,), **changes}
    return NodeReport(generation=generation, **fields)


@dataclass
class PlayedAgent:
    """Accepts on `state.sock`; the test decides which messages a reader gets."""

    _server: asyncio.Server
    _accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    _readers: list[asyncio.StreamReader] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def accept(self) -> None:
        reader, writer = await self._accepted.get()
        self._readers.append(reader)
        self._writers.append(writer)

    async def asked(self) -> MessageKind:
        """The kind of the reader's next message, which has no body."""
        kind, size = decode_header(await self._readers[-1].readexactly(HEADER.size))
        assert size == 0
        return kind

    async def placement(self) -> bytes:
        """The next placement that comes."""
        kind, size = decode_header(await self._readers[-1].readexactly(HEADER.size))
        assert kind is MessageKind.PLACEMENT
        return await self._readers[-1].readexactly(size)

    async def answer(self, counters: Counters) -> None:
        await self.send_bytes(encode_message(MessageKind.COUNTERS, encode_counters(counters)))

    async def send(self, told: NodeReport) -> None:
        await self.send_bytes(framed(encode_report(told)))

    async def send_bytes(self, data: bytes) -> None:
        self._writers[-1].write(data)
        await self._writers[-1].drain()

    def hang_up(self) -> None:
        self._writers[-1].close()


def framed(document: bytes) -> bytes:
    return encode_message(MessageKind.REPORT, document)


@asynccontextmanager
async def played_agent(run_dir: Path) -> AsyncIterator[PlayedAgent]:
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    path = run_dir / "state.sock"
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(lambda *streams: accepted.put_nowait(streams), path)
    agent = PlayedAgent(server, accepted)
    try:
        yield agent
    finally:
        agent._server.close()
        for writer in [*agent._writers, *(accepted.get_nowait()[1] for _ in range(accepted.qsize()))]:
            writer.close()


@asynccontextmanager
async def telling_agent(run_dir: Path, told: NodeReport) -> AsyncIterator[PlayedAgent]:
    """An agent that has accepted a reader and sent it this report."""
    async with played_agent(run_dir) as agent:
        await agent.accept()
        await agent.send(told)
        yield agent


@asynccontextmanager
async def serving(
    run_dir: Path,
    *,
    access: Access = EVERYBODY,
    headers: Mapping[str, str] | None = None,
    stop: asyncio.Event | None = None,
    traffic: TrafficReader | None = None,
    **link: Any,
) -> AsyncIterator[httpx2.AsyncClient]:
    """A server of this run directory, and a client of it; it does not wait for counters by default."""
    stop = stop or asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        made = AnswersLink(run_dir / "state.sock", **{"scan": None, "clock": lambda: THEN, **link})
        made.traffic = traffic or TrafficReader(timeout_s=0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(listener, made, stop, access=access))
            async with httpx2.AsyncClient(
                base_url=f"http://{host}:{port}",
                trust_env=False,
                verify=NO_TLS,
                headers=headers,
                limits=httpx2.Limits(max_connections=None),
            ) as client:
                try:
                    yield client
                finally:
                    stop.set()


async def until(
    client: httpx2.AsyncClient, path: str, holds: Callable[[httpx2.Response], bool]
) -> httpx2.Response:
    """The first answer for which it holds; each look is a request."""
    while not holds(answer := await client.get(path)):
        pass
    return answer


async def until_generation(client: httpx2.AsyncClient, generation: str) -> httpx2.Response:
    return await until(client, "/v1/node", lambda answer: answer.headers.get("etag") == f'"{generation}"')


def run(test: Coroutine[Any, Any, None], *, deadline_s: float = DEADLINE_S) -> None:
    """Run a test on the event loop that the server has."""

    async def within_deadline() -> None:
        async with asyncio.timeout(deadline_s):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within_deadline())
