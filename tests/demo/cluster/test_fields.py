"""Objects of Kubernetes' types as these write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from demo.cluster.conftest import RECORDINGS
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.fields import FIELDS, as_stored
from k8s_rdma_demo.cluster.objects import parse_resource_type
from k8s_rdma_demo.cluster.resource_claims import complete_claim_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


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


async def test_custom_resource_keeps_a_quantity_as_it_was_written(cluster):
    node = {"metadata": {"name": "n1"}, "spec": {"amount": 1, "empty": "", "list": []}}
    resource = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
    async with cluster(ApiConfig(custom_resources=(resource,))) as c:
        created = await c.http.post("/apis/k8s-rdma.io/v1alpha1/rdmanodes", json=node)
    assert created.json()["spec"] == node["spec"]


def test_fields_of_the_tables_have_types():
    plain = {"string", "boolean", "integer", "map", "object"}
    known = FIELDS.keys() | plain | {"quantity", "quantities", "time", "microtime"}
    assert {field.type for fields in FIELDS.values() for field in fields.values()} <= known
