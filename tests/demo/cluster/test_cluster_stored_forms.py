"""Objects as the API server stores them, whatever form their clients chose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from demo.cluster.conftest import RECORDINGS
from documents import ROOT
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.fields import as_stored
from k8s_rdma_demo.cluster.objects import parse_resource_type
from k8s_rdma_demo.cluster.quantities import canonical_micro_time, canonical_quantity, canonical_time
from k8s_rdma_demo.cluster.resource_claims import complete_claim_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

RBAC = "rbac.authorization.k8s.io"
PODS_URL = "/api/v1/namespaces/default/pods"
CLAIMS_URL = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES_URL = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        *((1, "1"), ("1", "1"), (0, "0"), (0.5, "500m"), (2.0, "2"), ("0.5", "500m"), ("1000m", "1")),
        *(("1500m", "1500m"), ("1k", "1k"), ("1000", "1k"), ("1500M", "1500M"), ("25000M", "25G")),
        *(("1Gi", "1Gi"), ("1024Mi", "1Gi"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("512", "512")),
        *(("0.5Ki", "512"), ("0.1Ki", "102400m"), ("0Gi", "0"), (1073741824, "1073741824")),
        *(
            ("1e3", "1e3"),
            ("12E2", "1200"),
            ("1E", "1E"),
            ("10E", "10E"),
            ("1000E", "1000E"),
            ("1e-3", "1e-3"),
        ),
        *(("100n", "100n"), ("0.1n", "1n"), ("-1000m", "-1"), ("+5", "5"), (" 5 ", "5"), (".5", "500m")),
    ],
)
def test_quantity_has_one_form(written: object, stored: str):
    assert canonical_quantity(written) == stored
    assert canonical_quantity(stored) == stored


@pytest.mark.parametrize(
    ("written", "says"),
    [
        *((text, "quantities must match the regular expression") for text in ("", "one", "1 Gi", True, {})),
        *((text, "unable to parse quantity's suffix") for text in ("1ki", "1.2.3", "1kk", "1Kii")),
    ],
)
def test_malformed_quantity_is_refused(written: object, says: str):
    with pytest.raises(ValueError, match=says):
        canonical_quantity(written)


def test_time_is_stored_in_utc_by_its_type():
    assert canonical_time("2026-11-28T10:30:00.9+02:00") == "2026-11-28T08:30:00Z"
    assert canonical_micro_time("2026-11-28T10:30:00.900000+02:00") == "2026-11-28T08:30:00.900000Z"
    for time in ("2026-11-28", "2026-13-28T10:30:00Z", "2026-11-28 10:30:00Z", 5):
        with pytest.raises(ValueError, match="parsing time"):
            canonical_time(time)
    for fraction in ("", ".9", ".9000000"):
        with pytest.raises(ValueError, match=r'cannot parse the fraction as "\.000000"'):
            canonical_micro_time(f"2026-11-28T10:30:00{fraction}Z")


def recorded_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Pods and nodes as kube-scheduler 1.36 had them of kube-apiserver."""
    for path in sorted((RECORDINGS / "extender").glob("*-filter.json")):
        body = json.loads(path.read_text())["body"]
        yield "Pod", body["Pod"]
        for node in (body["Nodes"] or {}).get("items") or ():
            yield "Node", node


def test_objects_of_a_real_api_server_stay_as_they_are():
    objects = list(recorded_objects())
    assert {kind for kind, _ in objects} == {"Pod", "Node"}
    for kind, obj in objects:
        assert json.dumps(as_stored(obj, kind)) == json.dumps(obj)


def test_claims_of_a_real_api_server_stay_as_they_are():
    specs = [
        claim["spec"]
        for path in (RECORDINGS / "dra" / "allocations").glob("*.json")
        for pod in json.loads(path.read_text())["pods"]
        for claim in pod["claims"]
    ]
    assert len(specs) > 10
    for spec in specs:
        assert complete_claim_spec(spec) == spec


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


async def test_status_of_a_node_has_quantities_in_one_form_when_patched(cluster, make_node):
    patch = {"status": {"allocatable": {"rdma/hca": 1000, "cpu": "8000m"}, "capacity": {"cpu": 8}}}
    async with cluster() as c:
        await c.create(make_node("n1"))
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await c.http.patch("/api/v1/nodes/n1/status", json=patch, headers=headers)
    assert answer.json()["status"]["allocatable"] == {"cpu": "8", "rdma/hca": "1k"}
    assert answer.json()["status"]["capacity"] == {"cpu": "8"}


async def test_second_write_of_the_same_amount_is_no_write(cluster, make_pod):
    pod = make_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1}}
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    container = {"name": pod["spec"]["containers"][0]["name"], "resources": {"limits": {"cpu": "1000m"}}}
    async with cluster() as c:
        created = (await c.http.post(PODS_URL, json=pod)).json()
        url = f"{PODS_URL}/{created['metadata']['name']}"
        patched = await c.http.patch(url, json={"spec": {"containers": [container]}}, headers=headers)
    assert patched.status_code == 200, patched.text
    assert patched.json() == created


async def test_claim_has_defaults_and_quantities_in_one_form(cluster):
    exactly = {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": 25_000_000_000}}}
    devices = {"requests": [{"name": "a", "exactly": exactly}]}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": devices}}
    async with cluster() as c:
        created = await c.http.post(CLAIMS_URL, json=claim)
    [request] = created.json()["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "rdma",
        "capacity": {"requests": {"bandwidth": "25G"}},
        "allocationMode": "ExactCount",
        "count": 1,
    }


@pytest.mark.parametrize(
    ("url", "written", "stored"),
    [
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [
                    {"kind": "ServiceAccount", "name": "a", "namespace": "default"},
                    {"kind": "User", "name": "b"},
                ],
            },
            {
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"},
                "subjects": [
                    {"kind": "ServiceAccount", "name": "a", "namespace": "default"},
                    {"apiGroup": RBAC, "kind": "User", "name": "b"},
                ],
            },
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"value": 5},
            {"value": 5, "preemptionPolicy": "PreemptLowerPriority"},
        ),
    ],
)
async def test_kinds_besides_pods_have_defaults(
    cluster, url: str, written: dict[str, Any], stored: dict[str, Any]
):
    async with cluster() as c:
        created = await c.http.post(url, json={"metadata": {"name": "x"}, **written})
    assert created.status_code == 201, created.text
    assert {key: created.json()[key] for key in stored} == stored


async def test_names_of_a_definition_are_complete(cluster):
    versions = [{"name": "v1", "served": True, "storage": True}]
    names = {"kind": "Thing", "plural": "things"}
    spec = {"group": "example.org", "scope": "Cluster", "names": names, "versions": versions}
    url = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with cluster() as c:
        created = await c.http.post(url, json={"metadata": {"name": "things.example.org"}, "spec": spec})
    assert created.json()["status"]["acceptedNames"] == {
        **names,
        "singular": "thing",
        "listKind": "ThingList",
    }
    assert created.json()["spec"]["conversion"] == {"strategy": "None"}


async def test_capacity_of_a_slice_may_be_a_number(cluster):
    policy = {"default": 0, "validRange": {"min": 0, "step": 1_000_000}}
    capacity = {"bandwidth": {"value": 100_000_000_000, "requestPolicy": policy}, "vfs": {"value": 8}}
    spec = {
        "driver": "rdma.k8s-rdma.io",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "f0", "allowMultipleAllocations": True, "capacity": capacity}],
    }
    async with cluster() as c:
        created = await c.http.post(SLICES_URL, json={"metadata": {"name": "s"}, "spec": spec})
    assert created.status_code == 201, created.text
    [device] = created.json()["spec"]["devices"]
    assert device["capacity"] == {
        "bandwidth": {
            "value": "100G",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1M"}},
        },
        "vfs": {"value": "8"},
    }


async def test_custom_resource_keeps_a_quantity_as_it_was_written(cluster):
    node = {"metadata": {"name": "n1"}, "spec": {"amount": 1, "empty": "", "list": []}}
    resource = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
    async with cluster(ApiConfig(custom_resources=(resource,))) as c:
        created = await c.http.post("/apis/k8s-rdma.io/v1alpha1/rdmanodes", json=node)
    assert created.json()["spec"] == node["spec"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*pod.yaml")), ids=str)
async def test_examples_are_stored_with_text_as_quantities(cluster, path):
    async with cluster() as c:
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "Pod":
                created = (await c.http.post(PODS_URL, json=document)).json()
                for container in created["spec"]["containers"]:
                    for amounts in container["resources"].values():
                        assert all(isinstance(amount, str) for amount in amounts.values())
