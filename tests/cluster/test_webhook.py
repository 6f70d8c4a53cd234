"""The webhook and its configuration of the chart, called by a real API server."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

import pytest

from cluster.control_plane import free_port
from cluster.policies import GROUP, until
from cluster.processes import running
from cluster.real import obstacle
from cluster.test_policies_injection import created
from cluster.world import cluster
from deploy.rendering.chart import documents, render
from http_server.certificates import Issuer
from injection_cases import ASKS, CASES, REFUSED, SIDECAR, Case

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
FIRST = Case(name="", annotations=ASKS, slots=("main",))


def configuration(port: int, authority: Path) -> Json:
    """That of the chart, with a URL in the place of its Service."""
    objects = documents(render({"injection": {"by": "webhook"}}))
    [found] = [each for each in objects if each["kind"] == "MutatingWebhookConfiguration"]
    bundle = base64.b64encode(authority.read_bytes()).decode()
    found["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/inject", "caBundle": bundle}
    return found


async def test_webhook_injects_what_the_table_says(tmp_path: Path):
    (tmp_path / "tls").mkdir()  # the API server's own authority is beside it
    issuer = Issuer(tmp_path / "tls").make()
    made, port = issuer.issue("server"), free_port()
    settings = {
        "listen": "127.0.0.1",
        "port": port,
        "tls": {"certFile": str(made.cert), "keyFile": str(made.key)},
        "schedulerName": "rdma-scheduler",
    }
    (tmp_path / "webhook.yaml").write_text(json.dumps(settings))
    command = (sys.executable, "-m", "k8s_rdma", "webhook", "--config", tmp_path / "webhook.yaml")
    async with cluster("real", tmp_path, deadline_s=280) as c:
        expected = [await created(c, case.injected()) for case in CASES]
        async with running(tmp_path / "webhook.log", *command):
            path = f"{GROUP}/mutatingwebhookconfigurations"
            answer = await c.http.post(path, json=configuration(port, issuer.own.cert))
            assert answer.status_code == 201, answer.text
            assert "warning" not in answer.headers, answer.headers["warning"]

            async def in_force() -> bool:
                return (await created(c, FIRST.pod()))["schedulerName"] == FIRST.scheduler

            await until(in_force)
            for case, spec in zip(CASES, expected, strict=True):
                assert await created(c, case.pod()) == spec, case.name
            for name, annotations, message in REFUSED:
                pod = Case(name=name, annotations={**ASKS, **annotations}, spec=SIDECAR).pod()
                answer = await c.http.post("/api/v1/namespaces/default/pods?dryRun=All", json=pod)
                assert (answer.status_code, message in answer.text) == (422, True), answer.text
        assert (await created(c, FIRST.pod()))["schedulerName"] == "default-scheduler", "nobody answers"
