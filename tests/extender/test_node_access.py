"""Nodes' servers that speak TLS, want certificates or tokens, and files that are renewed or wrong."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from extender.real_nodes import real_nodes
from extender.world import until
from http_server.certificates import Certificate, Issuer
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.tls import NodeTls, TlsConfig
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.http_poller import HttpPoller, poll_config, security_of
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.http_server.asgi import tls_context, tokens_of

if TYPE_CHECKING:
    from pathlib import Path


W1 = NodeName("w1")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("certificates")).make()


@pytest.fixture(scope="module")
def node(issuer: Issuer) -> Certificate:
    return issuer.issue("node")


def served_tls(certificate: Certificate, client_ca: Issuer | None = None) -> Any:
    ca = str(client_ca.own.cert) if client_ca else None
    files = TlsConfig(cert_file=str(certificate.cert), key_file=str(certificate.key), client_ca_file=ca)
    return tls_context(files)


async def outcome(config: dict[str, Any], *, server: dict[str, Any]) -> str:
    """`read`, or why the node cannot be read; its server is at 127.0.0.1, which its certificate is for."""
    async with asyncio.timeout(120), real_nodes("w1", **server) as (port, nodes):
        state = ClusterState()
        asking = poll_config(ExtenderConfig(node_port=port, node_timeout_s=5.0, **config))
        async with HttpPoller(state, asking, asyncio.get_running_loop().time) as states:
            states.learn(W1, (nodes["w1"].address,))
            await until(lambda: W1 in state.snapshots or W1 in state.unreadable)
            if W1 in state.snapshots:
                await until(lambda: states.sources()["watched",] == 1)
            return state.unreadable.get(W1, "read")


def ask(config: dict[str, Any], **server: Any) -> str:
    return asyncio.run(outcome(config, server=server))


def test_node_is_known_by_the_name_that_its_certificate_has(issuer: Issuer, node: Certificate) -> None:
    files = NodeTls(ca_file=str(issuer.own.cert), server_name="127.0.0.1")
    assert ask({"node_tls": files}, tls=served_tls(node)) == "read"


def test_node_whose_certificate_is_for_another_name_is_unreadable(issuer: Issuer, node: Certificate) -> None:
    for name in (None, "w1.example"):  # the address that is asked is another one
        files = NodeTls(ca_file=str(issuer.own.cert), server_name=name)
        assert "certificate verify failed" in ask({"node_tls": files}, tls=served_tls(node))


def test_node_with_a_certificate_of_another_ca_is_unreadable(tmp_path: Path, node: Certificate) -> None:
    stranger = Issuer(tmp_path, "stranger").make()
    files = NodeTls(ca_file=str(stranger.own.cert), server_name="127.0.0.1")
    assert "certificate verify failed" in ask({"node_tls": files}, tls=served_tls(node))


def test_node_that_wants_a_certificate_gets_ours(issuer: Issuer, node: Certificate) -> None:
    ours = issuer.issue("extender")
    known = {"ca_file": str(issuer.own.cert), "server_name": "127.0.0.1"}
    server = {"tls": served_tls(node, issuer)}
    files = NodeTls(**known, cert_file=str(ours.cert), key_file=str(ours.key))
    assert ask({"node_tls": files}, **server) == "read"
    assert ask({"node_tls": NodeTls(**known)}, **server) != "read"


def test_node_that_speaks_no_tls_is_unreadable_over_it(issuer: Issuer) -> None:
    assert ask({"node_tls": NodeTls(ca_file=str(issuer.own.cert))}) != "read"


def test_token_is_sent_and_a_wrong_one_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("right\n")
    (tmp_path / "ours").write_text("# to the nodes\nright\n")
    (tmp_path / "wrong").write_text("wrong\n")
    server = {"tokens": tokens_of(str(tmp_path / "theirs"), field="tokenFile")}
    assert ask({"node_token_file": str(tmp_path / "ours")}, **server) == "read"
    assert "HTTP 401: this path requires `Authorization: Bearer`" in ask(
        {"node_token_file": str(tmp_path / "wrong")}, **server
    )


def test_renewed_token_and_authority_count_without_a_restart(tmp_path: Path, issuer: Issuer) -> None:
    now = 0.0
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first\n")
    shutil.copy(issuer.own.cert, ca)
    config = ExtenderConfig(node_token_file=str(token), node_tls=NodeTls(ca_file=str(ca)))
    security = security_of(config, clock=lambda: now)
    before = security.tls()
    assert (security.token(), security.tls()) == ("first", before)
    token.write_text("second, which is no token\n")
    now = 2.0
    assert security.token() == "first"
    token.write_text("third\n")
    shutil.copy(Issuer(tmp_path, "next").make().own.cert, ca)
    now = 4.0
    assert security.token() == "third"
    assert security.tls() is not before


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("nodeTls.caFile", None),
        ("nodeTls.caFile", "no certificate"),
        ("nodeTls.certFile", None),
        ("nodeTls.keyFile", None),
        ("nodeTls.certFile", "no certificate"),
        ("nodeTokenFile", None),
        ("nodeTokenFile", "# none\n"),
        ("nodeTokenFile", "one\ntwo\n"),
        ("nodeTokenFile", "two words\n"),
    ],
)
def test_file_that_cannot_be_used_is_named_with_its_field(
    tmp_path: Path, issuer: Issuer, node: Certificate, field: str, content: str | None
) -> None:
    wrong = tmp_path / "wrong"
    if content is not None:
        wrong.write_text(content)
    files = {
        "nodeTls.caFile": str(issuer.own.cert),
        "nodeTls.certFile": str(node.cert),
        "nodeTls.keyFile": str(node.key),
        "nodeTokenFile": str(issuer.directory / "token"),
    }
    (issuer.directory / "token").write_text("secret\n")
    files[field] = str(wrong)
    config = ExtenderConfig(
        node_tls=NodeTls(
            ca_file=files["nodeTls.caFile"],
            cert_file=files["nodeTls.certFile"],
            key_file=files["nodeTls.keyFile"],
        ),
        node_token_file=files["nodeTokenFile"],
    )
    with pytest.raises(MalformedError) as refused:
        security_of(config)
    assert f"{field} {wrong}" in refused.value.message
