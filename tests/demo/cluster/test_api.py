from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.generic_resource import create_global_resource
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import PatchType

from demo.cluster.api_paths import PODS_URL
from demo.cluster.bound_pods import MERGE, bound_pod, lightkube_pod
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import parse_resource_type

pytestmark = pytest.mark.anyio


async def test_pod_gets_uid_revision_and_time_when_created_by_lightkube(cluster):
    async with cluster() as c:
        pod = await c.client.create(lightkube_pod())
        assert len(pod.metadata.uid) == 36
        assert int(pod.metadata.resourceVersion) > 0
        assert pod.metadata.creationTimestamp.tzinfo is not None
        assert (pod.status.phase, pod.status.qosClass) == ("Pending", "BestEffort")
        assert (await c.client.get(Pod, "p1")).metadata.uid == pod.metadata.uid


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b'"text"', b"\xff", b"[" * 100_000])
async def test_malformed_json_is_refused_with_400(cluster, body):
    async with cluster() as c:
        answer = await c.http.post(PODS_URL, content=body)
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")


async def test_body_over_the_limit_is_refused_with_413(cluster, make_pod):
    async with cluster(ApiConfig(max_body_bytes=1000)) as c:
        answer = await c.http.post(PODS_URL, json=make_pod(annotations={"a": "x" * 1000}))
        assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")
        assert (await c.http.get("/healthz")).text == "ok"


async def test_malformed_http_gets_400_and_the_connection_is_closed(cluster):
    async with cluster() as c:
        reader, writer = await asyncio.open_connection(c.api.host, c.api.port)
        writer.write(b"no http at all\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/secrets", 404),
        ("GET", "/apis/apps/v1/statefulsets", 404),
        ("GET", "/api/v1/pods/p1", 404),
        ("POST", "/api/v1/pods", 405),
        ("PUT", PODS_URL, 405),
        ("POST", f"{PODS_URL}/p1", 405),
        ("GET", f"{PODS_URL}/p1/log", 404),
        ("GET", f"{PODS_URL}/p1/binding", 405),
        ("POST", "/api/v1/nodes/n1/binding", 405),
        ("GET", "/readyz", 200),
        ("GET", "/version", 200),
    ],
)
async def test_path_or_method_that_is_not_served_is_refused(cluster, make_pod, method, path, status):
    async with cluster() as c:
        content = json.dumps(make_pod()).encode() if method == "POST" else None
        assert (await c.http.request(method, path, content=content)).status_code == status


async def test_list_selects_by_node_namespace_and_labels(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod, labels={"app": "a"})
        await c.http.post(PODS_URL, json=make_pod("p2", labels={"app": "b", "tier": "x"}))
        await c.http.post("/api/v1/namespaces/other/pods", json=make_pod("p3", namespace="other"))

        async def names(**kwargs) -> list[str]:
            return [pod.metadata.name async for pod in c.client.list(Pod, **kwargs)]

        assert await names() == ["p1", "p2"]
        assert await names(namespace="*") == ["p1", "p2", "p3"]
        assert await names(fields={"spec.nodeName": "node-1"}) == ["p1"]
        assert await names(fields={"spec.nodeName": ""}) == ["p2"]
        assert await names(labels={"app": "a"}) == ["p1"]
        assert await names(labels={"app": ["a", "b"], "tier": None}) == ["p2"]

        async def selected(selector: str) -> list[str]:
            items = (await c.http.get("/api/v1/pods", params={"labelSelector": selector})).json()["items"]
            return [item["metadata"]["name"] for item in items]

        assert await selected("app notin (a),!tier") == ["p3"]
        assert await selected("app!=a") == ["p2", "p3"]
        assert await selected("app==a") == ["p1"]


@pytest.mark.parametrize(
    "query", [{"fieldSelector": "spec.color=red"}, {"fieldSelector": "x"}, {"labelSelector": "a in b"}]
)
async def test_malformed_selector_is_refused_with_400(cluster, query):
    async with cluster() as c:
        assert (await c.http.get("/api/v1/pods", params=query)).status_code == 400


async def test_merge_patch_changes_annotations_and_labels_of_a_node(cluster, make_node):
    async with cluster() as c:
        await c.http.post("/api/v1/nodes", json=make_node(labels={"a": "1"}, annotations={"x": "1"}))
        patch = {"metadata": {"labels": {"a": None, "b": "2"}, "annotations": {"y": "2"}}}
        node = await c.client.patch(Node, "node-1", patch, patch_type=PatchType.MERGE)
        assert node.metadata.labels == {"b": "2"}
        assert node.metadata.annotations == {"x": "1", "y": "2"}
        assert node.status.addresses[0].address == "10.10.0.1"


async def test_strategic_patch_of_a_status_merges_conditions_by_type(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        patch = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await c.client.patch(Pod.Status, "p1", patch)
        patch = {
            "metadata": {"annotations": {"a": "b"}},
            "spec": {"nodeName": "elsewhere"},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        }
        await c.client.patch(Pod.Status, "p1", patch)
        pod = (await c.http.get(f"{PODS_URL}/p1")).json()
        conditions = pod["status"]["conditions"]
        assert [(x["type"], x["status"]) for x in conditions] == [
            ("PodScheduled", "True"),
            ("Ready", "False"),
        ]
        assert conditions[1]["lastProbeTime"] is None
        assert pod["status"]["phase"] == "Running"
        assert pod["spec"]["nodeName"] == "node-1"
        assert pod["metadata"]["annotations"] == {"a": "b"}


async def test_patch_takes_a_gate_from_a_pod(cluster, make_pod):
    async with cluster() as c:
        pod = make_pod()
        pod["spec"]["schedulingGates"] = [{"name": "a/b"}]
        await c.http.post(PODS_URL, json=pod)
        patch = {"spec": {"schedulingGates": []}}
        patched = await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=MERGE)
        assert patched.status_code == 200
        assert not patched.json()["spec"].get("schedulingGates")


@pytest.mark.parametrize(
    ("patch", "status", "says"),
    [
        ({"spec": {"nodeName": "n"}}, 422, "pod updates may not change fields"),
        ({"spec": {"schedulingGates": [{"name": "a/b"}]}}, 422, "only deletion is allowed"),
        ({"metadata": {"resourceVersion": "1"}}, 409, "the object has been modified"),
        ({"metadata": {"uid": "other"}}, 409, "Precondition failed: UID"),
        ({"metadata": {"name": "other"}}, 400, "name"),
        ({"metadata": {"labels": {"a": 1}}}, 400, "labels"),
    ],
)
async def test_patch_is_refused_when_it_may_not_change_that(cluster, make_pod, patch, status, says):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        answer = await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=MERGE)
        assert answer.status_code == status
        assert says in answer.json()["message"]


async def test_patch_of_an_unknown_kind_is_refused_with_415(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        headers = {"Content-Type": "application/apply-patch+yaml"}
        answer = await c.http.patch(f"{PODS_URL}/p1", content=b"{}", headers=headers)
        assert answer.status_code == 415


async def test_events_are_listed_by_the_object_that_they_are_about(cluster):
    async with cluster() as c:
        for name in ("p1", "p2"):
            about = ObjectReference(kind="Pod", name=name, namespace="default")
            await c.client.create(
                Event(
                    metadata=ObjectMeta(name=f"{name}.1", namespace="default"),
                    involvedObject=about,
                    reason="FailedScheduling",
                    message="no",
                    type="Warning",
                )
            )
        found = [e async for e in c.client.list(Event, fields={"involvedObject.name": "p2"})]
        assert [event.metadata.name for event in found] == ["p2.1"]


async def test_custom_resource_is_served_when_configured(cluster):
    resource = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
    rdma_node = create_global_resource("k8s-rdma.io", "v1alpha1", "RdmaNode", "rdmanodes")
    async with cluster(ApiConfig(custom_resources=(resource,))) as c:
        await c.client.create(rdma_node(metadata={"name": "w1"}, spec={"pfs": [1]}))
        assert (await c.client.get(rdma_node, "w1")).spec == {"pfs": [1]}


async def test_kubeconfig_leads_lightkube_to_the_stand_in(cluster, tmp_path):
    async with cluster() as c:
        path = write_kubeconfig(tmp_path / "kubeconfig", c.api.url)
        async with AsyncClient(config=KubeConfig.from_file(path), trust_env=False) as client:
            assert client.namespace == "default"
            assert (await client.create(lightkube_pod())).metadata.name == "p1"


async def test_connection_is_reused_when_requests_follow_each_other(cluster):
    async with cluster() as c:
        reader, writer = await asyncio.open_connection(c.api.host, c.api.port)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(2) == b"ok"
        writer.close()
        await writer.wait_closed()


async def test_serving_ends_at_once_when_clients_are_connected(cluster):
    async with cluster() as c, httpx2.AsyncClient(base_url=c.api.url) as other:
        await other.get("/healthz")
        stream = other.stream("GET", "/api/v1/pods", params={"watch": "true"})
        await stream.__aenter__()
