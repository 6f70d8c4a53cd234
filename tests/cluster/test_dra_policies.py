"""The policies for ResourceClaims and the DRA driver's role, in a real API server with a node's token."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from claim_cases import BAD, GOOD, claim, config, devices, request, template
from cluster.policies import apply_policies, grant_everything, pod_of, token_of, until, written
from cluster.publishers import prepare
from cluster.real import obstacle, real
from cluster.world import RBAC, Cluster, cluster, collection, documents
from deploy.rendering.chart import render
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.resource_slice import slice_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
SINCE = (1, 36)
EXAMPLES = RBAC.parents[1] / "examples" / "claims"
API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
MINE, OTHER = "w1", "w2"
ACCOUNT = "k8s-rdma-device-plugin"
SHARE = "10000000-0000-4000-8000-000000000000"
DRY = "?dryRun=All"


@asynccontextmanager
async def guarded(
    directory: Path, *policies: str, plane: Callable[[Path], Any] = real
) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster with policies, the driver's role, and a token of a pod on w1. plane: runs its programs."""
    async with cluster(plane, directory, MINE, OTHER) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: capacities of claims are of {SINCE} and later")
        await prepare(c)
        for role in ("device-plugin", "claims"):
            await c.apply(RBAC / f"{role}.yaml")
        for name in policies:
            await apply_policies(c, name)
        [device_class] = yaml.safe_load_all(
            render({"dra": {"enabled": True}, "placementKey": {"create": False}})[
                "templates/device-class.yaml"
            ]
        )
        assert (await c.http.post(f"{API}/deviceclasses", json=device_class)).status_code == 201
        token = await token_of(c, ACCOUNT, await pod_of(c, ACCOUNT, MINE))
        yield c, token


async def told(c: Cluster, path: str, document: Json, *, dry: bool = True) -> str:
    """Why the API server does not create an object, or its warning; otherwise empty."""
    answer = await c.http.post(f"{path}{DRY if dry else ''}", json=document)
    return answer.headers.get("warning", "") if answer.is_success else answer.json()["message"]


async def refusal(c: Cluster, path: str, document: Json) -> str:
    """Why the API server does not create an object; empty if it does, with a warning or without one."""
    answer = await c.http.post(f"{path}{DRY}", json=document)
    return "" if answer.is_success else answer.json()["message"]


async def test_claims_are_taken_and_refused_as_without_an_api_server(tmp_path: Path):
    async with guarded(tmp_path, "claims") as (c, _):
        await until(lambda: told(c, TEMPLATES, template(devices(request(bandwidth="-10G")))))
        for found in filter(None, GOOD):
            assert await told(c, TEMPLATES, template(found)) == "", found
            assert await told(c, CLAIMS, claim(found)) == "", found
        for found, expected in BAD:
            said = await told(c, TEMPLATES, template(found))
            assert expected in said, (found, said)
            assert "k8s-rdma-claims" in said, (found, said)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_claims_of_an_older_version_are_judged_as_those_of_v1(tmp_path: Path, version: str):
    """The API server converts them to v1 for the policy, which names no other version (matchPolicy)."""
    api = f"resource.k8s.io/{version}"
    plane = partial(real, served=(api,))
    async with guarded(tmp_path, "claims", plane=plane) as (c, _):
        templates, claims = (path.replace(API, f"/apis/{api}") for path in (TEMPLATES, CLAIMS))
        assert (await c.http.get(f"/apis/{api}")).status_code == 200
        await until(lambda: told(c, TEMPLATES, template(devices(request(bandwidth="-10G")))))
        for found in filter(None, GOOD):
            asked = older(found) if version == "v1beta1" else found
            assert await refusal(c, templates, {**template(asked), "apiVersion": api}) == "", found
            assert await refusal(c, claims, {**claim(asked), "apiVersion": api}) == "", found
        for found, expected in BAD:
            asked = older(found) if version == "v1beta1" else found
            said = await refusal(c, templates, {**template(asked), "apiVersion": api})
            assert expected in said, (found, said)
            assert "k8s-rdma-claims" in said, (found, said)


def older(found: Json) -> Json:
    """The devices of a claim as v1beta1 has them, whose requests are not nested in `exactly`."""
    requests = [
        {"name": each["name"], **each["exactly"]} if "exactly" in each else each
        for each in found.get("requests", [])
    ]
    return {**found, "requests": requests} if requests else found


async def test_largest_claim_is_within_the_cost_limit(tmp_path: Path):
    async with guarded(tmp_path, "claims", "claims-order") as (c, _):
        await until(lambda: told(c, TEMPLATES, template(devices(request(bandwidth="-10G")))))
        names = [f"interface-{index}" for index in range(30)]
        everything: Json = {
            "maxTxRate": "40G",
            "enforce": "auto",
            "network": "storage",
            "vlan": 10,
            "qos": 1,
            "vlanProto": "802.1Q",
            "mtu": 9000,
            "trust": True,
            "spoofCheck": False,
            "linkState": "auto",
        }
        configs = tuple(
            config(name, name=f"rdma{index}", mac=f"02:00:00:00:00:{index:02x}", **everything)
            for index, name in enumerate(names)
        )
        found = devices(*(request(name, "1G") for name in names), configs=configs)
        said = await told(c, TEMPLATES, template(found))
        assert "30 requests: kube-scheduler may need seconds" in said


async def test_examples_are_taken(tmp_path: Path):
    async with guarded(tmp_path, "claims", "claims-order") as (c, _):
        await until(lambda: told(c, TEMPLATES, template(devices(request(bandwidth="-10G")))))
        for path in sorted(EXAMPLES.iterdir()):
            for document in documents(path):
                many = path.name == "sixty-interfaces.yaml" and document["kind"] != "Pod"
                said = await told(
                    c, f"{collection(document)}{DRY}&fieldValidation=Strict", document, dry=False
                )
                assert said == "" or (many and "30 requests: kube-scheduler" in said), (path.name, said)


async def test_order_of_requests_is_warned_of(tmp_path: Path):
    async with guarded(tmp_path, "claims-order") as (c, _):
        wrong = template(devices(request("a", "1G"), request("b", "2G")))
        await until(lambda: told(c, TEMPLATES, wrong))
        assert "largest first" in await told(c, TEMPLATES, wrong)
        right = template(devices(request("b", "25G"), request("a", "1500M"), request("c")))
        assert await told(c, TEMPLATES, right) == ""


def slice_of(node: str = MINE, **spec: Any) -> Json:
    """A ResourceSlice of a node. spec: other values; fields without a value are left out."""
    found = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [],
        **spec,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node, 0)},
        "spec": {key: value for key, value in found.items() if value is not None},
    }


async def test_node_writes_slices_of_its_own_and_no_others(tmp_path: Path):
    async with guarded(tmp_path, "slices") as (c, token):
        named = {**slice_of(), "metadata": {"name": slice_name(OTHER, 0)}}
        await until(lambda: written(c, token, "POST", f"{SLICES}{DRY}", named))
        other = f"resourceslice {slice_name(MINE, 0)} is not of node w1, whose device plugin asks"
        for document, expected in (
            (slice_of(OTHER), "is not of node w1"),
            (slice_of(pool={"name": OTHER, "generation": 1, "resourceSliceCount": 1}), other),
            (slice_of(nodeName=None, allNodes=True), other),
            (slice_of(nodeName=None, nodeSelector=_every_node()), other),
            (slice_of(driver="gpu.example.com"), "is not of driver rdma.k8s-rdma.io"),
            (named, "begins with w1-rdma.k8s-rdma.io-"),
        ):
            assert expected in await written(c, token, "POST", SLICES, document), document
        assert await written(c, token, "POST", SLICES, slice_of()) == ""
        path = f"{SLICES}/{slice_name(MINE, 0)}"
        assert await written(c, token, "PATCH", path, {"metadata": {"annotations": {"a": "b"}}}) == ""
        assert (await c.http.post(SLICES, json=slice_of(OTHER))).status_code == 201
        theirs = f"{SLICES}/{slice_name(OTHER, 0)}"
        for method, document in (("PATCH", {"metadata": {"annotations": {"a": "b"}}}), ("DELETE", None)):
            assert "is not of node w1" in await written(c, token, method, theirs, document)
        assert await written(c, token, "DELETE", path) == ""
        unbound = await token_of(c, ACCOUNT)
        assert "its token names no node" in await written(c, unbound, "POST", SLICES, slice_of())


def _every_node() -> Json:
    expressions = [{"key": "kubernetes.io/hostname", "operator": "Exists"}]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


async def allocated(c: Cluster, name: str, node: str, *pods: str) -> str:
    """A claim as kube-scheduler leaves it, reserved for pods; the path of its status."""
    made = await c.http.post(CLAIMS, json=claim(devices(request(bandwidth="25G")), name))
    assert made.status_code == 201, made.text
    path = f"{CLAIMS}/{name}/status"
    said = await c.http.put(path, json={**made.json(), "status": status_of(node, *pods)})
    assert said.status_code == 200, said.text
    return path


def status_of(node: str, *pods: str) -> Json:
    result = {
        "request": "a",
        "driver": DRIVER,
        "pool": node,
        "device": "f0",
        "shareID": SHARE,
        "consumedCapacity": {"bandwidth": "25G", "vfs": "1"},
    }
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    reserved = [{"resource": "pods", "name": name, "uid": name} for name in pods]
    return {"allocation": allocation, "reservedFor": reserved}


def device_status(node: str, **more: Any) -> Json:
    device = {"driver": DRIVER, "pool": node, "device": "f0", "shareID": SHARE, **more}
    return {"status": {"devices": [device]}}


async def patched(c: Cluster, token: str, path: str, patch: Json, kind: str = "merge-patch+json") -> str:
    """Why the API server refuses a patch, with its status; empty if it does not."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}"}
    answer = await c.http.patch(path, json=patch, headers=headers)
    return "" if answer.is_success else f"{answer.status_code} {answer.json()['message']}"


async def test_node_writes_only_devices_of_claims_on_it(tmp_path: Path):
    async with guarded(tmp_path, "one-pod") as (c, token):
        mine, theirs = await allocated(c, "mine", MINE, "p"), await allocated(c, "theirs", OTHER, "q")
        own = device_status(MINE, data={"pci": "0000:03:00.2"})
        assert await written(c, token, "PATCH", mine, own) == ""
        applied = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **own}
        forced = f"{mine}?fieldManager=k8s-rdma&force=true"
        assert await patched(c, token, forced, applied, "apply-patch+yaml") == ""
        for path, patch, status, expected in (
            (theirs, device_status(OTHER), "422", "arbitrary-node:patch"),
            (mine, {"status": {"reservedFor": None}}, "422", "resourceclaims/binding"),
            (mine, {"status": {"allocation": None}}, "422", "resourceclaims/binding"),
            (mine, device_status(MINE, driver="gpu.example.com"), "422", '"gpu.example.com" is forbidden'),
            (mine.removesuffix("/status"), {"metadata": {"labels": {"a": "b"}}}, "403", "cannot patch"),
        ):
            said = await patched(c, token, path, patch)
            assert said.startswith(status), said
            assert expected in said, said


async def test_claim_is_reserved_for_one_pod(tmp_path: Path):
    """Whoever reserves it: kube-scheduler here writes with the administrator's rights."""
    async with guarded(tmp_path, "one-pod") as (c, _):
        path = await allocated(c, "shared", MINE, "p")
        two = {"status": {"reservedFor": status_of(MINE, "p", "q")["reservedFor"]}}

        async def refusal() -> str:
            headers = {"Content-Type": "application/merge-patch+json"}
            answer = await c.http.patch(f"{path}{DRY}", json=two, headers=headers)
            return "" if answer.is_success else answer.json()["message"]

        await until(refusal)
        assert "an RDMA interface is of one pod: use a resourceClaimTemplateName" in await refusal()
        foreign = copy.deepcopy(status_of(MINE, "p", "q"))
        foreign["allocation"]["devices"]["results"][0] |= {"driver": "gpu.example.com"}
        made = (await c.http.post(CLAIMS, json=claim(devices(), "gpu"))).json()
        said = await c.http.put(f"{CLAIMS}/gpu/status", json={**made, "status": foreign})
        assert said.status_code == 200, said.text


async def test_policies_hold_although_roles_grant_everything(tmp_path: Path):
    async with guarded(tmp_path, "slices") as (c, token):
        await grant_everything(c, ACCOUNT, "k8s-rdma")
        await until(lambda: written(c, token, "POST", f"{SLICES}{DRY}", slice_of(OTHER)))
        assert "is not of node w1" in await written(c, token, "POST", SLICES, slice_of(OTHER))
