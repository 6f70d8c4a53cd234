"""The extender in a cluster of 5,000 nodes that publish `RdmaNode` objects, of 2 PFs and 20 allocations each.

The extender is the real process with its configuration file; the API server, with the nodes' agents and all
pods in it, is one fast process (`large_cluster.py`), the scheduler's side this one. Meanwhile every
node renews its Lease every 60 s: 83 events a second.
"""

from __future__ import annotations

import itertools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from large_cluster import KEY_FILE, new_pod, node_name
from test_extender import REQUESTS, Caller, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Record

NODES = 5_000
SMALL, STARTS = 1_000, 3
PODS = 20
PENDING = 8_000
ROUNDS = 300
SENT = 500
"""Nodes that kube-scheduler sends of 5,000 (`percentageOfNodesToScore` unset): a tenth."""

BINDING_S = 10.0
IN_FLIGHT = 8
HERE = Path(__file__).parent
PROGRAM = Path(sys.executable).with_name("k8s-rdma")
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


class Large(Cluster):
    """A running extender. port: its own. ready_s: from its start to `/readyz`, and so long on a processor."""

    def __init__(self, caller: Caller, pid: int, port: int, ready_s: float, nodes: int) -> None:
        super().__init__(caller, nodes, pid)
        self.port = port
        self.ready_s = ready_s
        self.ready_processor_s = self.ran_ms() / 1e3


@contextmanager
def process(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=HERE,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()  # an extender then gives its Lease back, for which the next one would wait


def free_port() -> int:
    """Return a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_config(directory: Path, api: str) -> tuple[Path, int]:
    """Write the extender's files; return the path of its configuration, and the port that it listens on."""
    port = free_port()
    (directory / "kubeconfig").write_text(KUBECONFIG.format(port=api))
    (directory / "key").write_bytes(KEY_FILE)
    config = directory / "extender.yaml"
    config.write_text(
        f"kubeconfig: {directory}/kubeconfig\nplacementKeyFile: {directory}/key\nport: {port}\nsource: crd\n"
    )
    return config, port


def wait_ready(port: int) -> None:
    """Wait until `/readyz` is well."""
    while True:
        try:
            with closing(Caller(port)) as caller:
                if caller.get("/readyz") == b"ok\n":
                    return
        except OSError:
            pass
        time.sleep(0.02)


def lists_s(kubeconfig: Path) -> float:
    """Return the processor time of the lists of pods and RdmaNodes, without using the values."""
    with process(sys.executable, HERE / "lists_program.py", kubeconfig) as running:
        return float(running.stdout.readline())


@contextmanager
def extender(api: int, directory: Path, nodes: int) -> Iterator[Large]:
    """Run one that is ready, of an API server with so many nodes."""
    config, port = write_config(directory, str(api))
    began = time.monotonic()
    with process(PROGRAM, "extender", "--config", config) as running:
        threading.Thread(target=running.stdout.read, daemon=True).start()
        wait_ready(port)
        ready_s = time.monotonic() - began
        with closing(Caller(port)) as caller:
            yield Large(caller, running.pid, port, ready_s, nodes)


@contextmanager
def api_server(nodes: int, kind: str, pods: int = PODS) -> Iterator[int]:
    """Run the API server of a cluster with so many pods a node; yield its port."""
    with process(sys.executable, HERE / "large_cluster.py", str(nodes), str(pods), kind) as running:
        yield int(running.stdout.readline())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Large, int]]]:
    """A function that returns a cluster of that kind, and its API server's port; each is made once."""
    made: dict[str, tuple[Large, int]] = {}
    with ExitStack() as stack:

        def start(kind: str) -> tuple[Large, int]:
            if kind not in made:
                api = stack.enter_context(api_server(NODES, kind))
                running = stack.enter_context(extender(api, tmp_path_factory.mktemp(kind), NODES))
                made[kind] = running, api
            return made[kind]

        yield start


def test_start_up(record: Record, tmp_path: Path) -> None:
    """Start and list in turn, on an API server of their own: beside a leader an extender is never ready."""
    what = f"{NODES:,} nodes, {NODES * PODS:,} pods"
    clock, ran, alone, resident = [], [], [], []
    with api_server(NODES, "alike") as api:
        for _ in range(STARTS):
            with extender(api, tmp_path, NODES) as cluster:
                clock.append(cluster.ready_s)
                ran.append(cluster.ready_processor_s)
                for request in REQUESTS.values():
                    cluster.post("/scheduler/rdma_scheduling", cluster.body(request))
                resident.append(cluster.resident_mib())
            alone.append(lists_s(tmp_path / "kubeconfig"))
    note = f"processor {statistics.median(ran):.1f} s; the lists alone {statistics.median(alone):.1f} s"
    record(f"extender, start to ready, {what}", budget=5, measured=clock, unit="s", note=note)
    ratios = [whole / lists for whole, lists in zip(ran, alone, strict=True)]
    record(
        f"extender, start to ready, {what}, processor, beside reading the lists alone",
        budget=2,
        measured=ratios,
        unit="times",
        note=note,
    )
    name = f"extender, resident memory, {what}, crd source"
    record(name, budget=300, measured=resident, unit="MiB")


def test_first_request(record: Record, tmp_path: Path) -> None:
    """The first one after `/readyz`, with whole nodes, beside those that follow."""
    first, later = [], []
    with api_server(SMALL, "alike") as api:
        for _ in range(STARTS):
            with extender(api, tmp_path, SMALL) as cluster:
                body = cluster.body(REQUESTS["small"], full=True)
                for times in (first, *[later] * 9):
                    began = time.perf_counter()
                    cluster.post("/scheduler/rdma_scheduling", body)
                    times.append(1e3 * (time.perf_counter() - began))
    ratio = statistics.median(first) / statistics.median(later)
    record(
        f"filter, {SMALL:,} full nodes, the first request after the start, beside later ones",
        budget=2,
        measured=ratio,
        unit="times",
        note=f"{statistics.median(first):.0f} and {statistics.median(later):.0f} ms",
    )


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_filter_of_a_request_seen_before(
    large: Callable[[str], tuple[Large, int]], record: Record, request_kind: str
) -> None:
    cluster, _ = large("alike")
    body = cluster.body(REQUESTS[request_kind])
    ran, waited = [], []
    for _ in range(ROUNDS):
        before, began = cluster.ran_ms(), time.perf_counter()
        cluster.post("/scheduler/rdma_scheduling", body)
        waited.append(1e3 * (time.perf_counter() - began))
        ran.append(cluster.ran_ms() - before)
    what = f"filter, {NODES:,} names, crd source, request seen before, {request_kind}"
    record(f"{what}, in the server", budget=5, measured=statistics.median(ran), unit="ms", note="median")
    slow = statistics.quantiles(waited, n=100)[98]
    record(f"{what}, over HTTP, 99th percentile", budget=10, measured=slow, unit="ms")


@pytest.mark.parametrize("kind", ["alike", "distinct"])
def test_filter_of_a_request_not_seen_before(
    large: Callable[[str], tuple[Large, int]], record: Record, kind: str
) -> None:
    cluster, _ = large(kind)
    rates = itertools.count(2_001)
    waited = []
    for _ in range(20):
        body = cluster.body([next(rates)] * 8)
        began = time.perf_counter()
        cluster.post("/scheduler/rdma_scheduling", body)
        waited.append(1e3 * (time.perf_counter() - began))
    name = f"filter, {NODES:,} names, crd source, request not seen before, nodes {kind}"
    record(name, budget=None, measured=statistics.median(waited), unit="ms", note="over HTTP")


class Scheduler:
    """kube-scheduler's side: filter and prioritize one pod after another, binds beside them."""

    def __init__(self, cluster: Large) -> None:
        self._cluster = cluster
        self._free = threading.Semaphore(IN_FLIGHT)
        self._callers = [Caller(cluster.port) for _ in range(IN_FLIGHT)]
        self.errors: list[str] = []
        self.bound = 0

    def schedule(self, pods: Iterator[int], sent: int) -> float:
        """Bind pods for a while; return how many a second."""
        names = itertools.cycle([[node_name(at + i) for i in range(sent)] for at in range(0, NODES, sent)])
        began, before = time.monotonic(), self.bound
        threads: list[threading.Thread] = []
        while time.monotonic() - began < BINDING_S:
            pod, candidates = new_pod(next(pods)), next(names)
            args = {"Pod": pod, "Nodes": None, "NodeNames": candidates}
            fitting = json.loads(self._cluster.post("/scheduler/rdma_scheduling", json.dumps(args).encode()))[
                "NodeNames"
            ]
            args["NodeNames"] = fitting
            scores = json.loads(self._cluster.post("/scheduler/prioritize", json.dumps(args).encode()))
            best = max(scores, key=lambda each: each["Score"])["Host"]
            self._free.acquire()
            threads.append(threading.Thread(target=self._bind, args=(pod, best)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return (self.bound - before) / (time.monotonic() - began)

    def close(self) -> None:
        """Close the connections."""
        for caller in self._callers:
            caller.close()

    def _bind(self, pod: dict[str, Any], node: str) -> None:
        caller = self._callers.pop()
        meta = pod["metadata"]
        args = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        }
        error = json.loads(caller.post("/scheduler/bind", json.dumps(args).encode()))["Error"]
        if error:
            self.errors.append(error)
        else:
            self.bound += 1
        self._callers.append(caller)
        self._free.release()


def test_bindings(large: Callable[[str], tuple[Large, int]], record: Record) -> None:
    cluster, api = large("alike")
    pods = iter(range(PENDING))
    with closing(Caller(api)) as caller:
        caller.post(f"/create-pods?count={PENDING}", b"")
    with closing(Scheduler(cluster)) as scheduler:
        for sent in (SENT, NODES):
            ran, bound = cluster.ran_ms(), scheduler.bound
            rate = scheduler.schedule(pods, sent)
            ran_ms = (cluster.ran_ms() - ran) / (scheduler.bound - bound)
            assert not scheduler.errors, scheduler.errors[:3]
            name = f"bindings, each with filter and prioritize of {sent:,} names"
            note = f"{ran_ms:.1f} ms of the extender's run time each, Leases of all nodes included"
            budget = 100 if sent == SENT else None
            record(name, budget=budget, measured=rate, unit="1/s", at_least=True, note=note)
