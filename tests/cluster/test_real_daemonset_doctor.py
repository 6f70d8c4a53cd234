"""`k8s-rdma doctor node` in the agent's container of the DaemonSet's pod, on a real kubelet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import yaml

from cluster.kubelet import runtime_class
from cluster.publishers import CRD
from cluster.test_real_daemonset import node, published, pytestmark, ready, start_pod
from doctor_documents import decode_doctor
from k8s_rdma import __version__

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pytestmark"]


async def test_doctor_sees_node_and_cluster_from_the_agents_container(tmp_path: Path):
    place = tmp_path / "c"
    cni = {"binDir": f"{place}/bin", "confDir": f"{place}/net.d"}
    async with node(tmp_path) as (c, kubelet):
        await c.plane.add_crd(yaml.safe_load(CRD.read_text()))
        await start_pod(c, {"node": {"cni": cni, "agent": {"config": {"cdiDir": f"{place}/cdi"}}}})
        pod = await ready(c)
        await published(c)
        doctor = "k8s-rdma", "doctor", "node", "--json"
        said = await asyncio.to_thread(kubelet.execute, pod, "agent", *doctor)  # it asks the API server
        info = (await c.http.get("/api/v1/nodes")).json()["items"][0]["status"]["nodeInfo"]
    document = decode_doctor(said.encode())
    found = {(each.id, each.about): each for each in document.findings}
    for name in ("agent", "server", "device-plugin"):
        assert f"version {__version__}" in found["processes-ok", name].found
    assert {("versions-ok", ""), ("crd-ok", "rdmanodes.k8s-rdma.io"), ("vfs-ok", "")} <= set(found)
    assert f"k8s-rdma {__version__}" in found["versions-ok", ""].found
    version = info["containerRuntimeVersion"].partition("://")[2]
    assert f"version {version};" in found["runtime-ok", runtime_class().name].found
    # No cards.
    assert {each.id for each in document.findings if each.severity == "error"} == {"hardware-no-pf"}
    not_seen = {each.subject for each in document.findings if each.id == "not-looked-at"}
    assert not_seen <= {"modules"}  # if the machine has no modules for its kernel
