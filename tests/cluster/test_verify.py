"""`k8s-rdma verify cluster` before an API server: its rights, the objects it makes, and those it leaves."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cluster.extenders import registration
from cluster.publishers import prepare, publishing
from cluster.test_published_nodes import published
from cluster.world import Cluster, cluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LABELS = {"app.kubernetes.io/name": "k8s-rdma-verify"}
SELECTOR = "app.kubernetes.io/name=k8s-rdma-verify"
PODS = "/api/v1/namespaces/default/pods"
RBAC = "rbac.authorization.k8s.io"
READS = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": ["k8s-rdma.io"], "resources": ["rdmanodes"], "verbs": ["get"]},
]
WRITES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "get", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]
"""As docs/permissions.md has them, with --image."""


async def verifier(c: Cluster) -> Path:
    """The kubeconfig of an account with these rights alone."""
    account = {"name": "verifier", "namespace": "default"}
    await c.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    for prefix, rules in (("Cluster", READS), ("", WRITES)):
        kind = f"{prefix}Role"
        name = {"name": "verifier"} if prefix else account
        head = {"apiVersion": f"{RBAC}/v1", "metadata": name}
        role = {"apiGroup": RBAC, "kind": kind, "name": "verifier"}
        subject = {"kind": "ServiceAccount", **account}
        await c.create({**head, "kind": kind, "rules": rules})
        await c.create({**head, "kind": f"{kind}Binding", "roleRef": role, "subjects": [subject]})
    return await c.account("verifier", "default")


async def pods(c: Cluster) -> list[dict[str, Any]]:
    return (await c.http.get(PODS, params={"labelSelector": SELECTOR})).json()["items"]


async def fail_pods(c: Cluster) -> list[dict[str, Any]]:
    """Be a kubelet that evicts bound pods; all pods that it had, until cancelled."""
    evicted: dict[str, dict[str, Any]] = {}
    status = {"status": {"phase": "Failed", "reason": "Evicted", "message": "the node is low on memory"}}
    headers = {"Content-Type": "application/merge-patch+json"}
    try:
        while True:
            for pod in await pods(c):
                name = pod["metadata"]["name"]
                if pod["spec"].get("nodeName") and name not in evicted:
                    evicted[name] = pod
                    await c.http.patch(f"{PODS}/{name}/status", json=status, headers=headers)
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return list(evicted.values())


async def test_verify_makes_pods_with_few_rights_and_deletes_them_and_those_of_an_earlier_run(
    kind: str, tmp_path: Path
) -> None:
    async with cluster(kind, tmp_path, "w1", "w2") as c, AsyncExitStack() as agents:
        await prepare(c)
        for node in c.nodes.values():
            await agents.enter_async_context(publishing(c, node))
        extender = await c.running_extender(source="crd", nodePort=1)
        async with c.plane.scheduler(registration(extender.url)):
            await published(c, "w1")
            await published(c, "w2")
            kubelet = asyncio.create_task(fail_pods(c))
            await c.create_pod("left", labels=LABELS, nodeName="w1")
            await c.when("left", lambda pod: pod["status"].get("phase") == "Failed")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "k8s_rdma", "verify", "cluster", "w1", "w2"),
                *("--image", "registry.invalid/k8s-rdma:1", "--kubeconfig", str(await verifier(c))),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            output, errors = (text.decode() for text in await process.communicate())
            kubelet.cancel()
            evicted = await kubelet
            assert await pods(c) == []
    assert process.returncode == 2, output + errors
    assert "a pod failed: the node is low on memory" in output
    assert {pod["spec"]["nodeName"] for pod in evicted[1:]} == {"w1", "w2"}  # each receives once


async def test_verify_refuses_to_run_beside_another_run(kind: str, tmp_path: Path) -> None:
    async with cluster(kind, tmp_path, "w1", "w2") as c, AsyncExitStack() as agents:
        await prepare(c)
        for node in c.nodes.values():
            await agents.enter_async_context(publishing(c, node))
            await published(c, node.server.name)
        await c.create_pod("running", labels=LABELS, nodeName="w1")
        command = (sys.executable, "-m", "k8s_rdma", "verify", "cluster", "w1", "w2", "--image", "i")
        kubeconfig = await verifier(c)
        process = await asyncio.create_subprocess_exec(
            *command, "--kubeconfig", str(kubeconfig), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert "pods of another run are there" in errors.decode()
        assert [pod["metadata"]["name"] for pod in await pods(c)] == ["running"]
