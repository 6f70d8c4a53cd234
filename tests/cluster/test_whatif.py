"""Capacity questions by a planner's rights alone, and answers that kube-scheduler then makes true."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cli.asking import Ran, k8s_rdma
from cluster.publishers import VFS, prepare, publishing
from cluster.test_kubectl_rdma import bind_roles, plugin
from cluster.test_preemption import classes, pod, preempting
from cluster.test_published_nodes import LEASES, published
from cluster.typed import obstacle
from cluster.world import Cluster, cluster
from deploy.rendering.chart import documents, render
from extender.node_server import pf, report

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = pytest.mark.anyio

ROLES = ("ClusterRole", "Role")
STALE_S = 3


async def prepare_planner(c: Cluster, **extender: Any) -> Path:
    """Create the chart's objects for planners; the kubeconfig of an account with these rights alone."""
    config = {"extender.yaml": json.dumps(extender)}
    objects = [each for each in documents(render({})) if each["metadata"]["name"] == "k8s-rdma-planner"]
    assert sorted(each["kind"] for each in objects) == sorted(ROLES)
    for kind, name, more in (
        ("ConfigMap", "k8s-rdma-extender", {"data": config}),
        ("ServiceAccount", "viewer", {}),
    ):
        objects.append(
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "k8s-rdma"}, **more}
        )
    for each in objects:
        await c.create(each)
    await bind_roles(c, *ROLES, role="k8s-rdma-planner")
    return await c.account("viewer", "k8s-rdma")


def manifest(directory: Path, priority: str, *rates: int, replicas: int = 1) -> Path:
    """A Deployment whose pods are those that `pod` makes."""
    annotation = json.dumps([{"min_tx_rate": rate} for rate in rates])
    spec = {"priorityClassName": priority, "containers": [{"resources": {"limits": {VFS: str(len(rates))}}}]}
    template = {"metadata": {"annotations": {"rdma_interfaces_required": annotation}}, "spec": spec}
    document = {
        "kind": "Deployment",
        "metadata": {"name": "asked"},
        "spec": {"replicas": replicas, "template": template},
    }
    path = directory / "asked.json"
    path.write_text(json.dumps(document))
    return path


async def ask(planner: Path, *arguments: str) -> tuple[int, Json]:
    """A question of the planner's: exit status and answer. No part may be missing."""
    ran = await k8s_rdma("whatif", *arguments, "--json", "--kubeconfig", str(planner))
    assert not ran.err, ran
    answer = json.loads(ran.out)
    assert not answer.get("unreadable"), answer
    return ran.status, answer


async def test_kube_scheduler_evicts_the_pods_that_the_answer_names(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", **{VFS: "2"}) as c, AsyncExitStack() as agents:
        await prepare(c)
        await classes(c)
        planner = await prepare_planner(c, vfResource=VFS)
        for name, node in c.nodes.items():
            node.server.report = report(name, pf(vfs=2))
            await agents.enter_async_context(publishing(c, node))
            await published(c, name)
        extender = await c.running_extender(source="crd", vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            for name, priority, rate in (
                *(("much", "low", 8_000), ("little", "low", 1_000)),
                *(("third", "middle", 6_000), ("fourth", "middle", 3_000)),
            ):
                await pod(c, name, priority, rate)
                await c.bound(name)
            for round_, rate in enumerate((7_000, 5_000, 2_500)):
                status, answer = await ask(planner, "fit", str(manifest(tmp_path, "high", rate)), "--preempt")
                assert status == 0, answer
                before = await names(c)
                await pod(c, f"high{round_}", "high", rate)
                bound = await c.bound(f"high{round_}")
                [found] = answer["workloads"]
                assert found["nodes"] == {bound["spec"]["nodeName"]: 1}
                evicted = {entry["pod"].partition("/")[2] for entry in answer["evictions"]}
                assert before - await names(c) == evicted
            status, answer = await ask(planner, "fit", str(manifest(tmp_path, "low", 9_000)), "--preempt")
            assert (status, answer["evictions"]) == (1, [])


async def names(c: Cluster) -> set[str]:
    """The pods that are there, and are not about to go."""
    pods = (await c.http.get("/api/v1/namespaces/default/pods")).json()["items"]
    return {each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"]}


async def test_planner_may_ask_every_question(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c, AsyncExitStack() as agents:
        await prepare(c)
        await classes(c)
        planner = await prepare_planner(
            c, staleS=STALE_S, limits=[{"namespace": "default", "reservedMbps": 12_000}]
        )
        for name, node in c.nodes.items():
            await agents.enter_async_context(publishing(c, node))
            await published(c, name)
        extender = await c.running_extender(source="crd")
        async with c.plane.scheduler(preempting(extender)):
            await c.create_pod("p", 8_000)
            node = (await c.bound("p"))["spec"]["nodeName"]
        file = str(manifest(tmp_path, "middle", 4_000, replicas=3))
        status, answer = await ask(planner, "fit", file)
        assert status == 1
        assert "namespace default holds 12000 of 12000" in "".join(answer["workloads"][0]["obstacles"])
        status, answer = await ask(planner, "headroom")
        assert (status, answer["shapes"][0]["pods"]) == (0, 7)
        status, answer = await ask(planner, "without", "--node", node)
        assert (status, answer["moves"][0]["pod"]) == (0, "default/p")
        status, answer = await ask(planner, "with", "--vfs", "1", "--nodes", "2", "--like", node)
        assert (status, answer["shapes"][0]) == (0, {"shape": "1 x no reservation", "now": 7, "then": 3})
        written = await k8s_rdma("snapshot", "--kubeconfig", str(planner))
        assert (written.status, written.err) == (0, "")
        (tmp_path / "cluster.json").write_text(written.out)
        again = await k8s_rdma("whatif", "headroom", "--json", "--from", str(tmp_path / "cluster.json"))
        assert json.loads(again.out) == (await ask(planner, "headroom"))[1]
        if not obstacle("kubectl"):
            plugged = await plugin(planner, "rdma", "whatif", "headroom", "--json")
            assert json.loads(plugged.stdout) == json.loads(again.out)
        await check_refusals(c, planner)


async def check_refusals(c: Cluster, planner: Path) -> None:
    """Without a right the answer names the missing part, or an error says that there is no answer."""
    await c.http.delete("/apis/rbac.authorization.k8s.io/v1/namespaces/k8s-rdma/rolebindings/viewer")
    ran = await refused(planner, '"leases"')
    assert ran.status == 0
    assert "nodes count as if their agents were alive" in ran.out
    assert "strategy and limits are taken for the defaults" in ran.out
    await c.http.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/viewer")
    ran = await refused(planner, '"rdmanodes"')
    assert ran.status == 2
    assert "`whatif --from FILE`" in ran.err
    ran = await k8s_rdma("snapshot", "--kubeconfig", str(planner))
    assert (ran.status, ran.out) == (2, "")
    assert "ClusterRole k8s-rdma-planner" in ran.err


async def refused(planner: Path, resource: str) -> Ran:
    """Ask until a right is gone: the API server takes its time."""
    while True:
        ran = await k8s_rdma("whatif", "headroom", "--kubeconfig", str(planner), COLUMNS="300")
        if f"resource {resource}" in ran.out + ran.err:
            return ran


async def test_node_without_its_agent_takes_no_pods(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c, AsyncExitStack() as agents:
        await prepare(c)
        planner = await prepare_planner(c, staleS=STALE_S)
        await agents.enter_async_context(publishing(c, c.nodes["w2"]))
        async with publishing(c, c.nodes["w1"], renew_s=1):
            await published(c, "w1")
        await published(c, "w2")
        lease = (await c.http.get(f"{LEASES}/w1")).json()
        assert lease["spec"]["leaseDurationSeconds"] >= 1
        while True:
            ran = await k8s_rdma("whatif", "headroom", "--json", "--kubeconfig", str(planner))
            answer = json.loads(ran.out)
            if answer["unreadable"]:
                break
        assert answer["unreadable"] == ["node w1: its agent has not reported for 0 s"]
        assert answer["shapes"][0]["nodes"] == 1
