"""The scheduler stand-in makes room for pods as kube-scheduler does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from demo.cluster.fake_extender import (
    bound_to,
    condition_list,
    refused,
    refusing,
    scheduled,
    serving_extender,
)
from k8s_rdma_demo.cluster.extender_client import Victims
from k8s_rdma_demo.cluster.fit import Refusal, resource_refusal
from k8s_rdma_demo.cluster.preemption import NO_VICTIMS, dry_run, pick_node

if TYPE_CHECKING:
    from collections.abc import Sequence

BUDGETS_URL = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def asking(cpu: str = "1", **more: str) -> list[dict[str, Any]]:
    return [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu, **more}}}]


def with_room(node: dict[str, Any], **allocatable: str) -> dict[str, Any]:
    node["status"]["allocatable"] = {"cpu": "4", "memory": "1Gi", "pods": "10", **allocatable}
    return node


@pytest.fixture
def pod_of(make_pod):
    """A pod that ends at once when it is deleted."""

    def make(name: str, priority: int, cpu: str = "4", **spec: Any) -> dict[str, Any]:
        more = {"priority": priority, "terminationGracePeriodSeconds": 0, "containers": asking(cpu), **spec}
        return make_pod(name, **more)

    return make


@pytest.fixture
def node_of(make_node):
    def make(name: str = "node-1", **allocatable: str) -> dict[str, Any]:
        return with_room(make_node(name), **allocatable)

    return make


async def place(c, *pods: dict[str, Any]) -> None:
    """Create pods one after the other, each once the one before is bound."""
    for pod in pods:
        await c.create(pod)
        await c.pod_when(pod["metadata"]["name"], lambda seen: bool(seen.get("spec", {}).get("nodeName")))


@pytest.mark.anyio
async def test_pod_waits_when_nodes_have_no_room_and_shows_why(cluster, pod_of, node_of):
    async with cluster() as c, scheduled(c):
        await c.create(node_of("node-1"), node_of("node-2"))
        await place(c, pod_of("a", 5), pod_of("b", 5, "3"))
        await c.create(pod_of("p", 5, "2"))
        condition = condition_list(await c.pod_when("p", refused))[0]
        assert condition["message"] == (
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
            "0/2 nodes are available: 2 No preemption victims found for incoming pod."
        )


@pytest.mark.anyio
@pytest.mark.parametrize("names_only", [True, False])
async def test_pod_evicts_the_pod_of_lower_priority_and_comes_to_its_node(
    cluster, pod_of, node_of, names_only
):
    async with cluster() as c:
        async with (
            serving_extender(preempt_verb="preempt", node_cache_capable=names_only) as extender,
            scheduled(c, extender),
        ):
            await c.create(node_of("node-1"), node_of("node-2"))
            await place(c, pod_of("a", 7), pod_of("b", 5))
            before = (await c.http.get("/api/v1/namespaces/default/pods/b")).json()
            await c.create(pod_of("p", 9))
            pod = await c.pod_when("p", bound_to(before["spec"]["nodeName"]))
            assert "nominatedNodeName" not in pod["status"]  # the Binding took it away
        assert (await c.http.get("/api/v1/namespaces/default/pods/b")).status_code == 404
        assert (await c.http.get("/api/v1/namespaces/default/pods/a")).status_code == 200
        uid = pod["metadata"]["uid"]
        told = [f"Preempted by pod {uid} on node {pod['spec']['nodeName']}"]
        assert await c.events("b", "Preempted") == told
        assert await c.events("p", "FailedScheduling") == ["0/2 nodes are available: 2 Insufficient cpu."]
        assert extender.verbs("p") == ["preempt", "filter"]
        last = extender.asked[-1][1]
        names = last["NodeNames"] or [node["metadata"]["name"] for node in last["Nodes"]["items"]]
        assert names == [pod["spec"]["nodeName"]]


@pytest.mark.anyio
async def test_extender_says_whom_to_evict(cluster, pod_of, node_of):
    def other_one(asked: dict) -> dict:
        [(node, _)] = asked["NodeNameToMetaVictims"].items()
        return {"NodeNameToMetaVictims": {node: {"Pods": [{"UID": old["metadata"]["uid"]}]}}}

    async with cluster() as c:
        async with (
            serving_extender({"preempt": other_one}, preempt_verb="preempt") as extender,
            scheduled(c, extender),
        ):
            await c.create(node_of())
            await place(c, pod_of("old", 0, "2"), pod_of("new", 0, "2"))
            old = (await c.http.get("/api/v1/namespaces/default/pods/old")).json()
            await c.create(pod_of("p", 9, "2"))
            await c.pod_when("p", bound_to("node-1"))
        assert (await c.http.get("/api/v1/namespaces/default/pods/old")).status_code == 404
        assert (await c.http.get("/api/v1/namespaces/default/pods/new")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"NodeNameToMetaVictims": {}}, "no new claims to deallocate, preemption: no candidate node"),
        (
            {"NodeNameToMetaVictims": {"node-1": {"Pods": []}}},
            'preemption: expected at least one victim pod on node "node-1"',
        ),
        (
            {"NodeNameToMetaVictims": {"node-1": {"Pods": [{"UID": "u"}]}}},
            "claims to preempt pod (UID: u) on node: node-1, but the pod is not found on that node",
        ),
    ],
)
async def test_no_pod_is_evicted_if_the_extender_names_unknown_victims(
    cluster, pod_of, node_of, answer, says
):
    async with cluster() as c:
        async with (
            serving_extender({"preempt": lambda asked: answer}, preempt_verb="preempt") as extender,
            scheduled(c, extender),
        ):
            await c.create(node_of())
            await place(c, pod_of("a", 0))
            await c.create(pod_of("p", 9))
            condition = condition_list(await c.pod_when("p", refused))[0]
            assert says in condition["message"]
        assert (await c.http.get("/api/v1/namespaces/default/pods/a")).status_code == 200


@pytest.mark.anyio
async def test_preempt_is_not_reached_when_only_the_extender_refuses(cluster, pod_of, node_of):
    async with cluster() as c:
        async with serving_extender(preempt_verb="preempt") as extender, scheduled(c, extender):
            await c.create(node_of())
            await place(c, pod_of("a", 0, "1"))
            extender.answers = {"filter": refusing(node_1="no free VF")}
            await c.create(pod_of("p", 9, "1"))
            condition = condition_list(await c.pod_when("p", refused))[0]
            assert condition["message"] == (
                "0/1 nodes are available: 1 no free VF. "
                'preemption: expected at least one victim pod on node "node-1"'
            )
        assert extender.verbs("p") == ["filter"]


@pytest.mark.anyio
async def test_pod_that_may_not_preempt_waits(cluster, pod_of, node_of):
    async with cluster() as c, scheduled(c):
        await c.create(node_of())
        await place(c, pod_of("a", 0))
        await c.create(pod_of("p", 9, preemptionPolicy="Never"))
        condition = condition_list(await c.pod_when("p", refused))[0]
        assert condition["message"].endswith("preemption: not eligible due to preemptionPolicy=Never.")


@pytest.mark.anyio
async def test_pod_evicts_no_other_pod_while_its_victim_ends(cluster, pod_of, node_of):
    async with cluster() as c, scheduled(c):
        await c.create(node_of("node-1"), node_of("node-2"))
        slow = pod_of("slow", 0, terminationGracePeriodSeconds=30)
        await place(c, slow, pod_of("b", 1))
        await c.create(pod_of("p", 9))
        await c.pod_when("p", lambda pod: pod.get("status", {}).get("nominatedNodeName") is not None)
        await c.annotate_node("node-2", touched="1")
        await c.pod_when("p", lambda pod: "terminating pod" in str(condition_list(pod)))
        assert (await c.http.get("/api/v1/namespaces/default/pods/b")).status_code == 200
        where = (await c.http.get("/api/v1/namespaces/default/pods/slow")).json()["spec"]["nodeName"]
        await c.http.request("DELETE", "/api/v1/namespaces/default/pods/slow", json={"gracePeriodSeconds": 0})
        await c.pod_when("p", bound_to(where))


async def end(c, name: str) -> None:
    url = f"/api/v1/namespaces/default/pods/{name}"
    assert (await c.http.request("DELETE", url, json={"gracePeriodSeconds": 0})).status_code == 200


def nominated(node: str):
    return lambda pod: pod.get("status", {}).get("nominatedNodeName") == node


@pytest.mark.anyio
async def test_room_that_was_made_is_not_given_to_a_lesser_pod(cluster, pod_of, node_of):
    async with cluster() as c, scheduled(c):
        await c.create(node_of())
        await place(c, pod_of("slow", 0, "3", terminationGracePeriodSeconds=30))
        await c.create(pod_of("p", 9, "3"))
        await c.pod_when("p", nominated("node-1"))
        await c.create(pod_of("lesser", 5, "1"))
        await c.pod_when("lesser", refused)
        await end(c, "slow")
        await c.pod_when("p", bound_to("node-1"))
        await c.pod_when("lesser", bound_to("node-1"))


@pytest.mark.anyio
async def test_room_that_was_made_for_a_pod_that_goes_while_it_is_bound_is_free(cluster, pod_of, node_of):
    async with cluster() as c:
        failed, bound = asyncio.Event(), asyncio.Event()

        async def gone(asked: dict[str, Any]) -> dict[str, Any]:
            if asked["PodName"] != "p":
                bound.set()
                return {"Error": ""}
            await end(c, "p")
            await asyncio.sleep(0.1)  # until the scheduler has seen it
            failed.set()
            return {"Error": "not found"}

        async with serving_extender({"bind": gone}, bind_verb="bind") as extender:
            await c.create(node_of())
            async with scheduled(c):
                await place(c, pod_of("slow", 0, terminationGracePeriodSeconds=30))
            async with scheduled(c, extender):
                await c.create(pod_of("p", 9))
                await c.pod_when("p", nominated("node-1"))
                await end(c, "slow")
                await failed.wait()
                await asyncio.sleep(0.1)  # until the scheduler has the answer
                await c.create(pod_of("lesser", 5))
                await bound.wait()


@pytest.mark.anyio
async def test_extender_is_called_for_the_nominated_node_first(cluster, pod_of, node_of):
    async with cluster() as c:
        async with serving_extender() as extender, scheduled(c, extender):
            await c.create(node_of("node-1"), node_of("node-2"))
            at = {f"node-{i}": {"kubernetes.io/hostname": f"node-{i}"} for i in (1, 2)}
            for node, labels in at.items():
                await c.http.patch(
                    f"/api/v1/nodes/{node}",
                    json={"metadata": {"labels": labels}},
                    headers={"Content-Type": "application/merge-patch+json"},
                )
            slow = pod_of("slow", 0, "3", terminationGracePeriodSeconds=30, nodeSelector=at["node-1"])
            small = [pod_of(f"x{i}", 0, "1", nodeSelector=at[f"node-{i}"]) for i in (1, 2)]
            await place(c, *small, slow, pod_of("b", 1, "3", nodeSelector=at["node-2"]))
            await c.create(pod_of("p", 9, "3"))
            await c.pod_when("p", nominated("node-1"))
            extender.answers = {"filter": refusing(node_1="not yet", node_2="not yet")}
            await end(c, "b")
            await end(c, "slow")
            await c.pod_when("p", lambda pod: "2 not yet" in str(condition_list(pod)))
            extender.answers = {}
            await c.annotate_node("node-2", freed="1")
            await c.pod_when("p", bound_to("node-1"))
        [_, last] = extender.asked[-1]
        assert last["NodeNames"] == ["node-1"]


@pytest.mark.anyio
async def test_resource_that_the_scheduler_ignores_does_not_count(cluster, make_pod, node_of):
    config = {
        "managed_resources": frozenset({"rdma/hca"}),
        "ignored_resources": frozenset({"rdma/hca"}),
    }
    async with cluster() as c, serving_extender(**config) as extender, scheduled(c, extender):
        containers = asking("1", **{"rdma/hca": "1"})
        await c.create(node_of(), make_pod(containers=containers))
        await c.pod_when("p1", bound_to("node-1"))


def pod(name: str, priority: int = 0, cpu: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"name": name}},
        "spec": {"priority": priority, "containers": asking(str(cpu))},
        "status": more,
    }


def budget(*names: str, allowed: int = 0, **status: Any) -> dict[str, Any]:
    expression = {"key": "name", "operator": "In", "values": list(names)}
    return {
        "metadata": {"name": "b", "namespace": "d"},
        "spec": {"selector": {"matchExpressions": [expression]}},
        "status": {"disruptionsAllowed": allowed, **status},
    }


def victims(
    waiting: dict, pods: Sequence[dict], *budgets: dict, cpu: int = 4
) -> tuple[list[str], int] | Refusal | str:
    node = {"status": {"allocatable": {"cpu": str(cpu)}}}
    found = dry_run(
        waiting, {"n": tuple(pods)}, budgets, lambda _node, others: resource_refusal(waiting, node, others)
    )
    if found.errors:
        return found.errors[0]
    if found.refusals:
        return found.refusals["n"]
    return [each["metadata"]["name"] for each in found.candidates["n"].pods], found.candidates["n"].violations


def test_victims_are_the_fewest_and_least_important():
    old = {"startTime": "2026-11-21T00:00:00Z"}
    new = {"startTime": "2026-11-21T09:00:00Z"}
    pods = [pod("a", 0, 1, **new), pod("b", 0, 1, **old), pod("c", 5, 1), pod("d", 9, 1)]
    assert victims(pod("p", 9, 1), pods) == (["a"], 0)
    assert victims(pod("p", 9, 2), pods) == (["b", "a"], 0)
    assert victims(pod("p", 9, 3), pods) == (["c", "b", "a"], 0)
    assert victims(pod("p", 9, 4), pods) == Refusal(reasons=("Insufficient cpu",))
    assert victims(pod("p", 0, 1), pods) == NO_VICTIMS


def test_victims_are_those_that_a_budget_allows_if_that_is_enough():
    pods = [pod("a", 0, 2), pod("b", 5, 2)]
    assert victims(pod("p", 9, 2), pods, budget("a")) == (["b"], 0)
    assert victims(pod("p", 9, 2), pods, budget("a", "b", allowed=1)) == (["b"], 0)
    assert victims(pod("p", 9, 2), pods, budget("a", "b", allowed=2)) == (["a"], 0)
    assert victims(pod("p", 9, 2), pods, budget("a", disruptedPods={"a": "now"})) == (["a"], 0)
    assert victims(pod("p", 9, 4), pods, budget("a", "b", allowed=1)) == (["b", "a"], 1)


def test_node_fails_if_no_eviction_is_needed():
    assert victims(pod("p", 9, 1), [pod("a")]) == 'expected at least one victim pod on node "n"'


def chosen(**nodes: tuple[int, Sequence[dict]]) -> str:
    return pick_node({node: Victims(tuple(pods), count) for node, (count, pods) in nodes.items()})


def test_node_with_the_least_harmful_evictions_is_chosen():
    early, late = {"startTime": "2026-11-21T00:00:00Z"}, {"startTime": "2026-11-21T09:00:00Z"}
    assert chosen(a=(1, [pod("x", 0)]), b=(0, [pod("y", 9)])) == "b"
    assert chosen(a=(0, [pod("x", 5)]), b=(0, [pod("y", 4), pod("z", 4)])) == "b"
    assert chosen(a=(0, [pod("x", 5), pod("y", 4)]), b=(0, [pod("x", 5), pod("y", 3)])) == "b"
    assert chosen(a=(0, [pod("x", 5), pod("y", -(2**31))]), b=(0, [pod("x", 5)])) == "b"
    assert chosen(a=(0, [pod("x", **early)]), b=(0, [pod("x", **late)])) == "b"
    assert chosen(b=(0, [pod("x")]), a=(0, [pod("x")])) == "a"
