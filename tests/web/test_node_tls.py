"""Nodes' servers over TLS, as the chart sets them up: untrusted ones are unknown, with the reason."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from http_server.certificates import Certificate, Issuer
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.config.tls import NodeTls, TlsConfig
from k8s_rdma.config.web import NodesEndpoint
from k8s_rdma.http_server import listen
from k8s_rdma.http_server.asgi import access_of
from k8s_rdma.server.agent_link import AnswersLink, TrafficReader
from k8s_rdma.server.main import serve
from server.serving import played_agent
from server.serving import report as node_report
from server.test_traffic import counters
from web.cases import cluster, holder, node, pf
from web.node_servers import Turns, reading
from web.serving import serving
from web.test_pages import Elements, rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from server.serving import PlayedAgent

pytestmark = pytest.mark.anyio

ADDRESS = "127.0.0.1"
PF, PCI = "enp3s0f0", "0000:03:00.0"
VIEW = cluster(node("w1", replace(pf(0), name=PF), addresses=(ADDRESS,)))
HELD = holder("default/p", node="w1", pf=PF, pci=PCI, uid="u", reserved_mbps=300, cap_mbps=0)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("certificates")).make()


@pytest.fixture(scope="module")
def certificate(issuer: Issuer) -> Certificate:
    return issuer.issue("node")


@dataclass(slots=True)
class Counted:
    """Counts of a node's agent. node: as it calls itself."""

    sent: int = 0
    node: str = "w1"

    async def answer(self, agent: PlayedAgent) -> None:
        """Answer the server's questions until cancelled."""
        await agent.accept()
        await agent.send(node_report(node=self.node))
        while True:
            await agent.asked()
            await agent.answer(replace(counters(self.sent), node=self.node))


@asynccontextmanager
async def node_of_chart(run_dir: Path, turns: Turns, counted: Counted, **config: Any) -> AsyncIterator[int]:
    """Run a node's server, and its agent; its port."""
    access = access_of(ServerConfig(run_dir=str(run_dir), **config))
    stop = asyncio.Event()
    link = AnswersLink(run_dir / "state.sock", scan=None)
    link.traffic = TrafficReader(clock=turns.clock, timeout_s=60)
    async with played_agent(run_dir) as agent:
        with listen(ADDRESS, 0) as listener:
            tasks = [
                asyncio.create_task(counted.answer(agent)),
                asyncio.create_task(serve(listener, link, stop, access=access)),
            ]
            try:
                while link.shown.answers.generation is None:
                    await link.shown.change()
                yield listener.getsockname()[1]
            finally:
                stop.set()
                await tasks[1]
                tasks[0].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def files_of(certificate: Certificate, client_ca: Issuer | None = None) -> TlsConfig:
    ca = str(client_ca.own.cert) if client_ca else None
    return TlsConfig(cert_file=str(certificate.cert), key_file=str(certificate.key), client_ca_file=ca)


def token_file(directory: Path, name: str, token: str) -> str:
    (directory / name).write_text(f"{token}\n")
    return str(directory / name)


async def pages_of(
    run_dir: Path, server: dict[str, Any], endpoint: dict[str, Any], counted: Counted | None = None
) -> list[str]:
    """The pages of the cluster and of the node once it was read twice, 15 s apart."""
    counted, turns = counted or Counted(), Turns()
    async with (
        asyncio.timeout(120),
        node_of_chart(run_dir, turns, counted, **server) as port,
        reading(NodesEndpoint(port=port, **endpoint), turns) as traffic,
        serving(VIEW, node_traffic=traffic) as site,
    ):
        site.documents.holders = HELD
        await site.http.get("/nodes/w1")
        waiting = await turns.read()
        counted.sent += 15_000_000
        await turns.again(waiting)
        return [(await site.http.get(path)).text for path in ("/", "/nodes/w1")]


async def test_node_is_measured_over_tls_with_the_token_of_the_chart(
    tmp_path: Path, issuer: Issuer, certificate: Certificate
):
    tokens = token_file(tmp_path, "tokens", "right")
    overview, page = await pages_of(
        tmp_path,
        {"tls": files_of(certificate), "token_file": tokens},
        {"tls": NodeTls(ca_file=str(issuer.own.cert)), "token_file": tokens},
    )
    assert "pods send 8 Mb/s" in overview
    assert rows_of(page)[1] == f"rdma0 {PF} 300 Mb/s none 8 Mb/s 0 Mb/s hardware unchanged"


async def test_node_that_demands_a_certificate_gets_ours(
    tmp_path: Path, issuer: Issuer, certificate: Certificate
):
    ours = issuer.issue("web")
    tls = NodeTls(
        ca_file=str(issuer.own.cert),
        server_name="node.example",
        cert_file=str(ours.cert),
        key_file=str(ours.key),
    )
    shared = issuer.issue("shared", alternative=("DNS:node.example",))
    overview, _ = await pages_of(
        tmp_path, {"tls": files_of(shared, issuer), "open_paths": ("/metrics",)}, {"tls": tls}
    )
    assert "pods send 8 Mb/s" in overview


UNAUTHORIZED = "its server answers HTTP 401 for /metrics"
REFUSED = {
    "authority": "its certificate is not accepted: ",
    "expired": "its certificate is not accepted: certificate has expired",
    "name": "its certificate is not accepted: Hostname mismatch, certificate is not valid for 'w9.example'.",
    "token": f"{UNAUTHORIZED}: it does not accept the token of nodes.tokenFile",
    "no-token": f"{UNAUTHORIZED}: it demands a token, and nodes.tokenFile is not set",
    "client-certificate": (
        "Server disconnected without sending a response. Does it demand a certificate? "
        "nodes.tls.certFile is not set"
    ),
    "plain": "TLS fails: wrong version number",
    "of-another-node": (
        "/metrics of a node: k8s_rdma_vf_reserved_bits_per_second is of node 'w2', not of 'w1'"
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
async def test_node_that_cannot_be_trusted_is_unknown_with_the_reason(
    tmp_path: Path, issuer: Issuer, certificate: Certificate, case: str
):
    tokens = token_file(tmp_path, "tokens", "right")
    server: dict[str, Any] = {"tls": files_of(certificate), "token_file": tokens}
    endpoint: dict[str, Any] = {"tls": NodeTls(ca_file=str(issuer.own.cert)), "token_file": tokens}
    counted = Counted()
    match case:
        case "authority":
            endpoint["tls"] = NodeTls(ca_file=str(Issuer(tmp_path, "stranger").make().own.cert))
        case "expired":
            server["tls"] = files_of(issuer.issue_expired("expired"))
        case "name":
            endpoint["tls"] = NodeTls(ca_file=str(issuer.own.cert), server_name="w9.example")
        case "token":
            endpoint["token_file"] = token_file(tmp_path, "wrong", "wrong")
        case "no-token":
            endpoint["token_file"] = None
        case "client-certificate":
            server["tls"] = files_of(certificate, issuer)
        case "plain":
            server["tls"] = None
        case "of-another-node":
            counted.node = "w2"
    pages = await pages_of(tmp_path, server, endpoint, counted)
    for page in pages:
        text = " ".join(Elements(page).text.split())
        assert f"Traffic of w1 is not measured: {ADDRESS}: {REFUSED[case]}" in text
        assert "pods send unknown" in text
        assert " 0 Mb/s" not in text
    assert rows_of(pages[1])[1] == f"1 interface {PF} 300 Mb/s none unknown unknown hardware unchanged"
