"""The webhook as the chart configures it, called by a real API server."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cluster.control_plane import free_port
from cluster.policies import GROUP, until
from cluster.processes import running
from cluster.test_policies_injection import created
from deploy.rendering.chart import documents, render
from http_server.certificates import Issuer
from injection_cases import ASKS, Case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.world import Cluster

FIRST = Case(name="", annotations=ASKS, slots=("main",))


def _configuration(port: int, authority: Path) -> Json:
    """That of the chart, with a URL in the place of its Service."""
    objects = documents(render({"injection": {"by": "webhook"}}))
    [found] = [each for each in objects if each["kind"] == "MutatingWebhookConfiguration"]
    bundle = base64.b64encode(authority.read_bytes()).decode()
    found["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/inject", "caBundle": bundle}
    return found


@asynccontextmanager
async def running_webhook(c: Cluster, directory: Path) -> AsyncIterator[None]:
    """Run `k8s-rdma webhook` until the end of the block; when it begins, the API server calls it."""
    (directory / "tls").mkdir()  # the API server's own authority is beside it
    issuer = Issuer(directory / "tls").make()
    made, port = issuer.issue("server"), free_port()
    settings = {
        "listen": "127.0.0.1",
        "port": port,
        "tls": {"certFile": str(made.cert), "keyFile": str(made.key)},
        "schedulerName": "rdma-scheduler",
    }
    (directory / "webhook.yaml").write_text(json.dumps(settings))
    command = (sys.executable, "-m", "k8s_rdma", "webhook", "--config", directory / "webhook.yaml")
    async with running(directory / "webhook.log", *command):
        path = f"{GROUP}/mutatingwebhookconfigurations"
        answer = await c.http.post(path, json=_configuration(port, issuer.own.cert))
        assert answer.status_code == 201, answer.text
        assert "warning" not in answer.headers, answer.headers["warning"]

        async def in_force() -> bool:
            return (await created(c, FIRST.pod()))["schedulerName"] == FIRST.scheduler

        await until(in_force)
        yield
