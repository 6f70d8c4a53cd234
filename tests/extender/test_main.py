"""The process: its configuration, its port, its signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from extender.world import cluster
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.config.ports import port_of
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.http_server import listen
from k8s_rdma_demo.cluster.command import write_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

MAIN = """
import sys
from k8s_rdma.config.files import load_config
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.extender.main import run
run(load_config(ExtenderConfig, sys.argv[1], {}))
"""

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k8s-rdma-extender"


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_process_serves_at_the_configured_port_and_ends_with_0_at_a_signal(tmp_path: Path, number: int):
    async with cluster("w1") as c:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", c.server.url)
        (tmp_path / "key").write_text("a secret of placements\n")
        config = {
            "kubeconfig": str(kubeconfig),
            "source": "http",
            "nodePort": c.port,
            "port": 1,
            "placementKeyFile": str(tmp_path / "key"),
        }
        (tmp_path / "extender.yaml").write_text(json.dumps(config))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MAIN,
            str(tmp_path / "extender.yaml"),
            env={**os.environ, "PORT": "0"},
            stderr=asyncio.subprocess.PIPE,
        )
        port = await _port(process)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110  that is the interface
                await asyncio.sleep(0.01)
            pod = await c.create_pod("p", 1)
            filtered = await http.post("/scheduler/rdma_scheduling", content=c.args("p"))
            assert filtered.json()["NodeNames"] == ["w1"]
            shown = (await http.get("/metrics")).text
            [spent_s] = re.findall(r'request_duration_seconds_sum{verb="filter"} (\S+)', shown)
            spent_ms = float(spent_s) * 1000
            assert abs(spent_ms - round(spent_ms)) > 1e-5, "most of them take less than a millisecond"
            bind = {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "w1"}
            assert (await http.post("/scheduler/bind", json=bind)).json() == {"Error": ""}
        process.send_signal(number)
        rest = await process.stderr.read()
        assert await process.wait() == 0, rest.decode()
        assert "extender_stopped" in rest.decode()
        lease = (await c.http.get(LEASE)).json()["spec"]
        assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("", 15)


async def _port(process: asyncio.subprocess.Process) -> int:
    while line := await process.stderr.readline():
        event = json.loads(line)
        if event["event"] == "extender_ready":
            return event["port"]
    raise AssertionError("ended before it was ready")


def test_unknown_key_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "extender.yaml"
    path.write_text("nodePorts: 1\n")
    with pytest.raises(MalformedError, match="nodePorts"):
        load_config(ExtenderConfig, str(path), {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", 65_536),
        ("nodePort", 0),
        ("filterPath", "no slash"),
        ("filterPath", "/"),
        ("bindPath", "/a/{b}"),
        ("nodeTimeoutS", 0),
        ("maxBodyBytes", -1),
        ("strict", "yes"),
        ("leaseS", 4),
        ("leaseNamespace", ""),
        ("shutdownS", 0),
    ],
)
def test_value_out_of_range_is_refused_by_key(key: str, value: object):
    with pytest.raises(MalformedError, match=key):
        load_config(ExtenderConfig, None, {key: value})


def test_defaults_are_those_that_existing_scheduler_configurations_expect():
    config = load_config(ExtenderConfig, None, {})
    assert port_of(config, {}) == 8888
    assert config.filter_path == "/scheduler/rdma_scheduling"
    assert (config.node_port, config.node_timeout_s) == (54005, 1.5)


def test_listening_at_a_port_in_use_is_a_named_failure():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(K8sRdmaError, match=f"cannot listen on 127.0.0.1, port {port}"):
            listen("127.0.0.1", port)
