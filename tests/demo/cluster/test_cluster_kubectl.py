"""Requests of kubectl to the API server beside objects: Tables, discovery, OpenAPI, dry runs, Protobuf."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from demo.cluster.rdmanode_definition import CRD, CRDS_URL
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.bodies import PROTOBUF
from k8s_rdma_demo.cluster.command import SYSTEM_NAMESPACES
from k8s_rdma_demo.cluster.custom_resources import find, parse_json_path
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, serving
from k8s_rdma_demo.cluster.objects import NAMESPACES, PODS
from k8s_rdma_demo.cluster.tables import human_duration
from k8s_rdma_demo.pb import kubernetes_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

pytestmark = pytest.mark.anyio

PODS_URL = "/api/v1/namespaces/default/pods"
NODES_URL = "/apis/k8s-rdma.io/v1alpha1/rdmanodes"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}
CHECKED = ApiConfig(namespaces=SYSTEM_NAMESPACES)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (8 * 3600 - 1, "7h59m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (8 * 86400 - 1, "7d23h"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (731 * 86400, "2y1d"),
        (3000 * 86400, "8y"),
    ],
)
def test_durations_are_written_as_kubernetes_writes_them(seconds, text):
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".a.b[1]", 2),
        (".a.b[9]", None),
        (".list[?(@.type=='x')].n", 1),
        ('.list[?(@.type == "y")].n', 2),
        (".list[?(@.type=='z')].n", None),
        (r".a['k8s-rdma.io/x\.y']", 3),
        (".a.b.c", None),
    ],
)
def test_json_path_finds_the_first_value(path, value):
    obj = {"a": {"b": [1, 2], "k8s-rdma.io/x.y": 3}, "list": [{"type": "x", "n": 1}, {"type": "y", "n": 2}]}
    steps = parse_json_path(path)
    assert steps is not None
    assert find(obj, steps) == value


@pytest.mark.parametrize("path", ["", "a", ".", ".a[", ".a[?(@.b)]", ".a[*]", "$.a"])
def test_json_path_is_refused_when_it_is_malformed(path):
    assert parse_json_path(path) is None


async def test_watch_of_a_table_has_columns_in_its_first_row_alone(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        await c.http.post(PODS_URL, json=make_pod("p2"))
        params = {"watch": "true", "resourceVersion": "1"}
        async with c.http.stream("GET", PODS_URL, params=params, headers=TABLE, timeout=None) as answer:
            lines = answer.aiter_lines()
            first, second = [json.loads(await anext(lines))["object"] for _ in range(2)]
    assert [column["name"] for column in first["columnDefinitions"]][:3] == ["Name", "Ready", "Status"]
    assert second["columnDefinitions"] is None
    [row] = second["rows"]
    assert row["cells"][:3] == ["p2", "0/1", "Pending"]
    assert row["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "Pod")]
)
async def test_rows_include_the_object_as_requested(cluster, make_pod, include, kind):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        answer = await c.http.get(PODS_URL, headers=TABLE, params={"includeObject": include})
        [row] = answer.json()["rows"]
        assert row.get("object", {}).get("kind") == kind
        refused = await c.http.get(PODS_URL, headers=TABLE, params={"includeObject": "Some"})
        assert (refused.status_code, refused.json()["kind"]) == (400, "Status")


@pytest.mark.parametrize(
    "accept", ["application/json", "application/json, application/json;as=Table;v=v1", "*/*"]
)
async def test_object_comes_as_it_is_when_no_table_is_preferred(cluster, make_pod, accept):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        for path, kind in ((PODS_URL, "PodList"), (f"{PODS_URL}/p1", "Pod")):
            assert (await c.http.get(path, headers={"Accept": accept})).json()["kind"] == kind


async def test_definition_is_served_and_gone_with_its_objects(cluster):
    async with cluster() as c:
        assert (await c.http.get(NODES_URL)).status_code == 404
        made = await c.http.post(CRDS_URL, json=CRD)
        assert made.status_code == 201
        conditions = {each["type"]: each["status"] for each in made.json()["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
        await c.http.post(NODES_URL, json={"metadata": {"name": "w1"}})
        groups = [group["name"] for group in (await c.http.get("/apis")).json()["groups"]]
        assert "k8s-rdma.io" in groups
        [resource, status] = (await c.http.get("/apis/k8s-rdma.io/v1alpha1")).json()["resources"]
        assert (resource["name"], resource["singularName"]) == ("rdmanodes", "rdmanode")
        assert (status["name"], status["verbs"]) == ("rdmanodes/status", ["get", "patch", "update"])
        await c.http.delete(f"{CRDS_URL}/rdmanodes.k8s-rdma.io")
        await c.http.post(CRDS_URL, json=CRD)
        assert (await c.http.get(NODES_URL)).json()["items"] == []


def changed(**spec) -> dict:
    return {**CRD, "spec": {**CRD["spec"], **spec}}


def with_version(**version) -> dict:
    return changed(versions=[{**CRD["spec"]["versions"][0], **version}])


@pytest.mark.parametrize(
    ("definition", "status", "says"),
    [
        (changed(group="example.org"), 422, 'metadata.name: Invalid value: "rdmanodes.k8s-rdma.io"'),
        (with_version(storage=False), 422, "spec.versions"),
        (
            with_version(additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": ".a[*]"}]),
            422,
            ".a[*]",
        ),
        (with_version(additionalPrinterColumns=[{"name": "A"}]), 400, "additionalPrinterColumns[0]"),
        (changed(names={}), 400, "names"),
        ({"metadata": CRD["metadata"], "spec": {}}, 400, "group"),
    ],
)
async def test_definition_is_refused_when_a_field_is_wrong(cluster, definition, status, says):
    async with cluster() as c:
        answer = await c.http.post(CRDS_URL, json=definition)
        assert answer.status_code == status
        assert says in answer.json()["message"]
        assert (await c.http.get(CRDS_URL)).json()["items"] == []


async def test_dry_run_answers_as_the_request_would_without_a_change(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        revision = c.api.store.revision
        [stored] = c.api.store.items(PODS)
        dry = {"dryRun": "All"}
        made = await c.http.post(PODS_URL, json=make_pod("p2"), params=dry)
        assert (made.status_code, made.json()["metadata"]["name"]) == (201, "p2")
        patch = {"metadata": {"labels": {"a": "b"}}}
        patched = await c.http.patch(f"{PODS_URL}/p1", json=patch, params=dry, headers=MERGE)
        assert patched.json()["metadata"]["labels"] == {"a": "b"}
        assert patched.json()["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
        body = {"dryRun": ["All"]}
        assert (await c.http.request("DELETE", f"{PODS_URL}/p1", json=body)).status_code == 200
        binding = {"metadata": {"name": "p1"}, "target": {"name": "w1"}}
        bound = await c.http.post(f"{PODS_URL}/p1/binding", json=binding, params=dry)
        evicted = await c.http.post(f"{PODS_URL}/p1/eviction", json={"deleteOptions": body})
        assert (bound.status_code, evicted.status_code) == (201, 201)
        malformed = await c.http.request("DELETE", f"{PODS_URL}/p1", json={"dryRun": 5})
        assert malformed.status_code == 400
        refused = await c.http.post(PODS_URL, json=make_pod(), params=dry)
        assert refused.status_code == 409
        wrong = await c.http.post(PODS_URL, json=make_pod("p3"), params={"dryRun": "Some"})
        assert (wrong.status_code, "dryRun" in wrong.json()["message"]) == (400, True)
        assert (c.api.store.revision, c.api.store.items(PODS)) == (revision, [stored])


async def test_unknown_fields_are_refused_when_validation_is_strict(cluster, make_pod):
    pod = make_pod()
    pod["spec"]["containers"][0]["imag"] = "x"
    strict = {"fieldValidation": "Strict"}
    async with cluster() as c:
        refused = await c.http.post(PODS_URL, json=pod, params=strict)
        assert refused.status_code == 400
        assert 'strict decoding error: unknown field "spec.containers[0].imag"' in refused.json()["message"]
        wrong = await c.http.post(PODS_URL, json=pod, params={"fieldValidation": "Some"})
        assert wrong.status_code == 400
        assert (await c.http.post(PODS_URL, json=pod)).status_code == 201
        await c.http.post(CRDS_URL, json=CRD)
        await c.http.post(NODES_URL, json={"metadata": {"name": "w1"}})
        patch = {"status": {"summary": {"pfz": 1}}}
        status = await c.http.patch(f"{NODES_URL}/w1/status", json=patch, params=strict, headers=MERGE)
        assert 'unknown field "status.summary.pfz"' in status.json()["message"]


async def test_namespace_must_exist_and_takes_its_objects_with_it(cluster, make_pod):
    url = "/api/v1/namespaces/other/pods"
    async with cluster(CHECKED) as c:
        refused = await c.http.post(url, json=make_pod(namespace="other"))
        assert (refused.status_code, refused.json()["message"]) == (404, 'namespaces "other" not found')
        made = await c.http.post("/api/v1/namespaces", json={"metadata": {"name": "other"}})
        assert made.json()["status"] == {"phase": "Active"}
        assert (await c.http.post(url, json=make_pod(namespace="other"))).status_code == 201
        await c.http.delete("/api/v1/namespaces/other")
        assert c.api.store.items(PODS) == []
        assert c.api.store.get(NAMESPACES, ("", "other")) is None


@pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward"])
async def test_request_that_only_kubelet_can_answer_is_refused_with_an_alternative(
    cluster, make_pod, subresource
):
    async with cluster() as c:
        absent = await c.http.get(f"{PODS_URL}/p1/{subresource}")
        assert absent.status_code == 404
        await c.http.post(PODS_URL, json=make_pod())
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        refused = await c.http.get(f"{PODS_URL}/p1/{subresource}", headers=upgrade)
        assert (refused.status_code, refused.json()["kind"]) == (405, "Status")
        assert "nsenter(1)" in refused.json()["message"]


async def test_get_passes_through_the_proxy_of_a_pod_to_its_port(cluster, make_pod):
    requests = []

    async def handle(request: Request) -> Response:
        requests.append(request)
        return Response(status=418, body=b"short", content_type="text/plain")

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b""))
    async with cluster() as c, serving(service, "127.0.0.1", 0) as port:
        await c.http.post(PODS_URL, json=make_pod())
        url = f"{PODS_URL}/p1:{port}/proxy/a/b"
        away = await c.http.get(url)
        assert (away.status_code, away.json()["reason"]) == (503, "ServiceUnavailable")
        await c.http.patch(f"{PODS_URL}/p1/status", json={"status": {"podIP": "127.0.0.1"}}, headers=MERGE)
        answer = await c.http.get(url, params={"q": "1"}, headers={"Authorization": "x", "X-Token": "y"})
        assert (answer.status_code, answer.text) == (418, "short")
        assert (await c.http.get(f"{PODS_URL}/p2:{port}/proxy/a/b")).status_code == 404
        assert (await c.http.post(url)).status_code == 405
    [request] = requests
    assert (request.path, request.query) == ("/a/b", {"q": "1"})
    assert ("authorization" in request.headers, request.headers["x-token"]) == (False, "y")


def protobuf(message: Message, kind: str = "ConfigMap") -> bytes:
    envelope = pb.Unknown(typeMeta=pb.TypeMeta(apiVersion="v1", kind=kind), raw=message.SerializeToString())
    return b"k8s\0" + envelope.SerializeToString()


CONFIG_MAP = pb.ConfigMap(metadata=pb.ObjectMeta(name="c", labels={"a": "b"}), data={"k": "v"})


async def test_object_in_protocol_buffers_is_stored(cluster):
    url = "/api/v1/namespaces/default/configmaps"
    async with cluster() as c:
        headers = {"Content-Type": PROTOBUF}
        made = await c.http.post(url, content=protobuf(CONFIG_MAP), headers=headers)
        assert made.status_code == 201
        stored = (await c.http.get(f"{url}/c")).json()
        assert (stored["metadata"]["labels"], stored["data"]) == ({"a": "b"}, {"k": "v"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b"k8s\0\xff\xff", 400),
        (protobuf(CONFIG_MAP, kind="Pod"), 415),
        (protobuf(CONFIG_MAP, kind="Unknown"), 415),
        (protobuf(pb.DeleteOptions(dryRun=["All"])), 415),
    ],
)
async def test_protocol_buffers_are_refused_when_they_cannot_be_read_whole(cluster, body, status):
    async with cluster() as c:
        headers = {"Content-Type": PROTOBUF}
        answer = await c.http.post("/api/v1/namespaces/default/configmaps", content=body, headers=headers)
        assert (answer.status_code, answer.json()["kind"]) == (status, "Status")


async def test_body_of_another_content_type_is_refused_with_415(cluster):
    async with cluster() as c:
        answer = await c.http.post(PODS_URL, content=b"a: b", headers={"Content-Type": "text/plain"})
        assert (answer.status_code, answer.json()["reason"]) == (415, "UnsupportedMediaType")


async def test_reviews_answer_for_every_user(cluster):
    async with cluster() as c:
        authorization = "/apis/authorization.k8s.io/v1"
        attributes = {"resourceAttributes": {"verb": "create", "resource": "pods"}}
        review = await c.http.post(f"{authorization}/selfsubjectaccessreviews", json={"spec": attributes})
        assert review.json()["status"] == {"allowed": True}
        nothing = await c.http.post(f"{authorization}/selfsubjectaccessreviews", json={"spec": {}})
        assert nothing.status_code == 400
        rules = await c.http.post(f"{authorization}/selfsubjectrulesreviews", json={"spec": {}})
        assert rules.json()["status"]["resourceRules"][0]["verbs"] == ["*"]
        user = await c.http.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json={})
        assert user.json()["status"]["userInfo"]["username"] == "admin"
        assert (await c.http.get(f"{authorization}/selfsubjectaccessreviews")).status_code == 405
