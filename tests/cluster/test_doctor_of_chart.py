"""`k8s-rdma doctor cluster` finds no fault with the chart's objects in a real API server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cluster.control_plane import Json, write_kubeconfig
from cluster.policies import token_of
from cluster.publishers import AGENT, CRD, publishing
from cluster.real import obstacle
from cluster.server_side_apply import Applied
from cluster.test_doctor import LEASE, examined
from cluster.test_manifests import NAMESPACE, VALUES, rendered
from cluster.world import Cluster, cluster, documents

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]


async def install(c: Cluster, values: Json) -> None:
    """Everything but the objects of controllers, and a ready pod of each workload on node w1."""
    applied = Applied(c.http)
    for document in documents(CRD):
        await c.plane.add_crd(document)
    await applied.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for each in rendered(c.plane, values):
        await applied.apply(each)
        if each["kind"] in {"DaemonSet", "Deployment"}:
            await run(c, each)


async def run(c: Cluster, workload: Json) -> None:
    """The pods that its controller would make, as they are when kubelet has started them."""
    template, name = workload["spec"]["template"], workload["metadata"]["name"]
    spec = {**template["spec"], "nodeName": "w1"}
    for number in range(workload["spec"].get("replicas", 1)):
        meta = {**template["metadata"], "name": f"{name}-{number}", "namespace": NAMESPACE}
        await c.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
        ready = {"type": "Ready", "status": str(number == 0)}  # one of the extender's replicas is
        status = {"status": {"phase": "Running", "conditions": [ready]}}
        await c.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}-{number}/status", status)


@pytest.mark.parametrize("way", ["defaults", "host network", "service"])
async def test_doctor_finds_no_fault_in_an_installation_by_the_chart(tmp_path: Path, way: str):
    async with cluster("real", tmp_path, "w1") as c:
        await install(c, VALUES[way])
        info = {
            "kubeletVersion": f"v1.{c.plane.release[1]}.0",
            "containerRuntimeVersion": "containerd://2.2.1",
        }
        await c.patch("/api/v1/nodes/w1/status", {"status": {"nodeInfo": info}})
        token = await token_of(c, AGENT, "k8s-rdma-node-0")
        write_kubeconfig(tmp_path / f"{AGENT}.kubeconfig", c.plane, token)
        async with publishing(c, c.nodes["w1"]):
            while (await c.http.get(LEASE)).status_code != 200:  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.05)
            document, _ = await examined(c)
        wrong = [each for each in document.findings if each.severity in {"warning", "error"}]
        assert not wrong
        ids = {each.id for each in document.findings}
        assert ids >= {"versions-ok", "extender-ok", "crd-ok", "rights-ok", "nodes-ok", "pods-ok"}
        assert ("scheduler-ok" in ids) == (way == "defaults")  # else it is in a file of the control plane
