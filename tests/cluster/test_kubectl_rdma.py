"""`kubectl rdma` by a viewer's kubeconfig: a real kubectl, API server, extender and node server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.processes import running
from cluster.publishers import prepare, publishing
from cluster.real import obstacle as no_cluster
from cluster.typed import obstacle, programs
from cluster.world import cluster, collection
from deploy.rendering.chart import documents, render
from server.serving import telling_agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cluster.control_plane import Json
    from cluster.world import Cluster

WHY_NOT = no_cluster() or obstacle("kubectl")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
]
ADDRESS = "10.77.0.1"
"""Of the pods: API servers lead to no loopback address."""

VIEWS_PORT, SERVER_PORT = 8889, 54005
TOKEN = "viewers"  # noqa: S105 - of this test
PLUGINS = Path(sys.executable).parent


@contextmanager
def network() -> Iterator[None]:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    ip("link", "add", "pods", "type", "bridge")
    try:
        ip("link", "set", "pods", "up")
        ip("address", "add", f"{ADDRESS}/24", "dev", "pods")
        yield
    finally:
        ip("link", "delete", "pods")


def viewers() -> list[Json]:
    """The chart's objects for viewers, with the token of this test."""
    made = documents(render({"viewers": {"enabled": True}}))
    names = {"k8s-rdma-viewer", "k8s-rdma-views", "k8s-rdma-tokens"}
    found = [each for each in made if each["metadata"]["name"] in names]
    for each in found:
        if each["kind"] == "Secret":
            each["data"] = {"tokens": base64.b64encode(TOKEN.encode()).decode()}
        if each["kind"] == "Service":
            del each["spec"]["selector"]  # its endpoint is written by hand, as no kubelet runs the pod
    return found


async def bind_roles(c: Cluster, *kinds: str, role: str = "k8s-rdma-viewer") -> None:
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": "k8s-rdma"}
    for kind in kinds:
        meta = {"name": "viewer", "namespace": "k8s-rdma"}
        if kind == "ClusterRole":
            del meta["namespace"]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        await c.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": f"{kind}Binding",
                "metadata": meta,
                "roleRef": reference,
                "subjects": [subject],
            }
        )


async def add_endpoints(c: Cluster) -> None:
    """Set the Service's target: the API server's proxy reads Endpoints, and trusts those of pods alone."""
    target = {"kind": "Pod", "namespace": "k8s-rdma", "name": "node-x"}
    subset = {
        "addresses": [{"ip": ADDRESS, "targetRef": target}],
        "ports": [{"name": "views", "port": VIEWS_PORT}],
    }
    meta = {"name": "k8s-rdma-views"}
    document = {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [subset]}
    made = await c.http.post("/api/v1/namespaces/k8s-rdma/endpoints", json=document)
    assert made.is_success, made.text


async def add_node_pod(c: Cluster, node: str) -> None:
    """The pod of the DaemonSet, in which the node's server runs."""
    labels = {"app.kubernetes.io/name": "k8s-rdma", "app.kubernetes.io/component": "node"}
    server = {"name": "server", "image": "registry.invalid/c:1", "ports": [{"containerPort": SERVER_PORT}]}
    meta = {"name": "node-x", "namespace": "k8s-rdma", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    made = await c.create({**pod, "spec": {"nodeName": node, "containers": [server]}})
    status = {"status": {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "phase": "Running"}}
    await c.patch(f"{collection(made)}/node-x/status", status)


@asynccontextmanager
async def node_server(c: Cluster, node: str) -> AsyncIterator[None]:
    """The node's server, which reads a played agent."""
    run_dir, tokens = c.directory / "run", c.directory / "tokens"
    run_dir.mkdir()
    config = {"runDir": str(run_dir), "listen": ADDRESS, "tokenFile": str(tokens)}
    path = c.directory / "server.yaml"
    path.write_text(json.dumps(config))
    command = (sys.executable, "-m", "k8s_rdma", "server", "--config", path)
    async with (
        running(c.directory / "server.log", *command),
        telling_agent(run_dir, c.nodes[node].server.report),
    ):
        yield


async def plugin(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The output of the command, by kubectl."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{PLUGINS}:{os.environ['PATH']}"}
    environment.pop("K8S_RDMA_EXTENDER", None)
    run = partial(subprocess.run, capture_output=True, text=True, check=False, env=environment, timeout=60)
    return await asyncio.to_thread(run, [str(programs() / "kubectl"), *arguments])


async def test_viewer_reads_everything_by_the_api_server_alone(tmp_path: Path):
    async with cluster("real", tmp_path, "w1") as c:
        with network():
            await scenario(c)


async def scenario(c: Cluster) -> None:
    await prepare(c)
    for each in viewers():
        await c.create(each)
    await add_node_pod(c, "w1")
    await add_endpoints(c)
    await c.create(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "viewer", "namespace": "k8s-rdma"},
        }
    )
    viewer = await c.account("viewer", "k8s-rdma")
    (c.directory / "tokens").write_text(TOKEN)
    views = {"listen": ADDRESS, "port": VIEWS_PORT, "tokenFile": str(c.directory / "tokens")}
    async with publishing(c, c.nodes["w1"]):
        extender = await c.running_extender(source="crd", views=views)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("p", 4_000)
            await c.bound("p")
            await c.create_pod("big", 60_000)
            await c.event("big", "FailedScheduling")
        await check_rights(c, viewer)
        async with node_server(c, "w1"):
            await check_views(viewer)


async def check_rights(c: Cluster, viewer: Path) -> None:
    refused = await plugin(viewer, "rdma", "who")
    assert 'cannot list resource "rdmanodes"' in refused.stderr, refused
    await bind_roles(c, "ClusterRole")
    refused = await plugin(viewer, "rdma", "top")
    assert 'cannot get resource "services/proxy"' in refused.stderr, refused
    assert "the chart's Role k8s-rdma-viewer has this right" in refused.stderr
    while "default/p" not in (held := await plugin(viewer, "rdma", "who")).stdout:
        assert not held.returncode, held
    assert "the chart's Role k8s-rdma-viewer has this right" in held.stdout
    await bind_roles(c, "Role")


async def check_views(viewer: Path) -> None:
    top = await plugin(viewer, "rdma", "top")
    assert "4000/10000" in top.stdout, top
    assert re.search(r"default/big .* 1 node: too small for the pod, even when empty", top.stdout), top
    explained = await plugin(viewer, "rdma", "explain", "pod", "default/p")
    assert "pod default/p" in explained.stdout, explained
    held = await plugin(viewer, "rdma", "who", "w1", "--json")
    document = json.loads(held.stdout)
    [row] = document["holders"]
    assert (row["pod"], row["reserved_mbps"], row["pf"]) == ("p", 4000, row["pf"])
    assert row["interface"] is not None, document
    completed = await plugin(viewer, "__complete", "rdma", "wh")
    assert completed.stdout.splitlines()[0].startswith("who\t"), completed
    refused = await plugin(
        viewer, "get", "--raw", "/api/v1/namespaces/k8s-rdma/services/k8s-rdma-extender:http/proxy/"
    )
    assert "forbidden" in refused.stderr
