"""Authorities without certificate extensions that RFC 5280 demands, as in many clusters.

Source: https://github.com/kubernetes-client/python/issues/2394: Python 3.13 refuses the authority of EKS.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from http_server.certificates import Issuer
from k8s_rdma.cli.prometheus_address import PrometheusAddress
from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.config.tls import NodeTls
from k8s_rdma.config.web import ExtenderEndpoint, PrometheusEndpoint
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.http_server.asgi import client_tls
from k8s_rdma.web.source import Source, SourceUnavailableError
from kube.asking import ask, document, serving, write

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.config.web import Endpoint


def server_of(issuer: Issuer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = issuer.issue("server")
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


def kubeconfig(path: Path, url: str, authority: Path) -> str:
    cluster = {"server": url, "certificate-authority": str(authority)}
    return write(path / "k", document(user={"token": "x"}, clusters=[{"name": "c", "cluster": cluster}]))


def test_api_server_is_accepted_if_its_authority_has_no_key_identifiers(tmp_path: Path):
    issuer = Issuer(tmp_path, strict=False).make()
    with serving(server_of(issuer)) as api:
        ask(kubeconfig(tmp_path, api.url, issuer.own.cert))
        assert api.by


def test_api_server_is_accepted_if_its_authority_was_issued_by_another(tmp_path: Path):
    """As Go, which ends the chain at any certificate that it trusts."""
    root = Issuer(tmp_path, "root").make()
    issuer = Issuer(tmp_path, "between").make(issuer=root)
    with serving(server_of(issuer)) as api:
        ask(kubeconfig(tmp_path, api.url, issuer.own.cert))
        assert api.by


@pytest.mark.parametrize("strict", [True, False])
def test_client_of_our_own_servers_follows_rfc_5280_on_every_python(tmp_path: Path, strict: bool):
    issuer = Issuer(tmp_path, strict=strict).make()
    context = client_tls(NodeTls(ca_file=str(issuer.own.cert)), field="nodeTls")()
    with serving(server_of(issuer)) as api:
        port = int(api.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            if strict:
                context.wrap_socket(connection, server_hostname="127.0.0.1").close()
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    context.wrap_socket(connection, server_hostname="127.0.0.1")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("endpoint", "ours"),
    [(ExtenderEndpoint, True), (PrometheusEndpoint, False)],
    ids=["extender", "prometheus"],
)
def test_pages_verify_prometheus_as_go_does_and_the_extender_strictly(
    tmp_path: Path, endpoint: type[Endpoint], ours: bool, strict: bool
):
    issuer = Issuer(tmp_path, strict=strict).make()
    with serving(server_of(issuer)) as api:
        known = endpoint(url=api.url, ca_file=str(issuer.own.cert))
        source = Source("it", known, field="it", explain_refusal=lambda _: "")
        asked = source.ask("a viewer", "/x", {}, lambda data: data)
        if ours and not strict:
            with pytest.raises(SourceUnavailableError, match="certificate verify failed"):
                asyncio.run(asked)
        else:
            assert asyncio.run(asked) is None
            assert api.by


def test_command_asks_a_prometheus_whose_authority_has_no_key_identifiers(tmp_path: Path):
    issuer = Issuer(tmp_path, strict=False).make()
    with serving(server_of(issuer)) as api:
        address = PrometheusAddress(url=api.url, ca_file=issuer.own.cert)
        with PrometheusClient(address) as prometheus, pytest.raises(K8sRdmaError, match="HTTP 404"):
            prometheus.get("/api/v1/query", {}, lambda data: data)
        assert api.by
