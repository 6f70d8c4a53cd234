"""Defaults that the API server fills in, of all kinds but pods."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio

RBAC = "rbac.authorization.k8s.io"
CLAIMS_URL = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


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
