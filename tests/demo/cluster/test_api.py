from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from lightkube import ApiError, AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.generic_resource import create_global_resource
from lightkube.models.core_v1 import Container, ObjectReference, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import PatchType

from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import PODS, parse_resource_type
from k8s_rdma_demo.cluster.registry import MAX_OBJECT_BYTES

pytestmark = pytest.mark.anyio

PODS_URL = "/api/v1/namespaces/default/pods"
TOO_LARGE = "etcdserver: request is too large"
MERGE = {"Content-Type": "application/merge-patch+json"}


def lightkube_pod(name: str = "p1", **meta: object) -> Pod:
    container = Container(name="c", image="lab.local/busybox:1")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", **meta), spec=PodSpec(containers=[container])
    )


def binding(node: str = "node-1", **meta: object) -> dict:
    return {"metadata": {"name": "p1", **meta}, "target": {"kind": "Node", "name": node}}


async def bound_pod(c, make_pod, **spec):
    created = await c.http.post(PODS_URL, json=make_pod(**spec))
    assert created.status_code == 201, created.text
    assert (await c.http.post(f"{PODS_URL}/p1/binding", json=binding())).status_code == 201
    return created.json()


async def test_pod_gets_uid_revision_and_time_when_created_by_lightkube(cluster):
    async with cluster() as c:
        pod = await c.client.create(lightkube_pod())
        assert len(pod.metadata.uid) == 36
        assert int(pod.metadata.resourceVersion) > 0
        assert pod.metadata.creationTimestamp.tzinfo is not None
        assert (pod.status.phase, pod.status.qosClass) == ("Pending", "BestEffort")
        assert (await c.client.get(Pod, "p1")).metadata.uid == pod.metadata.uid


async def test_pod_reads_as_kube_apiserver_writes_it_when_created(cluster, make_pod, recording):
    recorded = recording("extender/filter-node-names-001-filter")["body"]["Pod"]
    given = json.loads(json.dumps({**recorded, "kind": "Pod", "apiVersion": "v1"}, sort_keys=True))
    del given["status"]
    async with cluster() as c:
        created = await c.http.post(PODS_URL, json=given)
        seen = created.json()
    del seen["kind"], seen["apiVersion"]
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        seen["metadata"][name] = recorded["metadata"][name]
    assert json.dumps(seen) == json.dumps(recorded)


async def test_minimal_pod_has_the_defaults_of_admission(cluster, make_pod, recording):
    recorded = recording("extender/filter-node-names-001-filter")["body"]["Pod"]["spec"]
    async with cluster() as c:
        spec = (await c.http.post(PODS_URL, json=make_pod())).json()["spec"]
    for field in (
        *("restartPolicy", "dnsPolicy", "serviceAccountName", "securityContext", "schedulerName"),
        *("tolerations", "priority", "enableServiceLinks", "preemptionPolicy"),
    ):
        assert spec[field] == recorded[field]


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"rdma/hca": "1"}}, "BestEffort"),
    ],
)
async def test_pod_has_the_qos_class_of_its_resources(cluster, make_pod, resources, qos):
    pod = make_pod()
    pod["spec"]["containers"][0]["resources"] = resources
    async with cluster() as c:
        created = (await c.http.post(PODS_URL, json=pod)).json()
    assert created["status"]["qosClass"] == qos
    if "limits" in resources:
        assert created["spec"]["containers"][0]["resources"]["requests"] == resources["limits"]


async def test_generated_name_is_appended_when_the_pod_has_none(cluster, make_pod):
    pod = make_pod()
    pod["metadata"] = {"generateName": "job-"}
    async with cluster() as c:
        name = (await c.http.post(PODS_URL, json=pod)).json()["metadata"]["name"]
    assert name.startswith("job-")
    assert len(name) == len("job-") + 5


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254, "a..b", "a/b"])
async def test_create_is_refused_with_422_when_the_name_is_invalid(cluster, make_pod, name):
    async with cluster() as c:
        with pytest.raises(ApiError) as refused:
            await c.client.create(lightkube_pod(name))
        assert refused.value.status.code == 422
        assert refused.value.status.reason == "Invalid"
        assert f'Pod "{name}" is invalid: metadata.name: Invalid value' in refused.value.status.message


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"spec": {"containers": []}}, 422, "spec.containers: Required value"),
        ({"spec": {"containers": [{"name": "c"}]}}, 422, "spec.containers[0].image: Required value"),
        ({"metadata": {"name": "p", "annotations": {"a": 1}}}, 400, "annotations"),
        ({"metadata": []}, 400, "$.metadata"),
        ({"spec": "no"}, 400, "$.spec"),
        ({"kind": "Node"}, 400, "cannot be handled as a Pod"),
        ({"metadata": {"name": "p", "namespace": "other"}}, 400, "does not match the namespace"),
        ({"metadata": {}}, 422, "name or generateName is required"),
    ],
)
async def test_create_is_refused_when_a_field_is_wrong(cluster, make_pod, change, status, says):
    async with cluster() as c:
        answer = await c.http.post(PODS_URL, json={**make_pod(), **change})
        assert answer.status_code == status
        assert says in answer.json()["message"]
        assert c.api.store.items(PODS) == []


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


async def test_second_create_is_refused_with_already_exists(cluster):
    async with cluster() as c:
        await c.client.create(lightkube_pod())
        with pytest.raises(ApiError) as refused:
            await c.client.create(lightkube_pod())
        status = refused.value.status
        assert (status.code, status.reason) == (409, "AlreadyExists")
        assert status.message == 'pods "p1" already exists'


async def test_missing_pod_is_a_404_status_that_lightkube_understands(cluster):
    async with cluster() as c:
        with pytest.raises(ApiError) as missing:
            await c.client.get(Pod, "nowhere")
        status = missing.value.status
        assert (status.code, status.reason) == (404, "NotFound")
        assert status.message == 'pods "nowhere" not found'
        assert (status.details.kind, status.details.name) == ("pods", "nowhere")


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


async def test_binding_sets_node_and_annotations_in_one_write(cluster):
    async with cluster() as c:
        pod = await c.client.create(lightkube_pod(annotations={"kept": "1", "over": "old"}))
        before = c.api.store.revision
        meta = {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resourceVersion,
            "annotations": {"over": "new", "added": "2"},
        }
        answer = await c.http.post(f"{PODS_URL}/p1/binding", json=binding(**meta))
        assert (answer.status_code, answer.json()["kind"]) == (201, "Status")
        bound = await c.client.get(Pod, "p1")
        assert c.api.store.revision == before + 1
        assert bound.spec.nodeName == "node-1"
        assert bound.metadata.annotations == {"kept": "1", "over": "new", "added": "2"}
        assert [(x.type, x.status) for x in bound.status.conditions] == [("PodScheduled", "True")]


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"uid": "other"}, "Precondition failed: UID in precondition: other, UID in object meta: "),
        ({"resourceVersion": "1"}, "Precondition failed: ResourceVersion in precondition: 1, "),
    ],
)
async def test_binding_is_refused_with_409_when_a_precondition_fails(cluster, make_pod, meta, says):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        answer = await c.http.post(f"{PODS_URL}/p1/binding", json=binding(**meta))
        assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
        assert says in answer.json()["message"]
        assert "nodeName" not in (await c.http.get(f"{PODS_URL}/p1")).json()["spec"]


async def test_second_binding_is_refused_with_409_whatever_its_node(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        for node in ("node-1", "node-2"):
            answer = await c.http.post(f"{PODS_URL}/p1/binding", json=binding(node))
            assert answer.status_code == 409
            assert 'pod p1 is already assigned to node "node-1"' in answer.json()["message"]


async def test_object_longer_than_etcd_takes_is_not_written(cluster, make_pod):
    """As kube-apiserver 1.36.2 with etcd answered."""
    async with cluster() as c:
        url = f"{PODS_URL}/p"
        one = (await c.http.post(PODS_URL, json=make_pod("p", labels={"a": ""}))).json()
        room = MAX_OBJECT_BYTES - len(json.dumps(one, separators=(",", ":"))) - 10
        merge = {"Content-Type": "application/merge-patch+json"}
        large = {"metadata": {"labels": {"a": "x" * room}}}
        assert (await c.http.patch(url, json=large, headers=merge)).status_code == 200
        more = {"metadata": {"annotations": {"key": "value"}}}
        refused = await c.http.patch(url, json=more, headers=merge)
        assert refused.status_code == 500
        assert (refused.json()["message"], "reason" in refused.json()) == (TOO_LARGE, False)
        binding = {"metadata": {"annotations": {"key": "value"}}, "target": {"name": "w1"}}
        refused = await c.http.post(f"{url}/binding", json=binding)
        why = f'Operation cannot be fulfilled on pods/binding "p": {TOO_LARGE}'
        assert (refused.status_code, refused.json()["message"]) == (409, why)


async def test_annotations_beyond_their_limit_are_refused_but_in_a_binding(cluster, make_pod):
    """Which leaves a pod that nobody can write to any more."""
    async with cluster() as c:
        url = f"{PODS_URL}/p"
        too_many = make_pod("p", annotations={"a": "x" * 262_144})
        assert (await c.http.post(PODS_URL, json=too_many)).status_code == 422
        just = make_pod("p", annotations={"a": "x" * 262_143})
        assert (await c.http.post(PODS_URL, json=just)).status_code == 201
        merge = {"Content-Type": "application/merge-patch+json"}
        one_more = {"metadata": {"annotations": {"b": ""}}}
        refused = await c.http.patch(url, json=one_more, headers=merge)
        assert (refused.status_code, refused.json()["details"]["causes"][0]["reason"]) == (
            422,
            "FieldValueTooLong",
        )
        label = {"metadata": {"labels": {"b": ""}}}
        assert (await c.http.patch(url, json=label, headers=merge)).status_code == 200
        binding = {"metadata": {"annotations": {"b": ""}}, "target": {"name": "w1"}}
        assert (await c.http.post(f"{url}/binding", json=binding)).status_code == 201
        status = {"status": {"phase": "Running"}}
        assert (await c.http.patch(f"{url}/status", json=status, headers=merge)).status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"metadata": {"name": "other"}, "target": {"name": "n"}}, 400),
        ({"metadata": {"name": "p1"}, "target": {"kind": "Pod", "name": "n"}}, 422),
        ({"metadata": {"name": "p1"}, "target": {}}, 422),
        ({"metadata": {"annotations": {"a": 1}}, "target": {"name": "n"}}, 400),
    ],
)
async def test_binding_is_refused_when_it_says_no_node(cluster, make_pod, body, status):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        assert (await c.http.post(f"{PODS_URL}/p1/binding", json=body)).status_code == status


async def test_binding_of_a_missing_pod_is_404(cluster):
    async with cluster() as c:
        assert (await c.http.post(f"{PODS_URL}/p1/binding", json=binding())).status_code == 404


async def test_binding_is_refused_when_the_pod_is_terminating(cluster, make_pod):
    async with cluster() as c:
        pod = make_pod()
        pod["spec"]["nodeName"] = "node-1"
        await c.http.post(PODS_URL, json=pod)
        await c.client.delete(Pod, "p1")
        answer = await c.http.post(f"{PODS_URL}/p1/binding", json=binding())
        assert "is being deleted, cannot be assigned to a host" in answer.json()["message"]


async def test_delete_removes_a_pod_at_once_when_it_is_on_no_node(cluster):
    async with cluster() as c:
        await c.client.create(lightkube_pod())
        await c.client.delete(Pod, "p1")
        assert c.api.store.items(PODS) == []


async def test_delete_leaves_a_bound_pod_terminating_until_grace_0(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        await c.client.delete(Pod, "p1")
        pod = await c.client.get(Pod, "p1")
        assert pod.metadata.deletionGracePeriodSeconds == 30
        assert pod.metadata.deletionTimestamp > pod.metadata.creationTimestamp
        assert pod.metadata.generation == 2
        await c.client.delete(Pod, "p1", grace_period=0)
        assert c.api.store.items(PODS) == []


async def test_second_delete_shortens_the_time_and_never_lengthens_it(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        seen = []
        for grace in (20, 60, 5):
            await c.client.delete(Pod, "p1", grace_period=grace)
            meta = (await c.client.get(Pod, "p1")).metadata
            seen.append((meta.deletionGracePeriodSeconds, meta.deletionTimestamp))
        assert [grace for grace, _ in seen] == [20, 20, 5]
        assert (seen[0][1] - seen[2][1]).total_seconds() == 15


async def test_delete_is_immediate_when_the_pod_asks_for_no_grace(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod, terminationGracePeriodSeconds=0)
        await c.client.delete(Pod, "p1")
        assert c.api.store.items(PODS) == []


async def test_delete_is_refused_with_409_when_the_uid_is_another(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        options = {"preconditions": {"uid": "other"}}
        answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json=options)
        assert answer.status_code == 409
        answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json={"gracePeriodSeconds": "1"})
        assert answer.status_code == 400
        assert len(c.api.store.items(PODS)) == 1


async def test_eviction_deletes_the_pod_gracefully(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        answer = await c.http.post(f"{PODS_URL}/p1/eviction", json={"metadata": {"name": "p1"}})
        assert answer.status_code == 201
        assert (await c.client.get(Pod, "p1")).metadata.deletionTimestamp is not None


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


async def test_patch_of_an_object_leaves_its_status(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        patch = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
        patched = (await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=MERGE)).json()
        assert patched["status"]["phase"] == "Pending"
        assert patched["metadata"]["labels"] == {"a": "b"}


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


async def test_patch_without_a_change_is_no_write(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod(labels={"a": "b"}))
        before = c.api.store.revision
        patch = {"metadata": {"labels": {"a": "b"}}}
        assert (await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=MERGE)).status_code == 200
        assert c.api.store.revision == before


async def test_lease_is_replaced_by_one_holder_only_when_two_try(cluster):
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "binder", "namespace": "kube-system"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }
    async with cluster() as c:
        created = await c.client.create(Lease.from_dict(lease))
        first = await c.client.get(Lease, "binder", namespace="kube-system")
        second = await c.client.get(Lease, "binder", namespace="kube-system")
        first.spec.holderIdentity, second.spec.holderIdentity = "b", "c"
        replaced = await c.client.replace(first)
        assert replaced.spec.holderIdentity == "b"
        assert replaced.metadata.uid == created.metadata.uid
        with pytest.raises(ApiError) as refused:
            await c.client.replace(second)
        assert refused.value.status.code == 409
        url = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/binder"
        assert (await c.http.put(url, json=lease)).status_code == 422
        assert (await c.http.delete(url)).json()["status"] == "Success"


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
    # Nothing to assert: the deadline of `cluster` is what a server that waits for its clients would miss.
