"""Recommendations as a command: subjects, shapes and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from cli.asking import ENVIRONMENT, MAIN, k8s_rdma
from cli.played_usage import (
    IN_NAMESPACE,
    PlayedNode,
    PlayedPrometheus,
    answering,
    items,
    pod,
    recommended,
    stored,
)
from k8s_rdma.wire.rdma_node import encode_status, status_of
from kube.stored_objects import serving_objects
from server.serving import report

if TYPE_CHECKING:
    from pathlib import Path


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
async def test_pods_that_may_not_be_listed_are_an_error(tmp_path: Path):
    with serving_objects({"/api/v1/namespaces/default/pods": 403}, tmp_path) as kubeconfig:
        ran = await k8s_rdma("recommend", "--kubeconfig", kubeconfig)
    assert (ran.status, "HTTP 403" in ran.err) == (2, True)


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
