"""Servers read by the API server's proxy: the token of the chart's Secret, refusals, and nodes' ports."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from cli.played_usage import IN_NAMESPACE, answering
from k8s_rdma.cli.service_proxy import NoAnswerError, ServiceProxy, server_port
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.tokens import TOKENS_SECRET
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

PATH = f"{IN_NAMESPACE}/pods/node-x:54005/proxy"
SECRET = f"{IN_NAMESPACE}/secrets/{TOKENS_SECRET}"
STATUS = json.dumps({"kind": "Status", "message": "pods is forbidden"}).encode()


def refusal(directory: Path, status: int, body: bytes, secret: bytes | int = 404) -> K8sRdmaError:
    """The error of a read whose answer has this status and body."""
    with (
        answering(lambda _: (status, body)) as url,
        serving_objects({SECRET: secret}, directory, {PATH: url}) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises(K8sRdmaError) as failed,
    ):
        ServiceProxy(api=api).get("pods", "node-x:54005", "/v1/node", {})
    return failed.value


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (401, b'{"error": "no token"}', "set viewers.enabled in the chart"),
        (403, STATUS, "the chart's Role k8s-rdma-viewer has this right"),
        (404, STATUS, "set viewers.enabled in the chart"),
        (400, b"{}", ""),
    ],
)
def test_refusal_says_what_to_do(status: int, body: bytes, advice: str, tmp_path: Path):
    error = refusal(tmp_path, status, body)
    assert type(error) is K8sRdmaError
    assert error.message.startswith("k8s-rdma/node-x:54005/v1/node: ")
    assert error.message.endswith(f"(HTTP {status})")
    assert advice in error.details if advice else not error.details


def test_server_that_ends_has_not_answered(tmp_path: Path):
    assert isinstance(refusal(tmp_path, 503, b"busy"), NoAnswerError)


@pytest.mark.parametrize(
    "secret",
    [b"{}", b'{"data": {"tokens": "!"}}', b'{"data": {"tokens": 3}}', b'{"data": ["tokens"]}'],
)
def test_secret_without_a_token_is_named_by_the_refusal(secret: bytes, tmp_path: Path):
    error = refusal(tmp_path, 401, b"{}", secret)
    assert f"secret k8s-rdma/{TOKENS_SECRET}: has no token" in error.details


def test_first_token_of_the_secret_is_read_once(tmp_path: Path):
    token = "a" * 32
    tokens = b64encode(f"{token}\n{'b' * 32}\n".encode()).decode()
    objects: dict[str, bytes | int] = {SECRET: json.dumps({"data": {"tokens": tokens}}).encode()}
    with (
        answering(lambda _: (200, b"whole")) as url,
        serving_objects(objects, tmp_path, {PATH: url}) as kubeconfig,
        Documents(kubeconfig) as api,
    ):
        proxy = ServiceProxy(api=api)
        assert proxy.get("pods", "node-x:54005", "/v1/node", {}) == b"whole"
        objects[SECRET] = 403
        assert proxy.get("pods", "node-x:54005", "/v1/node", {}) == b"whole"
        assert proxy._token == token


@pytest.mark.parametrize("scheme", ["HTTP", "HTTPS"])
def test_port_of_a_nodes_server_has_the_scheme_of_its_probe(scheme: str, tmp_path: Path):
    server: dict[str, Any] = {"name": "server", "ports": [{"containerPort": 54005}]}
    server["livenessProbe"] = {"httpGet": {"scheme": scheme}}
    pods = {"items": [{"metadata": {"name": "node-x"}, "spec": {"containers": [server]}}]}
    answers: dict[str, bytes | int] = {f"{IN_NAMESPACE}/pods": json.dumps(pods).encode()}
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        port = server_port(api, "k8s-rdma", "w1")
    assert port == ("https:" if scheme == "HTTPS" else "") + "node-x:54005"


def test_node_without_a_pod_of_the_chart_has_no_port(tmp_path: Path):
    answers: dict[str, bytes | int] = {f"{IN_NAMESPACE}/pods": b'{"items": []}'}
    with (
        serving_objects(answers, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises(K8sRdmaError, match="no pod of the chart's DaemonSet runs there") as failed,
    ):
        server_port(api, "k8s-rdma", "w1")
    assert "--chart-namespace" in failed.value.details
