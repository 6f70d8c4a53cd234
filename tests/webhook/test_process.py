"""`k8s-rdma webhook` as a process: HTTPS as the API server speaks it, and requests that are no review."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.control_plane import free_port
from cluster.processes import Program, running
from http_server.certificates import Certificate, Issuer
from injection_cases import CASES, REFUSED, SIDECAR, Case
from process_status import resident_kib, status
from webhook.test_injection import patched, review

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
URL = "https://127.0.0.1"


@asynccontextmanager
async def serving(
    directory: Path, made: Certificate, ca: Path
) -> AsyncIterator[tuple[httpx2.AsyncClient, Program]]:
    """The process, and a client that trusts its authority."""
    port = free_port()
    config = {
        "listen": "127.0.0.1",
        "port": port,
        "tls": {"certFile": str(made.cert), "keyFile": str(made.key)},
        "schedulerName": "rdma-scheduler",
    }
    (directory / "webhook.yaml").write_text(json.dumps(config))
    command = (sys.executable, "-m", "k8s_rdma", "webhook", "--config", directory / "webhook.yaml")
    trust = ssl.create_default_context(cafile=ca)
    async with (
        running(directory / "webhook.log", *command) as program,
        httpx2.AsyncClient(base_url=f"{URL}:{port}", verify=trust, trust_env=False, timeout=20) as client,
    ):

        async def ready() -> bool:
            try:
                return (await client.get("/readyz")).status_code == 200
            except httpx2.TransportError:
                return False

        await program.until(ready)
        yield client, program


async def posted(client: httpx2.AsyncClient, pod: dict[str, Any]) -> dict[str, Any]:
    """The response of the review that the API server would send."""
    answer = await client.post(
        "/inject?timeout=5s", content=review(pod), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json()
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert document["response"]["uid"] == "u-1"
    return document["response"]


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path).make()


async def test_reviews_are_answered_over_https(tmp_path: Path, issuer: Issuer):
    async with serving(tmp_path, issuer.issue("server"), issuer.own.cert) as (client, program):
        for case in CASES:
            response = await posted(client, case.pod())
            assert response["allowed"] is True
            assert ("patch" in response) == ("patchType" in response) == (case.injected() != case.pod())
            patch = json.loads(base64.b64decode(response.get("patch", ""))) if "patch" in response else []
            assert patched(case.pod(), patch) == case.injected()
        for name, annotations, message in REFUSED:
            pod = Case(
                name=name, annotations={"rdma_interfaces_required": "[{}]", **annotations}, spec=SIDECAR
            ).pod()
            response = await posted(client, pod)
            assert response["allowed"] is False
            assert response["status"] == {"code": 422, "message": message}
        misspelt = await posted(client, Case(name="", annotations={"k8s-rdma.io/interface": "[{}]"}).pod())
        assert [warning.rpartition("; ")[2] for warning in misspelt["warnings"]] == [
            "did you mean k8s-rdma.io/interfaces?"
        ]
        metrics = (await client.get("/metrics")).text
        assert f'k8s_rdma_webhook_requests_total{{outcome="refused"}} {len(REFUSED)}.0' in metrics
        unchanged = sum(case.injected() == case.pod() for case in CASES) + 1
        assert f'k8s_rdma_webhook_requests_total{{outcome="unchanged"}} {unchanged}.0' in metrics
        assert int(status(program.process.pid)["Threads"]) <= 2
        assert resident_kib(program.process.pid) < 64 << 10
        assert await program.end() == 0


async def test_malformed_review_has_no_effect(tmp_path: Path, issuer: Issuer):
    async with serving(tmp_path, issuer.issue("server"), issuer.own.cert) as (client, program):
        answer = await client.post("/inject", content=b'{"apiVersion": "admission.k8s.io/v1"')
        assert answer.status_code == 400
        assert "AdmissionReview: no valid JSON" in answer.json()["error"]["message"]
        spec = {"containers": [{"name": 5}]}
        answer = await client.post("/inject", content=review({"spec": spec}))
        assert answer.status_code == 400
        assert "$.request.object.spec.containers[0].name" in answer.json()["error"]["message"]
        beta = review(CASES[0].pod()).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1")
        assert (await client.post("/inject", content=beta)).status_code == 400
        assert (await client.get("/inject")).status_code == 405
        assert (await client.post("/metrics")).status_code == 405
        assert (await client.post("/mutate", content=b"{}")).status_code == 404
        assert (await client.post("/inject", content=b" " * ((1 << 20) + 1))).status_code == 413
        assert "allowed" in await posted(client, CASES[0].pod())
        assert program.process.returncode is None


async def test_renewed_certificate_is_served_without_a_restart(tmp_path: Path, issuer: Issuer):
    made = issuer.issue("server")
    async with serving(tmp_path, made, issuer.own.cert) as (client, program):
        (tmp_path / "other").mkdir()
        other = Issuer(tmp_path / "other", name="new authority").make()
        renewed = other.issue("server")
        shutil.copy(renewed.cert, made.cert)
        shutil.copy(renewed.key, made.key)
        trust = ssl.create_default_context(cafile=other.own.cert)
        async with httpx2.AsyncClient(base_url=client.base_url, verify=trust, trust_env=False) as again:

            async def accepted() -> bool:
                try:
                    return (await again.get("/healthz")).status_code == 200
                except httpx2.TransportError:
                    return False

            async with asyncio.timeout(120):
                await program.until(accepted)


async def test_configuration_is_checked_before_a_start(tmp_path: Path):
    path = tmp_path / "webhook.yaml"
    path.write_text("slots: x\n")
    command = (sys.executable, "-m", "k8s_rdma", "webhook", "--check-config", "--config", path)
    program = await Program.start(tmp_path / "check.log", *command)
    assert await program.process.wait() == 2
    assert "slots: unknown key; did you mean slot?" in program.tail()
    path.write_text(f"tls: {{certFile: {tmp_path}/none.crt, keyFile: {tmp_path}/none.key}}\n")
    program = await Program.start(tmp_path / "tls.log", *command)
    assert await program.process.wait() == 2
    assert "tls.certFile" in program.tail()
