"""The API server's verbs on its store: create, bind, delete and change."""

from __future__ import annotations

import json

import pytest
from lightkube import ApiError
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from demo.cluster.api_paths import PODS_URL
from demo.cluster.bound_pods import MERGE, binding, bound_pod, lightkube_pod
from k8s_rdma_demo.cluster.objects import PODS
from k8s_rdma_demo.cluster.registry import MAX_OBJECT_BYTES

pytestmark = pytest.mark.anyio

TOO_LARGE = "etcdserver: request is too large"


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


async def test_second_create_is_refused_with_already_exists(cluster):
    async with cluster() as c:
        await c.client.create(lightkube_pod())
        with pytest.raises(ApiError) as refused:
            await c.client.create(lightkube_pod())
        status = refused.value.status
        assert (status.code, status.reason) == (409, "AlreadyExists")
        assert status.message == 'pods "p1" already exists'


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
    """A binding then leaves a pod that cannot be written to any more."""
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


async def test_eviction_deletes_the_pod_gracefully(cluster, make_pod):
    async with cluster() as c:
        await bound_pod(c, make_pod)
        answer = await c.http.post(f"{PODS_URL}/p1/eviction", json={"metadata": {"name": "p1"}})
        assert answer.status_code == 201
        assert (await c.client.get(Pod, "p1")).metadata.deletionTimestamp is not None


async def test_patch_of_an_object_leaves_its_status(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        patch = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
        patched = (await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=MERGE)).json()
        assert patched["status"]["phase"] == "Pending"
        assert patched["metadata"]["labels"] == {"a": "b"}


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
