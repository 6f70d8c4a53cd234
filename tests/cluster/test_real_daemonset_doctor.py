"""`k8s-rdma doctor node` in the agent's container of the DaemonSet's pod, on a real kubelet."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import yaml

from cluster.kubelet import programs
from cluster.publishers import CRD
from cluster.test_real_daemonset import node, published, pytestmark, ready, start_pod
from k8s_rdma import __version__
from k8s_rdma.wire.doctor import decode_doctor

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

__all__ = ["pytestmark"]


async def in_agent(pod: Json, place: Path, *command: str) -> bytes:
    """What a command prints in the agent's container, as by `kubectl exec`; it may fail."""
    statuses = {each["name"]: each for each in pod["status"]["containerStatuses"]}
    container = statuses["agent"]["containerID"].removeprefix("containerd://")
    executing = ("tasks", "exec", "--exec-id=doctor", f"--fifo-dir={place}", container)
    process = await asyncio.create_subprocess_exec(
        *(programs() / "ctr", f"--address={place}/containerd.sock", "-n=k8s.io", *executing, *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert out, said.decode()
    return out


async def test_doctor_sees_node_and_cluster_from_the_agents_container(tmp_path: Path):
    place = tmp_path / "c"
    cni = {"binDir": f"{place}/bin", "confDir": f"{place}/net.d"}
    async with node(tmp_path) as c:
        await c.plane.add_crd(yaml.safe_load(CRD.read_text()))
        await start_pod(c, {"node": {"cni": cni, "agent": {"config": {"cdiDir": f"{place}/cdi"}}}})
        pod = await ready(c)
        await published(c)
        document = decode_doctor(await in_agent(pod, place, "k8s-rdma", "doctor", "node", "--json"))
        info = (await c.http.get("/api/v1/nodes")).json()["items"][0]["status"]["nodeInfo"]
    found = {(each.id, each.about): each for each in document.findings}
    for name in ("agent", "server", "device-plugin"):
        assert f"version {__version__}" in found["processes-ok", name].found
    assert {("versions-ok", ""), ("crd-ok", "rdmanodes.k8s-rdma.io"), ("vfs-ok", "")} <= set(found)
    assert f"k8s-rdma {__version__}" in found["versions-ok", ""].found
    runtime = info["containerRuntimeVersion"].removeprefix("containerd://")
    assert f"version {runtime};" in found["runtime-ok", "containerd"].found
    # No cards, and no plugin of the other network: no pod is started by it.
    assert {each.id for each in document.findings if each.severity == "error"} == {
        "hardware-no-pf",
        "cni-plugin-missing",
    }
    not_seen = {each.subject for each in document.findings if each.id == "not-looked-at"}
    assert not_seen <= {"modules"}  # where the machine has none for its kernel
