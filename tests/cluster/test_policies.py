"""deploy/policies/own-node.yaml and evictions.yaml: who may write which objects, in a real API server."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cluster.policies import (
    SINCE,
    apply_policies,
    client_of,
    grant_everything,
    pod_of,
    token_of,
    until,
    written,
)
from cluster.publishers import AGENT, VFS, prepare
from cluster.real import obstacle
from cluster.world import RBAC, Cluster, cluster
from k8s_rdma.agent.cluster.publisher import timed
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.kube.api import EventSubject, ObjectEvent, about_node, about_pod
from k8s_rdma.kube.client import Client
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.rdma_node import encode_status, status_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
MINE, OTHER = NodeName("w1"), NodeName("w2")
BLOCK = "addresses.10-56-0-0.16.24.7"
DEVICE_PLUGIN = "k8s-rdma-device-plugin"


@dataclass
class Guarded:
    """A cluster with the policies, and the agent of node w1."""

    c: Cluster
    agent: Client

    async def pod(self, name: str, node: str) -> Pod:
        """A pod on a node."""
        made = await self.c.create_pod(name, nodeName=node)
        return Pod(namespace="default", name=name, uid=PodUid(made["metadata"]["uid"]))


@asynccontextmanager
async def guarded(directory: Path) -> AsyncIterator[Guarded]:
    """Two nodes, the policies in force, and the roles granted that they narrow."""
    async with AsyncExitStack() as stack:
        c = await stack.enter_async_context(cluster("real", directory, MINE, OTHER))
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: ValidatingAdmissionPolicy is of {SINCE} and later")
        await prepare(c)
        await c.apply(RBAC / "device-plugin.yaml")
        await apply_policies(c, "own-node")
        await apply_policies(c, "evictions")
        token = await token_of(c, AGENT, await pod_of(c, AGENT, MINE))
        agent = await stack.enter_async_context(client_of(c, token))
        await until(lambda: refused_of_w0(c, agent))
        yield Guarded(c, agent)


async def refused_of_w0(c: Cluster, agent: Client) -> bool:
    """Whether the policy is in force."""
    refused = await refusal(agent.create_rdma_node(NodeName("w0"), "0"))
    await c.http.delete("/apis/k8s-rdma.io/v1alpha1/rdmanodes/w0")
    return bool(refused)


async def refusal(call: Awaitable[object]) -> str:
    """Why the API server does not do it; empty if it does."""
    try:
        await call
    except ApiRefusedError as refused:
        return refused.message
    return ""


def event(about: EventSubject, host: str, name: str = "e") -> ObjectEvent:
    now = datetime.now(UTC)
    return ObjectEvent(
        about=about,
        name=name,
        reason="Tried",
        message="m",
        warning=False,
        count=1,
        first=now,
        last=now,
        component="k8s-rdma-agent",
        host=NodeName(host),
    )


async def test_agent_does_its_work_on_its_own_node(tmp_path: Path):
    async with guarded(tmp_path) as g:
        pod = await g.pod("mine", MINE)
        made = await g.agent.create_rdma_node(MINE, "1")
        status = timed(status_of(g.c.nodes[MINE].server.report), b"", datetime.now(UTC))
        await g.agent.write_status(replace(made, status=encode_status(status)))
        lease = LeaseView(namespace="k8s-rdma", name=MINE, holder=MINE, duration_s=40)
        await g.agent.write_lease(await g.agent.write_lease(lease))
        block = LeaseView(namespace="k8s-rdma", name=BLOCK, holder=MINE, duration_s=40)
        await g.agent.write_lease(await g.agent.write_lease(block))
        await g.agent.set_capacity(MINE, VFS, 8)
        await g.agent.set_capacity(MINE, VFS, 7)
        await g.agent.annotate_pod(pod, NETWORK_STATUS_ANNOTATION, "[]")
        for about in (about_pod(pod), about_node(MINE)):
            told = event(about, MINE, f"e-{about.kind.lower()}")
            await g.agent.create_event(told)
            await g.agent.repeat_event(told)
        await g.agent.evict_pod(pod)


async def test_agent_writes_no_object_of_another_node(tmp_path: Path):
    async with guarded(tmp_path) as g:
        pod, agent = await g.pod("other", OTHER), g.agent
        lease = LeaseView(namespace="k8s-rdma", name=OTHER, holder=MINE, duration_s=40)
        await g.c.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": "k8s-rdma", "name": BLOCK},
                "spec": {"holderIdentity": OTHER},
            }
        )
        theirs_block = await agent.get_lease("k8s-rdma", BLOCK)
        assert theirs_block is not None
        theirs = event(about_pod(pod), OTHER, "theirs")
        await g.c.create(_document(theirs))
        asked = {
            "rdmanodes w2 is not of node w1": agent.create_rdma_node(OTHER, "1"),
            "leases w2 is not of node w1": agent.write_lease(lease),
            f"leases {BLOCK} is not of node w1": agent.write_lease(
                replace(lease, name=BLOCK, version=theirs_block.version)
            ),
            f"leases {BLOCK}0 is not of node w1": agent.write_lease(
                replace(lease, name=f"{BLOCK}0", holder=OTHER)
            ),
            "nodes/status w2 is not of node w1": agent.set_capacity(OTHER, VFS, 0),
            "pods default/other is not bound to node w1": agent.annotate_pod(
                pod, NETWORK_STATUS_ANNOTATION, "[]"
            ),
            "pod default/other is not bound to node w1": agent.evict_pod(pod),
            "event default/e is not reported by node w1": agent.create_event(event(about_pod(pod), OTHER)),
            "event default/f is not reported by node w1, or about another node": agent.create_event(
                event(about_node(OTHER), MINE, "f")
            ),
            "event default/theirs is not reported by node w1": agent.repeat_event(theirs),
        }
        for expected, call in asked.items():
            assert expected in await refusal(call)


async def test_agent_writes_no_other_field_of_its_node_and_pods(tmp_path: Path):
    async with guarded(tmp_path) as g:
        pod, agent = await g.pod("mine", MINE), g.agent
        for key in ("rdma_interfaces_required", "k8s-rdma.io/placement", "k8s-rdma.io/fence"):
            told = await refusal(agent.annotate_pod(pod, key, "[]"))
            assert "nothing of a pod but its annotations k8s-rdma.io/network-status" in told, key
        for resource in ("cpu", "ephemeral-storage", "storage.kubernetes.io/x"):
            assert f"not {resource}" in await refusal(agent.set_capacity(MINE, resource, 1_000)), resource
        assert await refusal(agent.annotate_node(MINE, "a", "b")), "not even by its role"


async def test_no_other_field_of_node_or_pod_passes_although_the_role_may_write_them(tmp_path: Path):
    """The policy alone: the role here is wider than that of deploy/rbac."""
    async with guarded(tmp_path) as g:
        await grant_everything(g.c, AGENT, "k8s-rdma")
        pod = await g.pod("mine", MINE)
        token = await token_of(g.c, AGENT, f"{AGENT}-{MINE}")
        node, pods = f"/api/v1/nodes/{MINE}", f"/api/v1/namespaces/default/pods/{pod.name}"
        condition = {"type": "Ready", "status": "False"}
        refused: dict[str, list[tuple[str, Json]]] = {
            "nothing of a Node but": [
                (node, {"metadata": {"labels": {"a": "b"}}}),
                (node, {"spec": {"unschedulable": True}}),
                (f"{node}/status", {"metadata": {"labels": {"a": "b"}}}),
                (f"{node}/status", {"metadata": {"annotations": {"a": "b"}}}),
                (f"{node}/status", {"status": {"conditions": [condition]}}),
                (f"{node}/status", {"status": {"addresses": []}}),
                (f"{node}/status", {"status": {"allocatable": {VFS: "9"}}}),
                (f"{node}/status", {"status": {"nodeInfo": {"kubeletVersion": "v0"}}}),
                (f"{node}/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
                (f"{node}/status", {"status": {"images": [{"names": ["x"]}]}}),
                (f"{node}/status", {"status": {"volumesInUse": ["x"]}}),
                (f"{node}/status", {"status": {"volumesAttached": [{"name": "x", "devicePath": ""}]}}),
                (f"{node}/status", {"status": {"runtimeHandlers": [{"name": "x"}]}}),
                (f"{node}/status", {"status": {"phase": "Pending"}}),
            ],
            "nothing of a pod but": [
                (pods, {"metadata": {"labels": {"a": "b"}}}),
                (pods, {"metadata": {"finalizers": ["example.com/x"]}}),
                (pods, {"metadata": {"ownerReferences": [_owner()]}}),
                (pods, {"spec": {"activeDeadlineSeconds": 5}}),
            ],
            "pods/status default/mine is not": [(f"{pods}/status", {"status": {"phase": "Failed"}})],
        }
        if g.c.plane.release >= (1, 31):  # one of before knows no such field, and drops it
            features = {"supplementalGroupsPolicy": True}
            refused["nothing of a Node but"].append((f"{node}/status", {"status": {"features": features}}))
        if g.c.plane.release >= (1, 36):
            declared = {"status": {"declaredFeatures": ["GuaranteedQoSPodCPUResize"]}}
            refused["nothing of a Node but"].append((f"{node}/status", declared))
        for expected, patches in refused.items():
            for path, patch in patches:
                assert expected in await written(g.c, token, "PATCH", path, patch), patch


@pytest.mark.parametrize("account", [AGENT, DEVICE_PLUGIN])
async def test_token_that_is_bound_to_no_pod_writes_no_object(tmp_path: Path, account: str):
    async with guarded(tmp_path) as g, client_of(g.c, await token_of(g.c, account)) as client:
        told = await refusal(client.create_event(event(about_node(MINE), MINE)))
        assert "its token names no node (authentication.kubernetes.io/node-name)" in told
        assert f"system:serviceaccount:k8s-rdma:{account}" in told


async def test_device_plugin_writes_events_of_its_own_node_alone(tmp_path: Path):
    async with guarded(tmp_path) as g:
        token = await token_of(g.c, DEVICE_PLUGIN, await pod_of(g.c, DEVICE_PLUGIN, OTHER))
        async with client_of(g.c, token) as plugin:
            await plugin.create_event(event(about_node(OTHER), OTHER))
            assert "is not reported by node w2" in await refusal(
                plugin.create_event(event(about_node(MINE), OTHER, "f"))
            )


async def test_policies_are_about_no_other_user(tmp_path: Path):
    async with guarded(tmp_path) as g:
        await g.c.patch("/api/v1/nodes/w2/status", {"status": {"capacity": {"cpu": "3"}}})
        pod = await g.pod("p", OTHER)
        await g.c.patch(f"/api/v1/namespaces/default/pods/{pod.name}", {"metadata": {"labels": {"a": "b"}}})
        eviction = {
            "kind": "Eviction",
            "apiVersion": "policy/v1",
            "metadata": {"name": "p", "namespace": "default"},
        }
        answer = await g.c.http.post("/api/v1/namespaces/default/pods/p/eviction", json=eviction)
        assert answer.is_success, answer.text


def _owner() -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "1"}


def _document(told: ObjectEvent) -> dict[str, object]:
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": told.name, "namespace": told.about.namespace},
        "involvedObject": {
            "kind": "Pod",
            "namespace": told.about.namespace,
            "name": told.about.name,
            "uid": told.about.uid,
        },
        "source": {"component": told.component, "host": told.host},
        "reportingComponent": told.component,
        "reportingInstance": told.host,
        "reason": told.reason,
    }
