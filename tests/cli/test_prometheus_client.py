"""Calls of Prometheus: addresses, refusals and answers without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.asking import k8s_rdma
from cli.played_usage import PlayedPrometheus, answering, pod, recommended, stored
from k8s_rdma.cli.prometheus_address import PrometheusAddress
from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.prometheus import decode_series
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path


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
async def test_answers_of_prometheus_without_end_are_cut_off(tmp_path: Path):
    ran = await recommended(lambda _: (200, b" " * (33 << 20)), tmp_path, "--window", "1h")
    assert ran.status == 2
    assert "an answer of more than 33554432 bytes; ask for a shorter --window" in ran.err


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
