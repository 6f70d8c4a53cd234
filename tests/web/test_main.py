"""`k8s-rdma web` as a process: it starts without an extender, shows available data, and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from cluster.control_plane import free_port
from cluster.processes import running
from process_status import resident_kib
from web.cases import EXAMPLE, large_cluster
from web.serving import Documents, listening

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

MAX_KIB = 200 << 10
PROGRAM = (sys.executable, "-m", "k8s_rdma", "web", "--config")


async def test_process_shows_the_extender_once_it_answers(tmp_path: Path):
    port, extender_port = free_port(), free_port()
    config = tmp_path / "web.yaml"
    extender = {"url": f"http://127.0.0.1:{extender_port}"}
    config.write_text(json.dumps({"port": port, "extender": extender, "pollS": 1}))
    async with (
        running(tmp_path / "web.log", *PROGRAM, config) as program,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client,
    ):

        async def shows(status: int, text: str) -> bool:
            try:
                reply = await client.get("/")
            except httpx2.TransportError:
                return False
            return reply.status_code == status and text in reply.text

        await program.until(lambda: shows(503, f"no extender answers at {extender['url']}"))
        documents = Documents(EXAMPLE)
        async with listening(documents, port=extender_port):
            await program.until(lambda: shows(200, "worker-1"))
            documents.view = large_cluster()
            await program.until(lambda: shows(200, "gpu-worker-"))
            assert resident_kib(program.process.pid) < MAX_KIB
    events = [json.loads(line)["event"] for line in (tmp_path / "web.log").read_text().splitlines()]
    assert events[0] == "web_ready"
    assert "extender_answers" in events
    assert events[-1] == "web_stopped"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"listen": "0.0.0.0"}, "listen: 0.0.0.0; beyond loopback, set access: reviews"),
        ({"extender": {"tokenFile": "/nowhere"}}, "extender.tokenFile /nowhere: No such file or directory"),
        ({"extender": {"url": "https://x", "caFile": "/nowhere"}}, "extender.caFile /nowhere: No such file"),
        ({"extender": {"url": "http://x:port"}}, "extender.url: http://x:port: Invalid port: 'port'"),
        ({"prometheus": {"url": "http://[::1/"}}, "prometheus.url: http://[::1/: Invalid port"),
        ({"scripts": True}, "scripts: unknown key"),
    ],
)
def test_configuration_is_checked_before_it_is_used(tmp_path: Path, document: object, message: str):
    (tmp_path / "web.yaml").write_text(json.dumps(document))
    ended = subprocess.run(
        [*PROGRAM, tmp_path / "web.yaml", "--check-config"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert message in ended.stderr
