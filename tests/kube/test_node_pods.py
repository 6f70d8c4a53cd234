"""Requests of a node's agent to the API server, and its writes."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import ObjectEvent, PodBinding, about_pod
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.informer import Changed, Deleted, Listed
from k8s_rdma_demo.cluster.http_server import Response

pytestmark = pytest.mark.anyio

PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
THEN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def pod(uid: str, name: str = "p1") -> Pod:
    return Pod(namespace="default", name=name, uid=PodUid(uid))


def event(uid: str = "u1", *, count: int = 1, message: str = "no room", seconds: int = 0) -> ObjectEvent:
    return ObjectEvent(
        about=about_pod(pod(uid)),
        name="p1.17",
        reason="RdmaInsufficient",
        message=message,
        warning=True,
        count=count,
        first=THEN,
        last=THEN + timedelta(seconds=seconds),
        component="k8s-rdma-agent",
        host=NodeName("w1"),
    )


async def bind(c, name: str, uid: str, node: str) -> None:
    binding = PodBinding(
        namespace="default",
        name=name,
        uid=PodUid(uid),
        node=NodeName(node),
        annotations={"k8s-rdma.io/x": node},
    )
    await c.client.bind_pod(binding)


async def run_on_w1(c, name: str = "p1", **meta: object) -> str:
    uid = await c.create_pod(name, **meta)
    await bind(c, name, uid, "w1")
    running = await c.http.patch(
        f"{PODS}/{name}/status", json={"status": {"phase": "Running"}}, headers=MERGE
    )
    assert running.status_code == 200
    return uid


async def test_follow_pods_of_a_node_yields_no_pods_of_other_nodes(cluster):
    async with cluster() as c:
        uids = {name: await c.create_pod(name) for name in ("here", "there", "late", "done")}
        await bind(c, "here", uids["here"], "w1")
        await bind(c, "there", uids["there"], "w2")
        async with aclosing(c.client.follow_pods_of(NodeName("w1"))) as events:
            listed = await anext(events)
            assert isinstance(listed, Listed)
            assert [(each.name, each.node) for each in listed.items] == [("here", "w1")]
            await bind(c, "late", uids["late"], "w1")
            late = await anext(events)
            assert isinstance(late, Changed)
            assert (late.item.uid, late.item.annotations) == (uids["late"], {"k8s-rdma.io/x": "w1"})
            finished = {"status": {"phase": "Succeeded"}}
            await c.http.patch(f"{PODS}/here/status", json=finished, headers=MERGE)
            gone = await anext(events)
            assert isinstance(gone, Deleted)
            assert gone.item.uid == uids["here"]


async def test_whole_pod_has_annotations_of_others_too(cluster):
    async with cluster() as c:
        await c.create_pod(annotations={"a.example/b": "x", "rdma_interfaces_required": "[{}]"})
        whole = await c.client.get_whole_pod("default", "p1")
        assert whole.annotations == {"a.example/b": "x", "rdma_interfaces_required": "[{}]"}
        assert await c.client.get_whole_pod("default", "p2") is None


async def test_annotate_pod_sets_one_annotation_of_a_running_pod(cluster):
    async with cluster() as c:
        uid = await run_on_w1(c, annotations={"a": "b"})
        await c.client.annotate_pod(pod(uid), "k8s-rdma.io/network-status", "[1]")
        await c.client.annotate_pod(pod(uid), "k8s-rdma.io/network-status", "[2]")
        found = (await c.client.get_whole_pod("default", "p1")).annotations
        assert found == {"a": "b", "k8s-rdma.io/x": "w1", "k8s-rdma.io/network-status": "[2]"}


@pytest.mark.parametrize("call", ["annotate", "evict"])
async def test_pod_made_anew_under_the_name_is_not_written_to(cluster, call):
    async with cluster() as c:
        await run_on_w1(c)
        before = (await c.http.get(f"{PODS}/p1")).json()
        other = pod("other")
        writing = c.client.annotate_pod(other, "k8s-rdma.io/a", "1") if call == "annotate" else None
        with pytest.raises(ApiRefusedError) as refused:
            await (writing or c.client.evict_pod(other))
        assert refused.value.status in {409, 422}
        assert (await c.http.get(f"{PODS}/p1")).json() == before
        with pytest.raises(ApiRefusedError) as gone:
            await c.client.evict_pod(pod("other", "p2"))
        assert gone.value.status == 404


async def test_event_is_about_the_pod_and_counts_repetitions(cluster):
    async with cluster() as c:
        await c.client.create_event(event())
        with pytest.raises(ApiRefusedError) as again:
            await c.client.create_event(event())
        assert again.value.status == 409
        await c.client.repeat_event(event(count=7, message="still no room", seconds=9))
        fields = {"fieldSelector": "involvedObject.uid=u1,type=Warning"}
        [told] = (await c.http.get("/api/v1/namespaces/default/events", params=fields)).json()["items"]
    assert told["involvedObject"] == {
        "kind": "Pod", "namespace": "default", "name": "p1", "uid": "u1", "apiVersion": "v1",
    }  # fmt: skip
    assert (told["reason"], told["message"], told["count"]) == ("RdmaInsufficient", "still no room", 7)
    assert (told["firstTimestamp"], told["lastTimestamp"]) == ("2026-03-01T12:00:00Z", "2026-03-01T12:00:09Z")
    assert told["source"] == {"component": "k8s-rdma-agent", "host": "w1"}
    assert (told["reportingComponent"], told["reportingInstance"]) == ("k8s-rdma-agent", "w1")


async def test_repeating_an_event_that_has_expired_is_refused_with_404(cluster):
    async with cluster() as c:
        with pytest.raises(ApiRefusedError) as refused:
            await c.client.repeat_event(event(count=2))
        assert refused.value.status == 404


async def test_evicted_pod_goes_gracefully(cluster):
    async with cluster() as c:
        uid = await run_on_w1(c)
        await c.client.evict_pod(pod(uid))
        assert (await c.http.get(f"{PODS}/p1")).json()["metadata"]["deletionGracePeriodSeconds"] == 30


@pytest.mark.parametrize(("selector", "code"), [({}, 429), ({"matchLabels": {"app": "a"}}, 429), (None, 0)])
async def test_eviction_is_refused_with_429_while_a_budget_forbids_it(cluster, selector, code):
    async with cluster() as c:
        uid = await run_on_w1(c, labels={"app": "a", "x": "y"})
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        spec = {} if selector is None else {"selector": selector}
        made = await c.http.post(budgets, json={"metadata": {"name": "b"}, "spec": spec})
        assert made.status_code == 201
        if code:
            with pytest.raises(ApiRefusedError, match="violate the pod's disruption budget") as refused:
                await c.client.evict_pod(pod(uid))
            assert refused.value.status == code
            allowed = {"status": {"disruptionsAllowed": 1}}
            assert (await c.http.patch(f"{budgets}/b/status", json=allowed, headers=MERGE)).status_code == 200
        await c.client.evict_pod(pod(uid))
        left = (await c.http.get(f"{budgets}/b")).json().get("status") or {}
        assert left.get("disruptionsAllowed", 0) == 0


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b"])
async def test_name_that_would_lead_to_another_path_is_refused(answering, name):
    asked = []

    async def handle(request):
        asked.append(request)
        return Response(status=200, body=json.dumps({}).encode())

    async with answering(handle) as client:
        for call in (
            client.get_whole_pod("default", name),
            client.annotate_pod(pod("u", name), "a", "b"),
            client.evict_pod(pod("u", name)),
            client.repeat_event(replace(event(), name=name)),
            client.create_event(
                replace(event(), about=about_pod(Pod(namespace=name, name="p", uid=PodUid("u"))))
            ),
        ):
            with pytest.raises(ApiRefusedError, match="not the name of an object"):
                await call
    assert asked == []


async def test_in_cluster_configuration_is_refused_outside_of_a_cluster():
    with pytest.raises(MalformedError, match=r"^no usable service account: "):
        connect(in_cluster=True)
