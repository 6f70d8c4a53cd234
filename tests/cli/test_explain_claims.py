"""`k8s-rdma explain pod` for ResourceClaims, by an API server and an extender, or one of both."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from claim_cases import claim, container, devices, request
from cli.asking import Ran, k8s_rdma
from deviceplugin.offered_pf import offer
from extender.serving import served
from extender.world import cluster
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.rates_status import RatesStatus, digest, encode_rates_status
from k8s_rdma.wire.resource_slice import quantity_of, slice_specs
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Json = dict[str, Any]

pytestmark = pytest.mark.anyio

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
RDMA = {
    "metadata": {"name": "rdma"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
NO_EXTENDER = ("--extender", "http://127.0.0.1:1")


def pod(**spec: Any) -> Json:
    entry = {"name": "net", "resourceClaimName": "c"}
    meta = {"name": "p", "namespace": "default", "uid": "uid-p", "annotations": {}}
    return {"metadata": meta, "spec": {"resourceClaims": [entry], **spec}}


def annotated(document: Json, annotations: Json) -> Json:
    return document | {"metadata": document["metadata"] | {"annotations": annotations}}


def allocated(*results: tuple[str, int], node: str = "w1", of: str = "p", name: str = "c") -> Json:
    found = [
        {
            "driver": DRIVER,
            "pool": node,
            "device": device,
            "consumedCapacity": {"bandwidth": quantity_of(mbps), "vfs": "1"},
        }
        for device, mbps in results
    ]
    status = {
        "allocation": {"devices": {"results": found}},
        "reservedFor": [{"resource": "pods", "name": of, "uid": f"uid-{of}"}],
    }
    return claim(devices(request()), name) | {"status": status}


def node_slice(name: str, *pfs: str) -> Json:
    [spec] = slice_specs(Offers(node=name, pfs=tuple(offer(pf, bandwidth_mbps=100_000) for pf in pfs)))
    return {"metadata": {"name": name}, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}


@contextmanager
def api_server(
    directory: Path,
    pod: Json,
    claims: list[Json],
    slices: list[Json] | None = None,
    **more: bytes | int,
) -> Iterator[str]:
    """A kubeconfig for an API server of these; claims in the namespace default."""
    answers: dict[str, bytes | int] = {
        "/api/v1/namespaces/default/pods/p": json.dumps(pod).encode(),
        f"{API}/deviceclasses/rdma": json.dumps(RDMA).encode(),
        f"{API}/resourceclaims": json.dumps({"items": claims}).encode(),
        f"{API}/resourceslices": json.dumps({"items": slices or [node_slice("w1", "f0", "f1")]}).encode(),
        **{f"{CLAIMS}/{each['metadata']['name']}": json.dumps(each).encode() for each in claims},
        **{f"{API}/{path}": answer for path, answer in more.items()},
    }
    with serving_objects(answers, directory) as kubeconfig:
        yield kubeconfig


async def explain(kubeconfig: str, *options: str) -> Ran:
    return await k8s_rdma(
        "explain", "pod", "default/p", "--kubeconfig", kubeconfig, *(options or NO_EXTENDER)
    )


async def test_pod_by_annotation_is_explained_although_another_drivers_claim_may_not_be_read(tmp_path: Path):
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        made = await c.create_pod("p", 6000)
        document = pod() | {"metadata": made["metadata"]}
        foreign = claim(devices(request(deviceClassName="gpu")))
        with api_server(tmp_path, document, [foreign], **{"deviceclasses/gpu": 403}) as kubeconfig:
            ran = await explain(kubeconfig, "--extender", s.url)
            found = json.loads((await explain(kubeconfig, "--extender", s.url, "--json")).out)
    assert (ran.status, ran.err) == (0, "")
    assert 'asks for 1 interface; 6000 Mb/s reserved, priority 0\n  1 x {"min_tx_rate": 6000}\n' in ran.out
    [note] = [line for line in ran.out.splitlines() if line.startswith("note: its ResourceClaims")]
    assert note.startswith(f"note: its ResourceClaims are not explained: get {API}/deviceclasses/gpu: ")
    assert note.endswith("(HTTP 403)")
    assert found["notes"][-1] == note.removeprefix("note: ")


async def test_claims_of_a_pod_with_both_are_explained_without_an_extender(tmp_path: Path):
    both = annotated(pod(), {"rdma_interfaces_required": "[{}]"})
    with api_server(tmp_path, both, [claim(devices(request(bandwidth="101G")))]) as kubeconfig:
        ran = await explain(kubeconfig)
        document = json.loads((await explain(kubeconfig, "--json", *NO_EXTENDER)).out)
    assert (ran.status, ran.err) == (0, "")
    assert "1 node: no: needs 1 interface of 101000 Mb/s; best PF has 100000 Mb/s" in ran.out
    assert "note: what it requests by annotation is not explained: no extender answers at" in ran.out
    assert document["claims"]["notes"][-1].startswith("what it requests by annotation is not explained: ")


async def test_pod_that_neither_explains_says_why_of_both(tmp_path: Path):
    with api_server(tmp_path, pod(), [], **{"namespaces/default/resourceclaims/c": 403}) as kubeconfig:
        ran = await explain(kubeconfig)
    assert ran.status == 2
    assert ran.err.startswith("k8s-rdma: no extender answers at http://127.0.0.1:1: ")
    assert f"; get {CLAIMS}/c: " in ran.err
    assert "(HTTP 403)" in ran.err


async def test_explain_of_the_second_pod_of_a_claim_names_the_first(tmp_path: Path):
    with api_server(tmp_path, pod(), [allocated(("f0", 25_000), ("f1", 0), of="first")]) as kubeconfig:
        ran = await explain(kubeconfig)
    head, why, claims = ran.out.splitlines()
    assert head == "pod default/p (uid-p): waiting"
    assert why == (
        "cannot start: claim net is reserved for pod default/first, and an interface is of one pod: use "
        "resourceClaimTemplateName"
    )
    assert claims == "claim net: allocated on w1: f0 1 VF 25000 Mb/s, f1 1 VF 0 Mb/s"


async def test_pod_that_has_its_claims_is_shown_with_pfs_and_bandwidth(tmp_path: Path):
    bound = pod(nodeName="w1")
    results = [("f0", 25_000), ("f0", 10_000)]
    with api_server(tmp_path, bound, [allocated(*results)]) as kubeconfig:
        ran = await explain(kubeconfig)
        document = json.loads((await explain(kubeconfig, "--json", *NO_EXTENDER)).out)
    assert ran.out.splitlines() == [
        "pod default/p (uid-p): bound",
        "claim net: allocated on w1: f0 2 VFs 35000 Mb/s",
        "on w1; if it does not start: `kubectl -n default describe pod p`",
    ]
    pf = {"name": "f0", "interfaces": 2, "reserved_mbps": 35_000}
    assert document["claims"]["allocated"] == {"net": {"nodes": ["w1"], "pfs": [pf]}}


@pytest.mark.parametrize(
    ("caps", "of", "expected"),
    [
        ("[]", "[]", "refused: interface [b]rdma0[/]: no"),
        ("{}", "[]", "not decided"),
        ("{}", None, "not decided"),
    ],
)
async def test_outcome_of_a_change_of_caps_is_shown(tmp_path: Path, caps: str, of: str | None, expected: str):
    annotations = {CLAIM_CAPS_ANNOTATION: caps}
    if of is not None:
        status = RatesStatus(state="refused", request=digest(of), message="interface [b]rdma0[/]: no")
        annotations[CLAIM_CAPS_STATUS_ANNOTATION] = encode_rates_status(status)
    bound = annotated(pod(nodeName="w1"), annotations)
    with api_server(tmp_path, bound, [allocated(("f0", 25_000))]) as kubeconfig:
        ran = await explain(kubeconfig)
        document = json.loads((await explain(kubeconfig, "--json", *NO_EXTENDER)).out)
    assert f"last change of caps {expected}" in ran.out.splitlines()
    assert document["claims"]["caps"] == expected


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
async def test_pod_with_a_node_and_no_allocation_was_set_past_the_scheduler(tmp_path: Path, phase: str):
    """But for one that has finished, whose claims are free again."""
    document = pod(nodeName="w1") | {"status": {"phase": phase}}
    with api_server(tmp_path, document, [claim(devices(request()))]) as kubeconfig:
        ran = await explain(kubeconfig)
    line = (
        "cannot start: spec.nodeName w1 was set past kube-scheduler, which allocates claims: kubelet waits "
    )
    assert (line in ran.out) is (phase == "Pending")
    assert f": {'bound' if phase == 'Pending' else 'finished'}" in ran.out


async def test_pod_in_its_nodes_network_cannot_start(tmp_path: Path):
    with api_server(tmp_path, pod(hostNetwork=True), [claim(devices(request()))]) as kubeconfig:
        ran = await explain(kubeconfig)
    assert "cannot start: spec.hostNetwork: a pod in its node's network gets no interfaces" in ran.out


async def test_claims_that_are_missing_or_have_no_name_yet_are_named(tmp_path: Path):
    entries = [
        {"name": "a", "resourceClaimName": "absent"},
        {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "c"},
    ]
    with api_server(tmp_path, pod(resourceClaims=entries), []) as kubeconfig:
        ran = await explain(kubeconfig)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "pod default/p (uid-p): waiting",
        "cannot start: there is no resourceclaim default/absent",
        "cannot start: there is no resourceclaimtemplate default/t",
        "note: claim c has no name yet",
    ]


async def test_pod_that_waits_for_extended_resources_is_explained_before_it_has_a_claim(tmp_path: Path):
    document = pod(resourceClaims=[], containers=[container("a", 3)])
    classes = {"deviceclasses": json.dumps({"items": [{"metadata": {"name": "rdma"}} | RDMA]}).encode()}
    with api_server(tmp_path, document, [], **classes) as kubeconfig:
        ran = await explain(kubeconfig)
    assert (ran.status, ran.err) == (0, "")
    assert "asks for 3 interfaces by claims; 0 Mb/s reserved" in ran.out
    assert "1 node: no: needs 3 interfaces; count 3 cannot be met" in ran.out


@pytest.mark.parametrize("claims", [[allocated(("f0", 0), name="p-1")], []])
async def test_claim_of_extended_resources_is_followed_from_the_status_of_the_pod(
    tmp_path: Path, claims: list[Json]
):
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "p-1", "requestMappings": []}}
    document = pod(resourceClaims=[], containers=[container("a", 1)]) | {"status": status}
    with api_server(tmp_path, document, claims) as kubeconfig:
        ran = await explain(kubeconfig)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[1] == (
        "claim <extended-resources>: allocated on w1: f0 1 VF 0 Mb/s"
        if claims
        else "cannot start: there is no resourceclaim default/p-1"
    )


async def test_selectors_of_a_tenant_are_shown_in_part(tmp_path: Path):
    expression = "device.driver == 'rdma.k8s-rdma.io' && " + "1 < 2 && " * 1_000 + "true"
    document = claim(devices(request(selectors=[{"cel": {"expression": expression}}])))
    with api_server(tmp_path, pod(), [document]) as kubeconfig:
        ran = await explain(kubeconfig)
    assert (
        f"note: a selector is not judged, as if every PF met it: {expression[:60]}..." in ran.out.splitlines()
    )


async def test_thousand_nodes_are_explained_in_a_few_lines(tmp_path: Path):
    """All differ in their free bandwidth; some have a PF of which claims have more than it has now."""
    slices = [node_slice(f"node-{at:04}", *(f"f{port}" for port in range(8))) for at in range(1_000)]
    held = [
        allocated(
            *((f"f{port}", (0, 120_000)[at % 100 == 99] or 60_001 + at + port) for port in range(8)),
            node=f"node-{at:04}",
            of=f"q{at}",
            name=f"held-{at}",
        )
        for at in range(1_000)
    ]
    wanted = claim(devices(*(request(name, "39G") for name in "ab"), request("c", "40G")), "c")
    with api_server(tmp_path, pod(), [*held, wanted], slices) as kubeconfig:
        ran = await explain(kubeconfig)
        document = json.loads((await explain(kubeconfig, "--json", *NO_EXTENDER)).out)
    assert (ran.status, ran.err) == (0, "")
    assert [(group["verdict"], group["count"]) for group in document["claims"]["groups"]] == [
        ("refused", 990),
        ("refused", 10),
    ]
    assert "990 nodes: no: needs 3 interfaces of 39000 to 40000 Mb/s; no PF has 40000 Mb/s free" in ran.out
    assert len(ran.out.splitlines()) < 70
