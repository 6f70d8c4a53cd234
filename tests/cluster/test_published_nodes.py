"""Source `crd`: nodes publish themselves as RdmaNodes, with a Lease each, and the extender watches both."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from cluster.extenders import registration
from cluster.publishers import VFS, as_agent, prepare, publishing
from cluster.world import Cluster, cluster
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.kube.api import ObjectEvent, about_pod
from k8s_rdma.kube.informer import Listed

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = pytest.mark.anyio

NODES = "/apis/k8s-rdma.io/v1alpha1/rdmanodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
LEGACY = "RDMA Scheduler Extension"


async def published(c: Cluster, node: str) -> Json:
    """Wait until a node has published its status and renewed its Lease; its RdmaNode."""
    while True:
        answer = await c.http.get(f"{NODES}/{node}")
        lease = await c.http.get(f"{LEASES}/{node}")
        if answer.status_code == lease.status_code == 200 and answer.json().get("status"):
            return answer.json()
        await asyncio.sleep(0.05)


async def capacity(c: Cluster, node: str, resource: str) -> str:
    """Wait until a node has a resource; how much of it."""
    while True:
        status = (await c.http.get(f"/api/v1/nodes/{node}")).json()["status"]
        if resource in status["capacity"]:
            return status["capacity"][resource]
        await asyncio.sleep(0.05)


async def test_pods_come_to_nodes_that_publish_themselves(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c, AsyncExitStack() as agents:
        await prepare(c)
        for node in c.nodes.values():
            await agents.enter_async_context(publishing(c, node))
        extender = await c.running_extender(source="crd", nodePort=1)
        async with c.plane.scheduler(registration(extender.url)):
            await published(c, "w1")
            await published(c, "w2")
            for index in range(3):
                await c.create_pod(f"p{index}", 6_000)
            bound = await c.some_bound(2)
            names = {pod["metadata"]["name"] for pod in bound}
            (left,) = {"p0", "p1", "p2"} - names
            await c.event(left, "FailedScheduling", LEGACY)
            assert len({pod["spec"]["nodeName"] for pod in bound}) == 2
            await c.delete_pod(min(names))
            await c.bound(left)
            assert max((await c.placed()).values()) == 6_000


async def test_node_that_was_not_heard_from_for_too_long_is_refused(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        extender = await c.running_extender(source="crd", staleS=2)
        async with c.plane.scheduler(registration(extender.url)):
            async with publishing(c, c.nodes["w1"], renew_s=1):
                await published(c, "w1")
                await c.create_pod("first", 1_000)
                await c.bound("first")
            await asyncio.sleep(5)  # this test is about time that passes
            await c.create_pod("second", 1_000)
            await c.event("second", "FailedScheduling", LEGACY)
            async with publishing(c, c.nodes["w1"]):
                await c.bound("second")


async def test_status_is_written_through_its_subresource_alone(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        async with publishing(c, c.nodes["w1"]):
            before = await published(c, "w1")
        after = await c.patch(f"{NODES}/w1", {"metadata": {"labels": {"a": "b"}}, "status": {"pfs": []}})
        assert after["status"] == before["status"]
        assert after["metadata"]["labels"] == {"a": "b"}
        (owner,) = after["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Node", "w1")


async def test_status_is_refused_beyond_the_bounds_of_its_schema(kind: str, tmp_path: Path):
    if kind == "stand-in":
        pytest.skip("the stand-in checks no schemas")
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        async with publishing(c, c.nodes["w1"]):
            (pf,) = (await published(c, "w1"))["status"]["pfs"]
        many = [{**pf, "pci": f"0000:{bus:02x}:00.0"} for bus in range(65)]
        for pfs, fault in (([pf, pf], "Duplicate value"), (many, "must have at most 64 items")):
            answer = await c.http.patch(
                f"{NODES}/w1/status",
                json={"status": {"pfs": pfs}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
            assert answer.status_code == 422, answer.text
            assert fault in answer.json()["message"]
        await c.patch(f"{NODES}/w1/status", {"status": {"pfs": many[:64]}})


async def test_vfs_are_published_as_capacity_of_the_node(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        async with publishing(c, c.nodes["w1"]):
            assert await capacity(c, "w1", VFS) == "4"


async def test_kubectl_prints_columns_of_a_node(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        async with publishing(c, c.nodes["w1"]):
            await published(c, "w1")
            accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
            table = (await c.http.get(NODES, headers=accept)).json()
            columns = table["columnDefinitions"]
            shown = [column["name"].upper() for column in columns if not column["priority"]]
            assert shown[1:] == [
                "PFS",
                "VFS FREE/TOTAL",
                "BANDWIDTH FREE/TOTAL",
                "AGE",
                "LAST REPORT",
                "READY THEN",
            ]
            row = zip(columns, table["rows"][0]["cells"], strict=True)
            _name, pfs, vfs, bandwidth, _age, reported, ready = [
                cell for column, cell in row if not column["priority"]
            ]
            assert (pfs, vfs, bandwidth, ready) == (1, "4/4", "10/10Gb/s", "True")
            assert re.fullmatch(r"\d+s", reported)


@pytest.mark.parametrize(
    ("role", "resource", "verb"),
    [
        ("clusterroles/k8s-rdma-agent", "nodes", "list"),
        ("clusterroles/k8s-rdma-agent", "rdmanodes", "get"),
        ("clusterroles/k8s-rdma-agent", "rdmanodes", "create"),
        ("clusterroles/k8s-rdma-agent", "rdmanodes/status", "update"),
        ("namespaces/k8s-rdma/roles/k8s-rdma-agent", "leases", "create"),
        ("namespaces/k8s-rdma/roles/k8s-rdma-node-leases", "leases", "list"),
    ],
)
async def test_node_takes_no_pods_without_a_verb_of_these_roles(
    kind: str, tmp_path: Path, role: str, resource: str, verb: str
):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        rules = (await c.http.get(f"{ROLES}/{role}")).json()["rules"]
        fewer = [_without(rule, resource, verb) for rule in rules]
        assert fewer != rules
        await c.patch(f"{ROLES}/{role}", {"rules": [rule for rule in fewer if rule["verbs"]]})
        extender = c.extender(source="crd", staleS=5)
        await extender.start()
        async with publishing(c, c.nodes["w1"]), c.plane.scheduler(registration(extender.url)):
            await c.create_pod("p", 1_000)
            await c.event("p", "FailedScheduling")
            await asyncio.sleep(1)
            assert await c.node_of("p") is None


def _without(rule: dict[str, Any], resource: str, verb: str) -> dict[str, Any]:
    if resource not in rule["resources"]:
        return rule
    return {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}


async def test_account_of_agents_suffices_for_their_work_with_pods(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c, AsyncExitStack() as stack:
        await prepare(c)
        agent = await stack.enter_async_context(as_agent(c))
        c.nodes.clear()  # its kubelet lets the pod alone
        made = await c.create_pod("p", 1_000, nodeName="w1")
        pod = Pod(namespace="default", name="p", uid=PodUid(made["metadata"]["uid"]))
        async with aclosing(agent.follow_pods_of(NodeName("w1"))) as events:
            first = await anext(events)
            assert isinstance(first, Listed)
            assert [each.name for each in first.items] == ["p"]
            await agent.annotate_pod(pod, "k8s-rdma.io/network-status", "[]")
            assert (await anext(events)).item.uid == pod.uid
        whole = await agent.get_whole_pod("default", "p")
        assert whole.annotations["k8s-rdma.io/network-status"] == "[]"
        now = datetime.now(UTC)
        event = ObjectEvent(
            about=about_pod(pod),
            name="p.1",
            reason="RdmaTried",
            message="no",
            warning=True,
            count=1,
            first=now,
            last=now,
            component="k8s-rdma-agent",
            host=NodeName("w1"),
        )
        await agent.create_event(event)
        await agent.repeat_event(event)
        assert await c.events("p", "RdmaTried") == ["no"]
        await agent.evict_pod(pod)
        assert "deletionTimestamp" in (await c.pod("p"))["metadata"]
