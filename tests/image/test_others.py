"""Extender, device plugin and the CNI installer from the image, without capabilities on a read-only root."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from cni.call import Program
from deviceplugin.plugin_process import MOUNT, SLOTS, Plugin, World, follows
from extender.world import cluster
from image.containers import Containers, Mount, Rights
from k8s_rdma_demo.cluster.command import write_kubeconfig

pytestmark = pytest.mark.anyio

ROOT = Rights(user=0)


def readable(path: Path, text: str | None = None) -> Mount:
    """A file that processes of any user can read."""
    if text is not None:
        path.write_text(text)
    path.chmod(0o644)
    return Mount(source=path)


async def test_extender_places_and_binds_a_pod(containers: Containers, tmp_path: Path) -> None:
    async with cluster("w1") as c:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", c.server.url)
        config = {
            "kubeconfig": str(kubeconfig),
            "source": "http",
            "nodePort": c.port,
            "port": 0,
            "placementKeyFile": str(tmp_path / "key"),
        }
        mounts = [
            readable(kubeconfig),
            readable(tmp_path / "key", "a secret of placements\n"),
            readable(tmp_path / "extender.yaml", json.dumps(config)),
        ]
        log = tmp_path / "log"
        with log.open("wb") as written:
            process = containers.start(
                ["extender", "--config", str(tmp_path / "extender.yaml")], Rights(), mounts, log=written
            )
        [ready] = await Plugin(process, log).logged("extender_ready")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{ready['port']}", trust_env=False) as http:
            assert (await http.get("/healthz")).status_code == 200
            while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110  that is the interface
                await asyncio.sleep(0.01)
            pod = await c.create_pod("p", 1)
            filtered = await http.post("/scheduler/rdma_scheduling", content=c.args("p"))
            assert filtered.json()["NodeNames"] == ["w1"], filtered.text
            bind = {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "w1"}
            assert (await http.post("/scheduler/bind", json=bind)).json() == {"Error": ""}
        assert await c.node_of("p") == "w1"
        process.terminate()
        assert await asyncio.to_thread(process.wait, containers.deadline_s) == 0, log.read_text()


async def test_device_plugin_registers_with_kubelet(containers: Containers, world: World) -> None:
    world.run_dir.mkdir()
    config = {
        "kubeletDir": str(world.sockets),
        "podResources": str(world.directory / "pod-resources.sock"),
        "runDir": str(world.run_dir),
        "listen": "127.0.0.1",
        "port": 0,
        "resources": [{"mode": "exact"}, {"mode": "mount"}],
    }
    async with world.kubelet() as kubelet:
        mounts = [
            readable(world.directory / "device-plugin.yaml", json.dumps(config)),
            Mount(source=world.sockets, writable=True),
            Mount(source=world.directory / "pod-resources.sock"),
            Mount(source=world.run_dir),
            Mount(source=Path("/dev")),
        ]
        log = world.directory / "log"
        with log.open("wb") as written:
            arguments = ["device-plugin", "--config", str(world.directory / "device-plugin.yaml")]
            plugin = Plugin(containers.start(arguments, ROOT, mounts, log=written), log)
        await follows(kubelet, SLOTS, MOUNT)
        assert (await plugin.get("/healthz")).status_code == 200
        state = (await plugin.get("/readyz")).text
        assert f"{SLOTS}: kubelet follows it" in state
        assert f"{MOUNT}: kubelet follows it" in state
        assert await plugin.stop() == 0
        assert world.names() == set()


def network(name: str) -> str:
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "bridge"}]})


async def test_installer_keeps_a_node_set_up_until_it_ends(containers: Containers, tmp_path: Path) -> None:
    programs, networks = tmp_path / "bin", tmp_path / "net.d"
    programs.mkdir()
    networks.mkdir()
    (networks / "10-other.conflist").write_text(network("first"))
    mounts = [Mount(source=programs, writable=True), Mount(source=networks, writable=True)]
    follow = ["install-cni", str(programs), "--network=chained", f"--conf-dir={networks}", "--follow"]
    ours, executable = networks / "00-k8s-rdma.conflist", programs / "k8s-rdma-cni"

    def chained_behind(name: str) -> bool:
        return ours.exists() and json.loads(ours.read_text())["name"] == name

    log = tmp_path / "log"
    with log.open("wb") as written:
        process = containers.start([*follow, "--remove", "--grace-s=0"], ROOT, mounts, log=written)
    installer = Plugin(process, log)
    await installer.until(lambda: chained_behind("first"))
    assert [each["type"] for each in json.loads(ours.read_text())["plugins"]] == ["bridge", "k8s-rdma-cni"]
    assert executable.read_bytes() == (containers.image.root / "opt/k8s-rdma/bin/k8s-rdma-cni").read_bytes()
    version = Program(executable, under=containers.emulator)
    assert "1.0.0" in json.loads(version("VERSION", b"").stdout)["supportedVersions"]
    (networks / "10-other.conflist").write_text(network("second"))
    await installer.until(lambda: chained_behind("second"))
    assert await installer.stop() == 0, log.read_text()
    assert {path.name for path in (*programs.iterdir(), *networks.iterdir())} == {"10-other.conflist"}
