"""Documents by which clients learn of the API."""

from __future__ import annotations

import pytest

from demo.cluster.rdmanode_definition import CRD, CRDS_URL

pytestmark = pytest.mark.anyio


async def test_openapi_describes_the_kinds_of_a_group(cluster):
    async with cluster() as c:
        await c.http.post(CRDS_URL, json=CRD)
        paths = (await c.http.get("/openapi/v3")).json()["paths"]
        core = (await c.http.get(paths["api/v1"]["serverRelativeURL"])).json()
        rdma = (await c.http.get(paths["apis/k8s-rdma.io/v1alpha1"]["serverRelativeURL"])).json()
    schemas = core["components"]["schemas"]
    containers = schemas["PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert schemas["Pod"]["x-kubernetes-group-version-kind"] == [
        {"group": "", "version": "v1", "kind": "Pod"}
    ]
    described = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert rdma["components"]["schemas"]["RdmaNode"]["properties"]["status"] == described
    used = {name for document in (core, rdma) for name in references(document)}
    assert used <= schemas.keys()


def references(value: object) -> list[str]:
    """The schemas that a document refers to."""
    if isinstance(value, list):
        return [name for each in value for name in references(each)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"].rpartition("/")[2]] if "$ref" in value else []
    return own + references(list(value.values()))


@pytest.mark.parametrize(
    "path", ["/apis/absent", "/apis/absent/v1", "/api/v2", "/openapi/v3/api/v2", "/openapi"]
)
async def test_unknown_document_is_not_found(cluster, path):
    async with cluster() as c:
        answer = await c.http.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound")
