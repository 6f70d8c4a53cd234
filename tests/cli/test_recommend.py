"""Recommendations by nodes' servers and by Prometheus: figures, and sources that fail."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
import typer
import yaml

from cli.asking import ENVIRONMENT, MAIN, Ran, k8s_rdma
from cli.on_terminal import on_terminals
from k8s_rdma.cli.duration_option import read_duration
from k8s_rdma.cli.node_readings import NodeReader, Sampling
from k8s_rdma.cli.node_servers import NodeServers
from k8s_rdma.cli.prometheus_address import PrometheusAddress
from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.cli.prometheus_readings import MAX_POINTS, MAX_SERIES, POINTS_OF_AN_ANSWER, ReadWindow
from k8s_rdma.cli.service_proxy import NoAnswerError, ServiceProxy
from k8s_rdma.core.usage import use_of
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.prometheus import decode_series
from k8s_rdma.wire.rdma_node import encode_status, status_of
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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
    """What the API server has: pods of a namespace, and the chart's pod on the node."""
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


def test_nodes_are_sampled_every_15_s_until_the_time_is_over(tmp_path: Path):
    node = PlayedNode({"p": 100, "of-others": 7})
    with sampled(node, tmp_path, 60, "p") as sampling:
        [series] = sampling.series()
    assert [reading.at_s - 1_000_000 for reading in series.readings] == [0, 15, 30, 45, 60]
    use = use_of([series], 1_000_000, 1_000_060)
    assert use.sent is not None
    assert (use.sent.p50, use.sent.maximum) == (100, 100)
    assert (use.holder.pod, use.reserved_mbps, use.cap_mbps, use.link_mbps) == ("p", 300, 0, 1000)
    assert (use.losses.dropped, use.losses.retransmitted) == (0, 0)
    assert series.readings[0].retransmitted == 3


def test_node_that_is_away_for_a_while_is_a_gap(tmp_path: Path):
    node = PlayedNode({"p": 100}, failing={1_000_000.0 + 15 * number for number in (4, 5, 6)})
    with sampled(node, tmp_path, 150, "p") as sampling:
        [series] = sampling.series()
        assert sampling.reader.notes == {}
    coverage = use_of([series], 1_000_000, 1_000_150).coverage
    assert (coverage.gaps, coverage.gap_s, coverage.measured_s) == (1, 60, 90)


def test_node_that_names_another_one_is_not_believed(tmp_path: Path):
    with sampled(PlayedNode({"p": 100}, node="w2"), tmp_path, 15, "p") as sampling:
        assert sampling.series() == []
    assert "not of 'w1'" in sampling.reader.notes["w1"]


def test_node_that_drops_below_a_reservation_has_unmet_demand(tmp_path: Path):
    with sampled(PlayedNode({"p": 100}, dropped_per_s=5), tmp_path, 90, "p") as sampling:
        use = use_of(sampling.series(), 1_000_000, 1_000_090)
    [period] = use.unmet
    assert (period.from_s, period.to_s, period.dropped) == (1_000_000, 1_000_090, 450)


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


@pytest.mark.anyio
async def test_recommendation_by_prometheus_has_value_reason_and_certainty(tmp_path: Path):
    played = PlayedPrometheus()
    ran = await recommended(played.answer, tmp_path, "--window", "1h", "-o", "json")
    assert ran.status == 0, ran.err
    document = json.loads(ran.out)
    [found] = document["workloads"]
    assert (found["kind"], found["name"], found["interface"]) == ("Pod", "p", "rdma0")
    assert (found["reserved_mbps"], found["min_tx_rate"], found["max_tx_rate"]) == (300, 130, 0)
    assert found["sent"] == {"p50": 100.0, "p95": 100.0, "p99": 100.0, "maximum": 100.0}
    assert found["received"]["maximum"] == 1.0
    assert found["reason"].startswith("sent at most 100 Mb/s of 300 Mb/s in 1 hour: 130 Mb/s would have")
    assert (found["confidence"], found["freed_mbps"]) == ("low", 170)
    assert "whether its driver counts RDMA is not known" in found["confidence_reasons"]
    assert found["losses"] == {"dropped": None, "retransmitted": None}
    assert document["freed"] == [{"node": "w1", "pf": "enp3s0f0", "mbps": 170}]
    assert (document["source"], document["complete"], document["resolution_s"]) == ("prometheus", True, 15.0)
    assert any("its server was not read" in note for note in document["notes"])


@pytest.mark.anyio
async def test_recommendation_fits_80_columns(tmp_path: Path):
    played = PlayedPrometheus()
    with answering(played.answer) as url, serving_objects(stored(pod("p")), tmp_path) as kubeconfig:
        words = ("recommend", "--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h")
        ran = await on_terminals([60, 80, 200], *words)
    for width, each in ran.items():
        assert each.status == 0, each.out
        assert max(len(line) for line in each.out.splitlines() if "127.0.0.1" not in line) <= width
        assert "130Mb/s" in each.out
    heading = next(line for line in ran[80].out.splitlines() if line.startswith("WORKLOAD"))
    assert heading.split()[:2] == ["WORKLOAD", "INTERFACE"]


@pytest.mark.anyio
async def test_workload_is_named_by_kind_and_a_pod_by_its_name(tmp_path: Path):
    pods = [pod("p", ("StatefulSet", "train")), pod("q", ("StatefulSet", "other"))]
    for subject in ("p", "pod/p", "train", "statefulset/train", "StatefulSet/train"):
        ran = await recommended(
            PlayedPrometheus().answer, tmp_path, subject, "--window", "1h", "-o", "name", pods=pods
        )
        assert (ran.status, ran.out) == (0, "statefulset/train\n"), ran.err
    ran = await recommended(PlayedPrometheus().answer, tmp_path, "absent", pods=pods)
    assert ran.status == 2
    assert "absent: no pod or workload of namespace default" in ran.err


@pytest.mark.anyio
async def test_series_of_pods_that_the_api_server_does_not_list_are_not_shown(tmp_path: Path):
    for labels in ({"namespace": "secret"}, {"pod": "q"}, {"vf": "x"}, {"pf": "p" * 600}):
        ran = await recommended(PlayedPrometheus(labels=labels).answer, tmp_path, "--window", "1h")
        assert ran.status == 2
        assert "no interface of these pods has readings of Prometheus" in ran.err
        assert "secret" not in ran.out + ran.err


@pytest.mark.anyio
async def test_reader_of_a_namespace_asks_for_no_more_than_that(tmp_path: Path):
    played = PlayedPrometheus()
    ran = await recommended(played.answer, tmp_path, "--window", "1h", "-A")
    assert ran.status == 2  # all pods may not be listed: there is no such path
    ran = await recommended(played.answer, tmp_path, "--window", "1h")
    assert ran.status == 0
    queries = [text for asked in played.asked for text in asked.get("query", []) if "k8s_rdma_vf" in text]
    assert queries
    assert all('namespace="default", pod=~"p"' in text for text in queries)


@pytest.mark.anyio
async def test_labels_cannot_order_the_terminal(tmp_path: Path):
    ran = await recommended(
        PlayedPrometheus(labels={"interface": "x\x1b[2J"}).answer, tmp_path, "--window", "1h"
    )
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert "x\\x1b[2J" in ran.out


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (422, b'{"error": "query processing would load too many samples"}', "would load too many samples"),
        (200, b"<html>", "its answer cannot be read"),
        (200, b'{"data": [{"node": 3}]}', "its answer cannot be read"),
        (503, b"busy", "answers HTTP 503: busy"),
    ],
)
async def test_prometheus_that_refuses_is_named_with_its_words(
    status: int, body: bytes, why: str, tmp_path: Path
):
    ran = await recommended(lambda _: (status, body), tmp_path, "--window", "1h")
    assert ran.status == 2
    assert why in ran.err


@pytest.mark.anyio
async def test_pods_that_may_not_be_listed_are_an_error(tmp_path: Path):
    with serving_objects({"/api/v1/namespaces/default/pods": 403}, tmp_path) as kubeconfig:
        ran = await k8s_rdma("recommend", "--kubeconfig", kubeconfig)
    assert (ran.status, "HTTP 403" in ran.err) == (2, True)


@pytest.mark.anyio
async def test_too_little_data_of_nodes_is_no_suggestion_and_says_so(tmp_path: Path):
    node = PlayedNode({"p": 100})
    with answering(node.answer) as url:
        proxied = {f"{IN_NAMESPACE}/pods/node-x:54005/proxy": url}
        with serving_objects(stored(pod("p")), tmp_path, proxied) as kubeconfig:
            ran = await k8s_rdma("recommend", "--kubeconfig", kubeconfig, "--for", "1s", "-o", "json")
    assert ran.status == 0, ran.err
    [found] = json.loads(ran.out)["workloads"]
    assert (found["min_tx_rate"], found["confidence"]) == (None, "none")
    assert "3 intervals and 30 s are needed" in found["reason"]


def test_step_is_as_fine_as_the_bounds_allow():
    assert ReadWindow.stepped(0, 3600, 1).step_s == 15
    assert ReadWindow.stepped(0, 604_800, 1).step_s == 30
    many = ReadWindow.stepped(0, 604_800, 10_000)
    assert 604_800 / many.step_s * 10_000 <= MAX_POINTS
    for window in (ReadWindow.stepped(0, 604_800, 1), many):
        parts = list(window.parts())
        assert parts[0][0] == 0
        assert parts[-1][1] == 604_800
        assert all((end - begin) / window.step_s < POINTS_OF_AN_ANSWER for begin, end in parts)
        assert all(after[0] - before[1] == window.step_s for before, after in pairwise(parts))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("7d", 604_800), ("1h30m", 5400)])
def test_time_spans_are_as_prometheus_writes_them(text: str, seconds: int):
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "10", "-1s", "7 d", "1y", "400d", "9999999d"])
def test_malformed_time_span_is_refused(text: str):
    with pytest.raises(typer.BadParameter, match="wanted a time span"):
        read_duration(text)


def claimed_pod() -> dict[str, Any]:
    document = pod("p", ("StatefulSet", "train"))
    document["metadata"]["annotations"] = {}
    document["spec"]["resourceClaims"] = [
        {"name": "gpu", "resourceClaimTemplateName": "gpus"},
        {"name": "rdma", "resourceClaimTemplateName": "rails"},
    ]
    document["status"] = {
        "resourceClaimStatuses": [
            {"name": "gpu", "resourceClaimName": "p-gpu"},
            {"name": "rdma", "resourceClaimName": "p-rdma"},
        ]
    }
    return document


def claim_objects() -> dict[str, bytes | int]:
    base = "/apis/resource.k8s.io/v1/namespaces/default"
    device = {"driver": DRIVER, "pool": "w1", "device": "vf-0"}
    exact = {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": "300M", "vfs": "1"}}}
    parameters = {"apiVersion": "k8s-rdma.io/v1alpha1", "kind": "InterfaceConfig", "maxTxRate": "400M"}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "rails", "namespace": "default", "uid": "x", "managedFields": []},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "data", "exactly": exact}, {"name": "other", "exactly": exact}],
                    "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
                }
            }
        },
    }
    claim = {
        "metadata": {"name": "p-rdma", "namespace": "default"},
        "status": {
            "allocation": {"devices": {"results": [{**device, "request": "data"}]}},
            "devices": [{**device, "networkData": {"interfaceName": "rdma0"}}],
        },
    }
    return {
        f"{base}/resourceclaims/p-rdma": json.dumps(claim).encode(),
        f"{base}/resourceclaims/p-gpu": json.dumps({"metadata": {"name": "p-gpu"}}).encode(),
        f"{base}/resourceclaimtemplates/rails": json.dumps(template).encode(),
    }


async def requested(directory: Path, document: dict[str, Any], *words: str) -> Ran:
    answers = {**stored(document), **claim_objects()}
    with answering(PlayedPrometheus().answer) as url, serving_objects(answers, directory) as kubeconfig:
        options = ("--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h", "--apply-dry-run")
        return await k8s_rdma("recommend", *options, *words)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        (
            {"k8s-rdma.io/interfaces": '[{"min_tx_rate": 300}]'},
            {"k8s-rdma.io/interfaces": '[{"min_tx_rate":130}]'},
        ),
        (
            {"rdma_interfaces_required": '[{"min_tx_rate": 9}, {"min_tx_rate": 300, "name": "rdma0"}]'},
            {"rdma_interfaces_required": '[{"min_tx_rate":9},{"min_tx_rate":130,"name":"rdma0"}]'},
        ),
    ],
)
async def test_annotation_is_printed_with_the_suggested_rates_and_the_rest_as_it_was(
    annotations: dict[str, str], asked: dict[str, str], tmp_path: Path
):
    document = pod("p", ("StatefulSet", "train"))
    document["metadata"]["annotations"] = annotations
    ran = await requested(tmp_path, document)
    assert ran.status == 0, ran.err
    found = yaml.safe_load(ran.out)
    assert found["workload"] == "default/statefulset/train"
    assert {key: json.loads(text) for key, text in found["annotations"].items()} == {
        key: json.loads(text) for key, text in asked.items()
    }


@pytest.mark.anyio
async def test_claim_template_is_printed_with_the_suggested_bandwidth_of_its_request(tmp_path: Path):
    ran = await requested(tmp_path, claimed_pod(), "-o", "json")
    assert ran.status == 0, ran.err
    [template] = json.loads(ran.out)
    assert template["metadata"] == {"name": "rails", "namespace": "default"}
    devices = template["spec"]["spec"]["devices"]
    first, second = (each["exactly"]["capacity"]["requests"] for each in devices["requests"])
    assert first == {"bandwidth": "130M", "vfs": "1"}
    assert second == {"bandwidth": "300M", "vfs": "1"}
    assert "maxTxRate" not in devices["config"][0]["opaque"]["parameters"]


@pytest.mark.anyio
async def test_interface_whose_request_is_not_found_is_a_warning(tmp_path: Path):
    document = claimed_pod()
    del document["status"]
    ran = await requested(tmp_path, document)
    assert ran.status == 0
    assert "rdma0: what it was asked for by is not known" in ran.err


@pytest.mark.anyio
async def test_shape_that_cannot_be_read_is_found_at_once(tmp_path: Path):
    with serving_objects(stored(pod("p")), tmp_path) as kubeconfig:
        ran = await k8s_rdma("recommend", "--kubeconfig", kubeconfig, "--shape", str(tmp_path / "absent"))
    assert ran.status == 2
    assert "absent" in ran.err


@pytest.mark.anyio
@pytest.mark.parametrize("may_plan", [True, False])
async def test_pods_of_a_shape_that_fit_then_are_counted(may_plan: bool, tmp_path: Path):
    status = json.loads(encode_status(status_of(report(node="w1"))))
    holder = status["allocations"][0]["pod"]
    node = {"metadata": {"name": "w1", "labels": {}, "annotations": {}}, "spec": {}}
    document = pod("p")
    document["metadata"]["uid"] = holder["uid"]
    shape = tmp_path / "shape.json"
    shape.write_text('[{"min_tx_rate": 800}]')
    planning: dict[str, bytes | int] = {
        "/apis/k8s-rdma.io/v1alpha1/rdmanodes": items({"metadata": {"name": "w1"}, "status": status}),
        "/api/v1/nodes": items(node) if may_plan else 403,
        "/api/v1/pods": items(document),
        "/apis/scheduling.k8s.io/v1/priorityclasses": items(),
        "/api/v1/namespaces/k8s-rdma/configmaps/k8s-rdma-extender": json.dumps(
            {"data": {"extender.yaml": "source: http\n"}}
        ).encode(),
    }
    with (
        answering(PlayedPrometheus().answer) as url,
        serving_objects({**stored(document), **planning}, tmp_path) as kubeconfig,
    ):
        options = ("--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h", "-o", "json")
        ran = await k8s_rdma("recommend", *options, "--shape", str(shape))
    assert ran.status == 0, ran.err
    document = json.loads(ran.out)
    if may_plan:
        assert document["room"] == [{"shape": "default/pod", "now": 0, "then": 1}]
    else:
        assert document["room"] == []
        assert any("how many more pods fit is not known" in note for note in document["notes"])


@pytest.mark.anyio
async def test_ctrl_c_ends_sampling_with_the_figures_until_then(tmp_path: Path):
    node = PlayedNode({"p": 100})
    has_read = threading.Event()

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/metrics":
            has_read.set()
        return node.answer(path)

    with answering(answer) as url:
        proxied = {f"{IN_NAMESPACE}/pods/node-x:54005/proxy": url}
        with serving_objects(stored(pod("p")), tmp_path, proxied) as kubeconfig:
            process = await asyncio.create_subprocess_exec(
                *MAIN,
                *("recommend", "--kubeconfig", kubeconfig, "--for", "10m", "-o", "json"),
                stdout=asyncio.subprocess.PIPE,
                env=ENVIRONMENT,
            )
            await asyncio.to_thread(has_read.wait, 60)
            process.send_signal(signal.SIGINT)
            out, _ = await process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["complete"] is False


def test_readings_until_ctrl_c_are_kept(tmp_path: Path):
    node = PlayedNode({"p": 100})
    naps = iter([15.0, 15.0])

    def sleep(_: float) -> None:
        node.now_s += next(naps, 0.0) or interrupt()

    def interrupt() -> float:
        raise KeyboardInterrupt

    with sampled(node, tmp_path, 600, "p", sleep=sleep) as sampling:
        [series] = sampling.series()
    assert len(series.readings) == 3


@pytest.mark.anyio
async def test_answers_of_prometheus_without_end_are_cut_off(tmp_path: Path):
    ran = await recommended(lambda _: (200, b" " * (33 << 20)), tmp_path, "--window", "1h")
    assert ran.status == 2
    assert "an answer of more than 33554432 bytes; ask for a shorter --window" in ran.err


@pytest.mark.anyio
async def test_interfaces_without_end_are_refused(tmp_path: Path):
    labels = {"node": "w1", "pf": "p", "pci": PCI, "namespace": "default", "pod": "p", "interface": "rdma0"}
    series = [{**labels, "vf": str(number)} for number in range(MAX_SERIES + 1)]
    body = json.dumps({"data": series}).encode()
    ran = await recommended(lambda _: (200, body), tmp_path, "--window", "1h")
    assert (ran.status, "more than 10000 interfaces" in ran.err) == (2, True)


def test_prometheus_that_takes_too_long_for_all_answers_is_given_up():
    with answering(PlayedPrometheus().answer) as url:
        client = PrometheusClient(PrometheusAddress(url=url), limit_s=0)
        with client, pytest.raises(NoAnswerError, match="takes more than 0 s for all answers"):
            client.get("/api/v1/series", {}, decode_series)


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "service://x", "http://u@x", "http://x?y"])
def test_malformed_address_is_refused_by_its_option(url: str):
    with pytest.raises(MalformedError, match="--prometheus "):
        PrometheusClient(PrometheusAddress(url=url))


@pytest.mark.anyio
async def test_prometheus_is_read_by_the_api_servers_proxy(tmp_path: Path):
    with answering(PlayedPrometheus().answer) as url:
        proxied = {"/api/v1/namespaces/monitoring/services/prom:9090/proxy": url}
        with serving_objects(stored(pod("p")), tmp_path, proxied) as kubeconfig:
            options = ("--kubeconfig", kubeconfig, "--prometheus", "service://monitoring/prom:9090")
            ran = await k8s_rdma("recommend", *options, "--window", "1h", "-o", "name")
    assert (ran.status, ran.out) == (0, "pod/p\n"), ran.err
