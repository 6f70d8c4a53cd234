"""The scheduler extender: filter and prioritize as kube-scheduler sees them, and asking nodes for reports.

The extender, the nodes and the scheduler's side are three processes joined by real sockets; only the API
server is left out. Budget: filter of 5,000 names, states cached and request seen before, 5 ms at the
median in the server. The time that the scheduler waits (with the way there and back and all other work of the
machine) is shown beside the time that the server's process itself ran.

`alike`: 50 different situations among all nodes; `distinct`: no two nodes are in the same; `changing`: as
alike, but never content with a report that was sent before.
"""

from __future__ import annotations

import asyncio
import json
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httptools
import httpx2
import msgspec
import pytest
import uvloop

from k8s_rdma import process
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.http_poller import HttpPoller, NodePollConfig
from k8s_rdma.extender.main import collect_seldom, freeze_heap, serve
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.http_server import listen
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.kube.api import NodeView
from k8s_rdma.kube.informer import Listed
from k8s_rdma.wire.json import large_buffer
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    encode_report,
    rates_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SITUATIONS = 50
PODS = 20
REQUESTS = {"small": [1_000], "large": [1_000] * 60, "refused": [99_000] * 4}
NODE_BYTES = 10_000
ROUNDS = 100


def address(index: int) -> str:
    """Return a node's address; every address of 127.0.0.0/8 is this host."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


def node_name(index: int) -> str:
    return f"node-{index}.example"


# The nodes: one process that answers at every address.


def report_of(index: int, kind: str) -> bytes:
    pcis = [f"0000:{bus:02x}:00.0" for bus in range(4)]
    foreign = index if kind == "distinct" else index % SITUATIONS
    pfs = tuple(
        PfReport(
            name=f"enp{bus}s0",
            pci=pci,
            driver="mlx5_core",
            capacity_vfs=64,
            link_mbps=100_000,
            rates=rates_of(EVERY_RATE),
        )
        for bus, pci in enumerate(pcis)
    )
    other = ForeignVf(vf=63, why="rates that are not ours", min_tx_rate=foreign, max_tx_rate=0)
    pfs = (msgspec.structs.replace(pfs[0], foreign=(other,)), *pfs[1:])
    allocations = tuple(
        Allocation(
            pod=ReportedPod(
                namespace="default", name=f"pod-{pod}", uid=f"{index:08x}-0000-4000-8000-{pod:012x}"
            ),
            container_id=f"{pod:064x}",
            phase="attached",
            interfaces=(
                Interface(
                    pf=pcis[pod % 4],
                    vf=pod,
                    ifname="eth0",
                    mac="",
                    min_tx_rate=1_000,
                    max_tx_rate=0,
                    set_min_tx_rate=1_000,
                    set_max_tx_rate=0,
                    enforced=Enforced(min="hardware", max=None),
                ),
            ),
        )
        for pod in range(PODS)
    )
    return encode_report(
        NodeReport(node=node_name(index), generation="e.1", ledger="ok", pfs=pfs, allocations=allocations)
    )


class NodeProtocol(asyncio.Protocol):
    """Answers every question; the node is known by the address that was called."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._conditional = False
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        """Learn which node was called."""
        self._transport = transport
        _, _, high, low = transport.get_extra_info("sockname")[0].split(".")
        self._body = report_of(int(high) * 250 + int(low) - 1, self._kind)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Note a condition."""
        if name.lower() == b"if-none-match" and self._kind != "changing":
            self._conditional = True

    def on_message_complete(self) -> None:
        """Answer the request."""
        if self._conditional:
            self._transport.write(b'HTTP/1.1 304 Not Modified\r\netag: "e.1"\r\n\r\n')
        else:
            head = b'HTTP/1.1 200 OK\r\netag: "e.1"\r\ncontent-length: %d\r\n\r\n' % len(self._body)
            self._transport.write(head + self._body)
        self._conditional = False


async def nodes_process(kind: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NodeProtocol(kind), "0.0.0.0", 0, backlog=8192)
    announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


# The extender: as it is, with an API server that has these nodes and no pods.


class Nodes:
    """The part of `ClusterApi` that filter meets."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def follow_pods(self) -> AsyncIterator[Any]:
        """Follow an empty list."""
        yield Listed(())
        await asyncio.Event().wait()

    follow_budgets = follow_pods

    async def follow_nodes(self) -> AsyncIterator[Any]:
        """Follow a list that has all nodes from the start."""
        yield Listed(tuple(NodeView(NodeName(node_name(i)), (address(i),)) for i in range(self._count)))
        await asyncio.Event().wait()


async def extender_process(port: str, count: str) -> None:
    process.configure_logging("extender")
    collect_seldom()
    return_large_buffers()
    config = ExtenderConfig(
        source="http",
        node_port=int(port),
        max_age_s=3600.0,
        node_timeout_s=30.0,
        stale_s=3600.0,
        node_watches=0,
    )
    with listen("127.0.0.1", 0) as listener:
        announce(listener.getsockname()[1])
        nodes, stop = Nodes(int(count)), asyncio.Event()
        await serve(config, nodes, listener, stop=stop, when_known=freeze_heap)


def announce(port: int) -> None:
    print(port, flush=True)


# The wire alone: a server that sends each body back, or drops it, with as few system calls as there are.


def mirror_process(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        announce(server.getsockname()[1])
        connection, _ = server.accept()
        while mirror(connection, drop=path == "drop"):
            pass


def mirror(connection: socket.socket, *, drop: bool) -> bool:
    """Answer one request; return False after the last."""
    data = connection.recv(256)
    if not data:
        return False
    head, _, begin = data.partition(b"\r\n\r\n")
    size = int(head.rpartition(b"Content-Length: ")[2])
    body = memoryview(large_buffer(size))
    body[: len(begin)] = begin
    filled = len(begin)
    while filled < size:
        filled += connection.recv_into(body[filled : filled + (1 << 20)])
    answer = b"" if drop else body
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer))
    connection.sendall(answer)
    return True


@contextmanager
def child(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a process of this file; yield its port and its process ID."""
    with subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


# The scheduler's side.


class Caller:
    """Posts as kube-scheduler does: one write, a connection that is kept until the extender closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self, path: str, body: bytes) -> bytes:
        """Return the answer's body."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return self._ask(head + body)

    def get(self, path: str) -> bytes:
        """Return the answer's body."""
        return self._ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def _ask(self, request: bytes) -> bytes:
        if select.select([self._socket], [], [], 0)[0]:  # closed since the last answer, as it was idle
            self.close()
            self._connect()
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive(65_536)
        head, _, rest = data.partition(b"\r\n\r\n")
        head = head.lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts = [rest]
        missing = length - len(rest)
        while missing:
            part = self._receive(min(missing, 1 << 20))
            parts.append(part)
            missing -= len(part)
        if b"connection: close" in head:
            self.close()
            self._connect()
        return b"".join(parts)

    def _receive(self, most: int) -> bytes:
        received = self._socket.recv(most)
        if not received:
            msg = "the extender closed the connection within an answer"
            raise ConnectionError(msg)
        return received


class Cluster:
    """An extender that has asked all its nodes once."""

    def __init__(self, caller: Caller, count: int, pid: int) -> None:
        self.post = caller.post
        self.count = count
        self._pid = pid

    def body(self, rates: list[int], *, full: bool = False) -> bytes:
        """Return the scheduler's request for a pod that wants interfaces with these reservations, Mb/s."""
        wanted = json.dumps([{"min_tx_rate": rate} for rate in rates])
        meta = {"name": "p", "namespace": "default", "uid": "u"}
        pod = {"metadata": {**meta, "annotations": {"rdma_interfaces_required": wanted}}, "spec": {}}
        names = [node_name(index) for index in range(self.count)]
        nodes = {"metadata": {}, "items": [node_object(i) for i in range(self.count)]} if full else None
        arguments = {"Pod": pod, "Nodes": nodes, "NodeNames": None if full else names}
        return json.dumps(arguments, separators=(",", ":")).encode()  # as Go writes it

    def ran_ms(self) -> float:
        """Return the processor time of the extender's process, all its threads."""
        tasks = Path(f"/proc/{self._pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6

    def resident_mib(self) -> int:
        """Return the extender's resident memory now."""
        pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize() // 2**20


def node_object(index: int) -> dict[str, Any]:
    """Return a node as the API server has it, filled up to the size of real nodes."""
    node: dict[str, Any] = {
        "metadata": {"name": node_name(index), "labels": {f"label-{i}": "value" for i in range(40)}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address(index)}],
            "images": [],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
    while (missing := NODE_BYTES - len(json.dumps(node, separators=(",", ":")))) > 0:
        image = {"names": ["registry.example/" + "x" * min(180, missing)], "sizeBytes": 10_000_000}
        node["status"]["images"].append(image)
    return node


@pytest.fixture(autouse=True, scope="module")
def _many_connections() -> None:
    allow_many_connections()


def allow_many_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[int, str], Cluster]]:
    """A function that returns a cluster of that many nodes of that kind; each is made once."""
    made: dict[tuple[int, str], Cluster] = {}
    with ExitStack() as stack:

        def start(count: int, kind: str) -> Cluster:
            if (count, kind) not in made:
                nodes, _ = stack.enter_context(child("nodes", kind))
                port, pid = stack.enter_context(child("extender", str(nodes), str(count)))
                caller = stack.enter_context(closing(Caller(port)))
                while caller.get("/readyz") != b"ok\n":
                    time.sleep(0.01)
                cluster = made[count, kind] = Cluster(caller, count, pid)
                answer = json.loads(cluster.post("/scheduler/rdma_scheduling", cluster.body([1])))
                assert len(answer["NodeNames"]) == count, answer
            return made[count, kind]

        yield start


def rows(*cases: tuple[Any, ...]) -> list[Any]:
    """Return cases of a benchmark, each with its row's name and budget (ms) last."""
    return [
        pytest.param(*case, marks=pytest.mark.budget(name, budget, "ms")) for *case, name, budget in cases
    ]


SEEN = [
    (count, kind, f"filter, {count:,} names, request seen before, {kind}, as the scheduler sees it", None)
    for count in (1_000, 5_000)
    for kind in REQUESTS
]
INTERFACES = (1, 8, 16, 60)
TIGHT_MBPS = 97_000
"""More than is free of any PF, and less than a PF has."""


@pytest.mark.parametrize(("count", "request_kind"), rows(*SEEN))
def test_filter_by_names(benchmark, started, count: int, request_kind: str) -> None:
    cluster = started(count, "alike")
    body = cluster.body(REQUESTS[request_kind])
    answer = json.loads(benchmark(cluster.post, "/scheduler/rdma_scheduling", body))
    assert len(answer["FailedNodes"]) == (count if request_kind == "refused" else 0)


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_filter_by_names_in_the_server(record, started, request_kind: str) -> None:
    cluster = started(5_000, "alike")
    body = cluster.body(REQUESTS[request_kind])
    ran = []
    for _ in range(ROUNDS):
        before = cluster.ran_ms()
        cluster.post("/scheduler/rdma_scheduling", body)
        ran.append(cluster.ran_ms() - before)
    name = f"filter, 5,000 names, request seen before, {request_kind}, in the server"
    record(name, budget=5, measured=statistics.median(ran), unit="ms", note="run time of its process")


@pytest.mark.parametrize("interfaces", INTERFACES)
@pytest.mark.parametrize("count", [1_000, 5_000])
def test_filter_by_names_of_a_request_not_seen_before(record, started, count: int, interfaces: int) -> None:
    requests = [[rate] * interfaces for rate in range(700, 722)]
    alike, distinct = _ran_ms(started, count, requests)
    _record_unseen(record, f"{count:,} names, {interfaces} interfaces", 10, alike, distinct)


@pytest.mark.parametrize("count", [1_000, 5_000])
def test_filter_by_names_of_a_request_not_seen_before_that_is_refused(record, started, count: int) -> None:
    alike, distinct = _ran_ms(started, count, [[rate] for rate in range(TIGHT_MBPS, TIGHT_MBPS + 22)])
    _record_unseen(record, f"{count:,} names, refused by all", None, alike, distinct)


def _ran_ms(started, count: int, requests: list[list[int]]) -> tuple[float, float]:
    """Return the extender's processor time, with equal nodes and with distinct ones, in turn."""
    clusters = [started(count, kind) for kind in ("alike", "distinct")]
    ran: tuple[list[float], list[float]] = ([], [])
    for rates in requests:
        for cluster, times in zip(clusters, ran, strict=True):
            before = cluster.ran_ms()
            cluster.post("/scheduler/rdma_scheduling", cluster.body(rates))
            times.append(cluster.ran_ms() - before)
    alike, distinct = (statistics.median(times[2:]) for times in ran)
    return alike, distinct


def _record_unseen(record, which: str, budget: int | None, alike: float, distinct: float) -> None:
    name = f"filter, {which}, request not seen before, no two nodes alike, in the server"
    record(name, budget=budget, measured=distinct, unit="ms", note=f"{alike:.1f} ms with equal nodes")


@pytest.mark.parametrize(
    "count", rows(*((count, f"prioritize, {count:,} names", None) for count in (1_000, 5_000)))
)
def test_prioritize_by_names(benchmark, started, count: int) -> None:
    cluster = started(count, "alike")
    scores = json.loads(benchmark(cluster.post, "/scheduler/prioritize", cluster.body(REQUESTS["small"])))
    assert len(scores) == count


@pytest.mark.parametrize("count", [1_000, 5_000])
def test_resident_memory(record, started, count: int) -> None:
    cluster = started(count, "alike")
    for full in (False, count == 1_000):
        cluster.post("/scheduler/rdma_scheduling", cluster.body(REQUESTS["large"], full=full))
    name = f"extender, resident memory, {count:,} nodes"
    record(name, budget=None, measured=cluster.resident_mib(), unit="MiB", note="one connection a node")


@pytest.mark.parametrize(
    ("count", "request_kind"),
    rows(
        (1_000, "small", "filter, 1,000 full nodes (10 MB), all fit", 30),
        (1_000, "refused", "filter, 1,000 full nodes (10 MB), none fits", 30),
        (5_000, "small", "filter, 5,000 full nodes (50 MB), all fit", None),
        (5_000, "refused", "filter, 5,000 full nodes (50 MB), none fits", None),
    ),
)
def test_filter_by_full_nodes(benchmark, started, count: int, request_kind: str) -> None:
    cluster = started(count, "alike")
    body = cluster.body(REQUESTS[request_kind], full=True)
    assert len(body) > count * NODE_BYTES
    benchmark(cluster.post, "/scheduler/rdma_scheduling", body)


@pytest.mark.parametrize(
    ("kind", "answer", "work"), [("small", "mirror", "all fit"), ("refused", "drop", "none fits")]
)
def test_filter_by_full_nodes_beside_the_wire(record, started, kind: str, answer: str, work: str) -> None:
    """In turn with a server that receives the same body, and sends it back if all nodes fit."""
    cluster = started(5_000, "alike")
    body = cluster.body(REQUESTS[kind], full=True)
    with child("mirror", answer) as (port, _), closing(Caller(port)) as mirror_caller:
        times: dict[Callable[[str, bytes], bytes], list[float]] = {cluster.post: [], mirror_caller.post: []}
        for _ in range(12):
            for post, taken in times.items():
                began = time.perf_counter()
                post("/scheduler/rdma_scheduling", body)
                taken.append(time.perf_counter() - began)
    extender_ms, wire_ms = (1e3 * statistics.median(taken[2:]) for taken in times.values())
    record(
        f"filter, 5,000 full nodes (50 MB), {work}, beside the wire alone",
        budget=None,
        measured=extender_ms / wire_ms,
        unit="times",
        note=f"{extender_ms:.0f} and {wire_ms:.0f} ms",
    )


@pytest.mark.parametrize(
    "what",
    rows(
        ("reports", "asking 1,000 nodes, every report changed", 1_000),
        ("unchanged", "asking 1,000 nodes, nothing changed", 1_000),
    ),
)
def test_asking_1000_nodes(benchmark, what: str) -> None:
    count = 1_000
    kind = "changing" if what == "reports" else "alike"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, child("nodes", kind) as (port, _):
        state = ClusterState()
        states = HttpPoller(state, NodePollConfig(port=port, timeout_s=30.0), time.monotonic)
        names = [NodeName(node_name(index)) for index in range(count)]
        runner.run(states.__aenter__())
        for index, name in enumerate(names):
            states.learn(name, (address(index),))

        async def ask() -> None:
            await states.refresh(names, newer_than=time.monotonic())

        benchmark.pedantic(lambda: runner.run(ask()), rounds=20, warmup_rounds=1)
        assert len(state.snapshots) == count
        runner.run(states.__aexit__(None, None, None))


@pytest.mark.budget("asking 1,000 nodes through httpx, for comparison", None, "ms")
def test_asking_1000_nodes_through_a_general_client(benchmark) -> None:
    """The same questions through httpx, which the extender does not use for this reason; seconds a round."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, child("nodes", "alike") as (port, _):
        client = httpx2.AsyncClient(limits=limits, timeout=60, trust_env=False)
        urls = [f"http://{address(index)}:{port}/v1/node" for index in range(1_000)]

        async def ask() -> None:
            answers = await asyncio.gather(*(client.get(url) for url in urls))
            assert all(answer.status_code == 200 for answer in answers)

        benchmark.pedantic(lambda: runner.run(ask()), rounds=1, warmup_rounds=1)
        runner.run(client.aclose())


if __name__ == "__main__":
    allow_many_connections()
    if sys.argv[1] == "mirror":
        mirror_process(sys.argv[2])
    else:
        uvloop.run({"nodes": nodes_process, "extender": extender_process}[sys.argv[1]](*sys.argv[2:]))
