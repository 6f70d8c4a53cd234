"""Who may ask: certificates, tokens, either of them, and probes that have neither."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from typing import TYPE_CHECKING

import httpx2
import pytest
from msgspec import structs

from extender.serving import BIND, FILTER, Served, served
from extender.world import cluster
from http_server.certificates import Certificate, Issuer
from k8s_rdma.config.extender import ExtenderConfig, ViewsConfig
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.main import ViewsPort, access_of
from k8s_rdma.wire.tokens import TOKEN_FIELD

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

PROBED = ("/healthz", "/readyz")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("certificates")).make()


@pytest.fixture(scope="module")
def ours(issuer: Issuer) -> Certificate:
    return issuer.issue("extender")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# of the proxy\nsecret-1\nsecret-2\n")
    return path


def tls(certificate: Certificate, client_ca: Issuer | None = None) -> TlsConfig:
    ca = str(client_ca.own.cert) if client_ca else None
    return TlsConfig(cert_file=str(certificate.cert), key_file=str(certificate.key), client_ca_file=ca)


def trusting(issuer: Issuer, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(issuer.own.cert))
    if certificate:
        context.load_cert_chain(certificate.cert, certificate.key)
    return context


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def assert_probes_are_answered(s: Served) -> None:
    for path in PROBED:
        assert (await s.http.get(path)).status_code == 200


async def test_verbs_and_metrics_take_a_token_if_tokens_are_configured(tokens):
    access = access_of(ExtenderConfig(token_file=str(tokens)))
    async with cluster("w1") as c, served(c, access=access) as s:
        await s.ready()
        await c.create_pod("p")
        for path in (FILTER, BIND):
            refused = await s.post(path, c.args("p"))
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "a token of tokenFile" in refused.json()["Error"]
        assert (await s.http.get("/metrics")).status_code == 401
        assert (
            await s.http.post(FILTER, content=c.args("p"), headers=bearing("secret-3"))
        ).status_code == 401
        for token in ("secret-1", "secret-2"):
            answer = await s.http.post(FILTER, content=c.args("p"), headers=bearing(token))
            assert answer.json()["NodeNames"] == ["w1"]
        metrics = await s.http.get("/metrics", headers=bearing("secret-1"))
        assert 'requests_total{outcome="unauthorized",verb="filter"} 2.0\n' in metrics.text
        await assert_probes_are_answered(s)


async def test_verbs_require_a_certificate_if_a_client_ca_is_configured_and_probes_do_not(issuer, ours):
    access = access_of(ExtenderConfig(tls=tls(ours, issuer)))
    async with cluster("w1") as c, served(c, access=access, verify=trusting(issuer)) as s:
        await s.ready()
        await c.create_pod("p")
        refused = await s.post(FILTER, c.args("p"))
        assert refused.status_code == 401
        assert "a client certificate of clientCaFile" in refused.json()["Error"]
        await assert_probes_are_answered(s)
        known = trusting(issuer, issuer.issue("kube-scheduler"))
        async with httpx2.AsyncClient(base_url=s.http.base_url, verify=known, trust_env=False) as scheduler:
            assert (await scheduler.post(FILTER, content=c.args("p"))).json()["NodeNames"] == ["w1"]


async def test_certificate_of_an_unlisted_name_is_refused(issuer, ours):
    names = structs.replace(tls(ours, issuer), client_names=("kube-scheduler",))
    access = access_of(ExtenderConfig(tls=names))
    async with cluster("w1") as c, served(c, access=access, verify=trusting(issuer)) as s:
        await s.ready()
        await c.create_pod("p")
        await assert_probes_are_answered(s)
        for name, status in (("kube-scheduler", 200), ("kubelet", 401)):
            known = trusting(issuer, issuer.issue(name))
            async with httpx2.AsyncClient(base_url=s.http.base_url, verify=known, trust_env=False) as client:
                answer = await client.post(FILTER, content=c.args("p"))
                assert answer.status_code == status
        assert "a client certificate of clientCaFile with one of clientNames" in answer.json()["Error"]


async def test_certificate_of_another_ca_is_not_served_at_all(issuer, ours, tmp_path):
    stranger = Issuer(tmp_path, "stranger").make().issue("kube-scheduler")
    access = access_of(ExtenderConfig(tls=tls(ours, issuer)))
    async with cluster("w1") as c, served(c, access=access, verify=trusting(issuer)) as s:
        await s.ready()
        unknown = trusting(issuer, stranger)
        async with httpx2.AsyncClient(base_url=s.http.base_url, verify=unknown, trust_env=False) as scheduler:
            with pytest.raises(httpx2.TransportError):
                await scheduler.get("/healthz")


async def test_certificate_or_token_suffices_if_both_are_configured(issuer, ours, tokens):
    access = access_of(ExtenderConfig(tls=tls(ours, issuer), token_file=str(tokens)))
    async with cluster("w1") as c, served(c, access=access, verify=trusting(issuer)) as s:
        await s.ready()
        await c.create_pod("p")
        refused = await s.post(FILTER, c.args("p"))
        assert "a client certificate of clientCaFile or `Authorization: Bearer`" in refused.json()["Error"]
        answer = await s.http.post(FILTER, content=c.args("p"), headers=bearing("secret-1"))
        assert answer.status_code == 200
        known = trusting(issuer, issuer.issue("kube-scheduler"))
        async with httpx2.AsyncClient(base_url=s.http.base_url, verify=known, trust_env=False) as scheduler:
            assert (await scheduler.post(FILTER, content=c.args("p"))).status_code == 200


async def test_renewed_certificate_is_served_without_a_restart(issuer, ours, tmp_path):
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(ours.cert, cert)
    shutil.copy(ours.key, key)
    access = access_of(ExtenderConfig(tls=TlsConfig(cert_file=str(cert), key_file=str(key))))
    async with cluster("w1") as c, served(c, access=access, verify=trusting(issuer)) as s:
        await s.ready()
        assert await subject(s.port, issuer) == "extender"
        renewed = issuer.issue("renewed")
        for new, path in ((renewed.key, key), (renewed.cert, cert)):
            shutil.copy(new, tmp_path / "new")
            (tmp_path / "new").replace(path)
        while await subject(s.port, issuer) != "renewed":  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.05)
        assert (await s.http.get("/healthz")).status_code == 200


async def subject(port: int, issuer: Issuer) -> str:
    """Whose certificate is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(issuer))
    [[(_, name)]] = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return name


@pytest.mark.parametrize("field", ["certFile", "keyFile", "clientCaFile"])
def test_file_that_cannot_be_used_is_named_with_its_field(ours, tmp_path, field):
    settings = {"cert_file": str(ours.cert), "key_file": str(ours.key)}
    name = {"certFile": "cert_file", "keyFile": "key_file", "clientCaFile": "client_ca_file"}[field]
    settings[name] = str(tmp_path / "gone")
    with pytest.raises(MalformedError, match=rf"tls\.{field} .*gone: No such file"):
        access_of(ExtenderConfig(tls=TlsConfig(**settings)))


async def test_viewers_have_a_port_without_verbs_and_with_tokens_of_their_own(tokens: Path):
    configured = ViewsConfig(listen="127.0.0.1", port=0, token_file=str(tokens))
    with ViewsPort.opened(configured) as views:
        assert views is not None
        url = f"http://127.0.0.1:{views.listener.getsockname()[1]}"
        async with (
            cluster("w1") as c,
            served(c, views=views) as s,
            httpx2.AsyncClient(base_url=url, trust_env=False) as http,
        ):
            await s.ready()
            assert (await http.get("/v1/cluster")).status_code == 401
            http.headers[TOKEN_FIELD] = "secret-2"
            assert (await http.get("/v1/cluster")).json()["totals"]["nodes"] == 1
            assert (await http.post(FILTER, content=b"{}")).status_code == 404
            assert (await http.post("/v1/cluster")).status_code == 405
            assert (await s.http.get("/v1/cluster")).status_code == 200


async def test_viewers_port_without_a_token_file_is_refused(tmp_path: Path):
    absent = ViewsConfig(token_file=str(tmp_path / "absent"))
    with pytest.raises(MalformedError, match=r"views\.tokenFile"), ViewsPort.opened(absent):
        pass
