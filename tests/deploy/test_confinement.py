"""Server, extender, device plugin and pages as the chart has them: no capabilities, a root for reading."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from confined import FURNITURE, start, writable, writable_volumes
from deploy.rendering.chart import documents, render
from deviceplugin.plugin_process import MOUNT, SLOTS, Plugin, World, follows, make_world
from e2e.conftest import build_dir, make_node, program
from extender.world import cluster
from k8s_rdma_demo.cluster.command import write_kubeconfig
from process_status import status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

Json = dict[str, Any]
WORKLOADS = {"DaemonSet", "Deployment"}
ALL_USERS = ["0", "0", str(2**32 - 1)]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ALL_USERS,
        reason="needs root, that of the machine: processes are other users'",
    ),
]
NOBODY = 65532
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class Chart:
    """The rendered objects, and the processes of their containers."""

    def __init__(self, directory: Path, values: Json) -> None:
        self.directory, self._started = directory, list[Plugin]()
        self._objects = documents(render(values))

    def container(self, name: str) -> Json:
        specs = [each["spec"]["template"]["spec"] for each in self._objects if each["kind"] in WORKLOADS]
        (found,) = (each for spec in specs for each in spec["containers"] if each["name"] == name)
        return found

    def configuration(self, config_map: str) -> dict[str, str]:
        """The files of a ConfigMap."""
        (data,) = (
            each["data"]
            for each in self._objects
            if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", config_map)
        )
        return data

    def start(self, name: str, config_map: str, volumes: Json, **environment: str) -> Plugin:
        """A container's process, with the configuration that is rendered; other volumes by their names."""
        root, config = (self._made(f"{name}-{each}") for each in ("root", "config"))
        for file, text in self.configuration(config_map).items():
            (config / file).write_text(text)
        places = {"config": config, **volumes}
        log = self.directory / f"{name}.log"
        with log.open("wb") as written:
            process = start(self.container(name), places, root, log=written, environment=environment)
        self._started.append(Plugin(process, log))
        return self._started[-1]

    def close(self) -> None:
        for each in self._started:
            each.process.kill()
            each.process.wait()

    def _made(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(mode=0o755)
        return path


@pytest.fixture
def make_chart(tmp_path: Path) -> Iterator[Callable[[Json], Chart]]:
    made: list[Chart] = []

    def make(values: Json) -> Chart:
        made.append(Chart(tmp_path, values))
        return made[-1]

    yield make
    for chart in made:
        chart.close()


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


async def get(process: Plugin, url: str, status_code: int = 200) -> httpx2.Response:
    """Ask until it answers so."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        while True:
            assert process.process.poll() is None, process.log.read_text()
            try:
                answer = await http.get(url)
            except httpx2.TransportError:
                answer = None
            if answer is not None and answer.status_code == status_code:
                return answer
            await asyncio.sleep(0.02)


def check_rights(process: Plugin, container: Json, user: int) -> None:
    """Check that the kernel shows only the rights of its container for the process that runs."""
    said = status(process.process.pid)
    assert {int(said[kind], 16) for kind in SETS} == {0}
    assert said["NoNewPrivs"] == "1"
    assert set(said["Uid"].split()) == {str(user)}
    places = {each for each in writable(process.process.pid) if not each.startswith(FURNITURE)}
    assert places == writable_volumes(container)


async def test_server_shows_the_state_of_its_agent(
    make_chart: Callable[[Json], Chart], make_node: Callable[[int], Node]
) -> None:
    chart = make_chart({"node": {"server": {"config": {"openPaths": ["/v1/node"]}}}})
    node = make_node(2)
    agent = yaml.safe_load(chart.configuration("k8s-rdma-node")["agent.yaml"])
    node.settings = {"stateGroup": agent["stateGroup"]}
    node.start_agent()
    server = chart.start("server", "k8s-rdma-node", {"run": node.run_dir})
    report = (await get(server, "http://127.0.0.1:54005/v1/node")).json()
    assert {each["pci"] for each in report["pfs"]} == {pf.pci for pf in node.pfs}
    await get(server, "http://127.0.0.1:54005/readyz")
    check_rights(server, chart.container("server"), NOBODY)
    assert await server.stop() == 0


async def test_device_plugin_offers_its_resources_to_kubelet(
    make_chart: Callable[[Json], Chart], world: World
) -> None:
    chart = make_chart({"node": {"devicePlugin": {"mount": True}}})
    world.run_dir.mkdir()
    async with world.kubelet() as kubelet:
        volumes = {
            "run": world.run_dir,
            "device-plugins": world.sockets,
            "pod-resources": world.directory,
            "dev": Path("/dev"),
        }
        plugin = chart.start("device-plugin", "k8s-rdma-node", volumes)
        await follows(kubelet, SLOTS, MOUNT)
        await get(plugin, "http://127.0.0.1:54006/readyz")
        check_rights(plugin, chart.container("device-plugin"), 0)
        assert await plugin.stop() == 0
        assert world.names() == set()


async def test_extender_places_and_binds(make_chart: Callable[[Json], Chart], tmp_path: Path) -> None:
    async with cluster("w1") as c:
        chart = make_chart({"extender": {"config": {"source": "http", "nodePort": c.port}}})
        key, policies = tmp_path / "key", tmp_path / "policies"
        key.mkdir(mode=0o755)
        policies.mkdir(mode=0o755)
        (key / "placement.key").write_text("a secret of placements\n")
        os.chown(key / "placement.key", 0, NOBODY)
        (key / "placement.key").chmod(0o440)
        (policies / "policies.yaml").write_text(chart.configuration("k8s-rdma-policies")["policies.yaml"])
        write_kubeconfig(policies / "kubeconfig", c.server.url)
        kubeconfig = "/etc/k8s-rdma/policies/kubeconfig"
        volumes = {"placement-key": key, "policies": policies}
        extender = chart.start("extender", "k8s-rdma-extender", volumes, KUBECONFIG=kubeconfig)
        url = "http://127.0.0.1:8888"
        await get(extender, f"{url}/readyz")
        pod = await c.create_pod("p", 1)
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
            filtered = await http.post("/scheduler/rdma_scheduling", content=c.args("p"))
            assert filtered.json()["NodeNames"] == ["w1"]
            bind = {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "w1"}
            assert (await http.post("/scheduler/bind", json=bind)).json() == {"Error": ""}
        assert await c.node_of("p") == "w1"
        check_rights(extender, chart.container("extender"), NOBODY)
        assert await extender.stop() == 0


async def test_pages_say_that_the_extender_is_away(
    make_chart: Callable[[Json], Chart], tmp_path: Path
) -> None:
    chart = make_chart({"viewers": {"enabled": True}, "web": {"enabled": True}})
    tokens = tmp_path / "tokens"
    tokens.mkdir(mode=0o755)
    (tokens / "tokens").write_text("a-token\n")
    os.chown(tokens / "tokens", 0, NOBODY)
    (tokens / "tokens").chmod(0o440)
    web = chart.start("web", "k8s-rdma-web", {"tokens": tokens})
    page = await get(web, "http://127.0.0.1:54008/", 503)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    await get(web, "http://127.0.0.1:54008/readyz")
    check_rights(web, chart.container("web"), NOBODY)
    assert await web.stop() == 0
