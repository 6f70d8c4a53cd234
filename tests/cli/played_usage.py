"""Nodes and a Prometheus that the tests play, with the traffic of pods."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from cli.asking import Ran, k8s_rdma
from k8s_rdma.cli.node_readings import NodeReader, Sampling
from k8s_rdma.cli.node_servers import NodeServers
from k8s_rdma.cli.service_proxy import ServiceProxy
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.report import ReportedPod, encode_report
from kube.stored_objects import serving_objects
from server.serving import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PCI = "0000:03:00.0"
IN_NAMESPACE = "/api/v1/namespaces/k8s-rdma"
SERVER = {"name": "server", "ports": [{"containerPort": 54005}]}
LABELS = (
    'interface="rdma0",namespace="{namespace}",node="{node}",pci="0000:03:00.0",pf="enp3s0f0",'
    'pod="{pod}",vf="0"'
)


def pod(
    name: str, owner: tuple[str, str] | None = None, namespace: str = "default", **labels: str
) -> dict[str, Any]:
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"u-{name}",
            "labels": labels,
            "ownerReferences": owners,
            "annotations": {"k8s-rdma.io/interfaces": '[{"min_tx_rate": 300}]'},
        },
        "spec": {"nodeName": "w1"},
    }


def items(*documents: object) -> bytes:
    return json.dumps({"items": documents}).encode()


def stored(*pods: dict[str, Any], namespace: str = "default") -> dict[str, bytes | int]:
    """Return the API server's answers: pods of a namespace, and the chart's pod on the node."""
    return {
        f"/api/v1/namespaces/{namespace}/pods": items(*pods),
        f"{IN_NAMESPACE}/pods": items({"metadata": {"name": "node-x"}, "spec": {"containers": [SERVER]}}),
    }


@contextmanager
def answering(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """An HTTP server. answer: the status and the body for a path with its query."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class PlayedNode:
    """A node whose pods send at constant rates, in Mb/s, by a clock that the test advances."""

    mbps: dict[str, int]
    node: str = "w1"
    namespace: str = "default"
    now_s: float = 1_000_000.0
    dropped_per_s: int = 0
    failing: set[float] = field(default_factory=set)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def answer(self, path: str) -> tuple[int, bytes]:
        if self.now_s in self.failing:
            return 503, b"{}"
        if urlsplit(path).path == "/v1/node":
            told = report(node=self.node)
            allocation = told.allocations[0]
            holder = ReportedPod(namespace=self.namespace, name=min(self.mbps), uid="u")
            return 200, encode_report(
                report(
                    node=self.node, allocations=(type(allocation)(**{**fields(allocation), "pod": holder}),)
                )
            )
        lines = [f'k8s_rdma_sample_age_seconds{{node="{self.node}"}} 0.0']
        for name, mbps in self.mbps.items():
            labels = LABELS.format(node=self.node, pod=name, namespace=self.namespace)
            since_s = self.now_s - 1_000_000
            for metric, value in (
                ("transmitted_bytes_total", since_s * mbps * 125_000),
                ("received_bytes_total", since_s * 125_000),
                ("transmitted_dropped_total", since_s * self.dropped_per_s),
                ("reserved_bits_per_second", 3e8),
            ):
                lines.append(f"k8s_rdma_vf_{metric}{{{labels}}} {value}")
            lines += [
                f'k8s_rdma_vf_rdma_counter_total{{{labels},counter="packet_seq_err"}} 2.0',
                f'k8s_rdma_vf_rdma_counter_total{{{labels},counter="local_ack_timeout_err"}} 1.0',
                f'k8s_rdma_vf_rdma_counter_total{{{labels},counter="np_cnp_sent"}} 9.0',
            ]
        return 200, "\n".join([*lines, ""]).encode()


def fields(allocation: Any) -> dict[str, Any]:
    return {name: getattr(allocation, name) for name in allocation.__struct_fields__}


@contextmanager
def sampled(
    node: PlayedNode,
    directory: Path,
    seconds: float,
    *pods: str,
    sleep: Callable[[float], object] | None = None,
) -> Iterator[Sampling]:
    """Readings of a played node, by the API server's proxy. sleep: one that Ctrl-C ends."""
    with ExitStack() as stack:
        url = stack.enter_context(answering(node.answer))
        proxied = {f"{IN_NAMESPACE}/pods/node-x:54005/proxy": url}
        kubeconfig = stack.enter_context(serving_objects(stored(), directory, proxied))
        api = stack.enter_context(Documents(kubeconfig))
        reader = NodeReader(servers=NodeServers(proxy=ServiceProxy(api=api)), clock=node.clock)
        sampling = Sampling(reader=reader, nodes=["w1"], pods=frozenset(("default", name) for name in pods))
        assert sampling.run(seconds, sleep or node.sleep) is (sleep is None)
        yield sampling


@dataclass
class PlayedPrometheus:
    """Series of one pod on one VF, in an hour of readings every 30 s."""

    mbps: int = 100
    labels: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes]:
        asked = urlsplit(path)
        query = parse_qs(asked.query)
        self.asked.append(query)
        metric = {
            "node": "w1",
            "pf": "enp3s0f0",
            "pci": "0000:03:00.0",
            "vf": "0",
            "namespace": "default",
            "pod": "p",
            "interface": "rdma0",
            **self.labels,
        }
        if asked.path == "/api/v1/series":
            return 200, json.dumps({"status": "success", "data": [metric]}).encode()
        text = query["query"][0]
        begin, end, step = (float(query[key][0]) for key in ("start", "end", "step"))
        times = [begin + step * index for index in range(int((end - begin) / step) + 1)]
        rates = {"transmitted_bytes": self.mbps, "received_bytes": 1}
        per_s = next((rate * 125_000 for name, rate in rates.items() if name in text), 0)
        flat = {"timestamp": None, "reserved": 3e8, "link": 1e11}
        value = next((each for name, each in flat.items() if name in text), 0)
        values = [(at, str(at if value is None else value or (at - begin) * per_s)) for at in times]
        by = {"node": "w1", "pci": "0000:03:00.0"} if "link" in text else metric
        if "cap_bits" in text or "dropped" in text or "rdma_counter" in text:
            return 200, b'{"status": "success", "data": {"result": []}}'
        result = [{"metric": by, "values": values}]
        return 200, json.dumps({"status": "success", "data": {"result": result}}).encode()


async def recommended(
    answer: Callable[[str], tuple[int, bytes]], directory: Path, *words: str, pods: Any = None
) -> Ran:
    with answering(answer) as url, serving_objects(stored(*(pods or [pod("p")])), directory) as kubeconfig:
        return await k8s_rdma("recommend", "--kubeconfig", kubeconfig, "--prometheus", url, *words)
