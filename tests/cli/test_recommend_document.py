"""The document of recommendations: figures, reasons and confidence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.asking import k8s_rdma
from cli.played_usage import IN_NAMESPACE, PlayedNode, PlayedPrometheus, answering, pod, recommended, stored
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path


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
