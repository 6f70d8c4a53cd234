"""Pods as the API server takes them: defaults, faults, and how long one ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from demo.cluster.api_paths import PODS_URL
from demo.cluster.bound_pods import bound_pod
from k8s_rdma_demo.cluster.objects import PODS

pytestmark = pytest.mark.anyio

WRITTEN_OTHERWISE = [
    ("resources", {"limits": {"rdma/hca": 1}, "requests": {"cpu": 0.5, "memory": "65536Ki"}}),
    (
        "resources",
        {"limits": {"rdma/hca": "1000m"}, "requests": {"cpu": "0.5", "memory": "64Mi", "rdma/hca": 1}},
    ),
]


@pytest.mark.parametrize(("field", "value"), WRITTEN_OTHERWISE)
async def test_pod_is_stored_as_the_real_server_stores_it_however_it_was_written(
    cluster, recording, field: str, value: dict[str, Any]
):
    recorded = recording("extender/managed-resources-001-filter")["body"]["Pod"]
    given = json.loads(json.dumps(recorded))
    del given["status"]
    [container] = given["spec"]["containers"]
    for defaulted in ("terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy"):
        del container[defaulted]
    container[field] = value
    container |= {"tty": False, "env": [], "workingDir": "", "resorces": {}}
    for defaulted in ("restartPolicy", "dnsPolicy", "securityContext", "schedulerName", "tolerations"):
        del given["spec"][defaulted]
    del given["spec"]["serviceAccountName"]  # its deprecated name says it
    given["spec"] |= {"hostNetwork": False, "nodeSelector": {}, "nodeName": "", "initContainers": []}
    [volume] = given["spec"]["volumes"]
    del volume["projected"]["defaultMode"]
    del volume["projected"]["sources"][2]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"]
    async with cluster() as c:
        seen = (await c.http.post(PODS_URL, json=given)).json()
    assert seen["status"] == recorded["status"]
    assert json.dumps(seen["spec"]) == json.dumps(recorded["spec"])


async def test_ports_probes_and_volumes_have_defaults(cluster, make_pod):
    pod = make_pod()
    pod["spec"] |= {
        "hostNetwork": True,
        "volumes": [
            {"name": "empty"},
            {"name": "host", "hostPath": {"path": "/dev"}},
            {"name": "memory", "emptyDir": {"sizeLimit": 1073741824}},
        ],
    }
    [container] = pod["spec"]["containers"]
    container |= {
        "ports": [{"containerPort": 18515}],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 0},
        "env": [
            {"name": "A", "value": ""},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    async with cluster() as c:
        spec = (await c.http.post(PODS_URL, json=pod)).json()["spec"]
    assert spec["volumes"] == [
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/dev", "type": ""}},
        {"name": "memory", "emptyDir": {"sizeLimit": "1073741824"}},
    ]
    [container] = spec["containers"]
    assert container["ports"] == [{"hostPort": 18515, "containerPort": 18515, "protocol": "TCP"}]
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/", "port": 8080, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert container["env"] == [
        {"name": "A"},
        {"name": "B", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
    ]


async def test_pod_with_a_malformed_quantity_is_refused_in_the_servers_words(cluster, make_pod):
    pod = make_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "one"}}
    async with cluster() as c:
        answer = await c.http.post(PODS_URL, json=pod)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(
        'Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression'
    )


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
