"""Pods that wait by ResourceClaim, by objects of an API server, on the pages of those who may see them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from claim_cases import claim, container, devices, request, template
from cli.test_explain_claims import RDMA, allocated, node_slice
from k8s_rdma.kube.documents import Documents
from k8s_rdma.web.claim_pods import (
    MAX_PODS,
    MAX_REQUESTS,
    ClaimPodReader,
    waiting_by_claim,
)
from k8s_rdma.web.open_pages import WATCH_S
from k8s_rdma.web.pages import claims_note
from kube.stored_objects import serving_objects
from web.cases import cluster, explanation, node, pf, waiting
from web.node_servers import Turns
from web.serving import serving
from web.test_access import OPERATOR, TENANT, reviewed
from web.test_pages import Elements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from k8s_rdma.wire.views import PendingRow

    Json = dict[str, Any]

pytestmark = pytest.mark.anyio

API = "/apis/resource.k8s.io/v1"
GPU = {
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu"'}}]},
}
VIEW = cluster(node("worker-1", pf(0)), pending=(waiting("research/annotated", insufficient=1),))


def pod(name: str, claims: dict[str, str] | None = None, namespace: str = "default", **spec: Any) -> Json:
    """A pod that waits. claims: names of ResourceClaims, by its own."""
    entries = [{"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()]
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": meta, "spec": {"resourceClaims": entries, **spec}, "status": {"phase": "Pending"}}


def listed(*items: Json) -> bytes:
    return json.dumps({"items": items}).encode()


def of_class(name: str) -> Json:
    return {"name": "a", "exactly": {"deviceClassName": name}}


def objects(pods: list[Json], *claims: Json, **more: bytes | int) -> dict[str, bytes | int]:
    return {
        "/api/v1/pods": listed(*pods),
        f"{API}/deviceclasses": listed(RDMA, GPU),
        f"{API}/resourceclaims": listed(*claims),
        f"{API}/resourceslices": listed(node_slice("w1", "f0", "f1"), node_slice("w2", "f0")),
        **{f"{API}/{path}": answer for path, answer in more.items()},
    }


def read(directory: Path, answers: dict[str, bytes | int]) -> tuple[PendingRow, ...]:
    with serving_objects(answers, directory) as kubeconfig, Documents(kubeconfig) as api:
        return waiting_by_claim(api).rows


def test_pods_are_listed_with_their_requests_and_reasons_for_waiting(tmp_path: Path):
    pods = [pod("p", {"net": "large"}), pod("gpus", {"g": "gpu"}), pod("plain")]
    claims = (
        claim(devices(request("a", "200G"), request("b")), "large"),
        claim(devices(of_class("gpu")), "gpu"),
    )
    [row] = read(tmp_path, objects(pods, *claims))
    assert (row.pod, row.interfaces, row.reserved_mbps) == ("default/p", 2, 200_000)
    assert row.why.startswith("2 nodes: ")
    assert row.waits_s > 0


def test_pod_that_would_fit_says_that_it_waits_for_something_else(tmp_path: Path):
    [row] = read(tmp_path, objects([pod("p", {"net": "c"})], claim(devices(request("a", "10G")), "c")))
    assert row.why == "2 nodes: fits, and waits for what else it needs"


def test_pod_whose_claims_are_allocated_holds_their_devices(tmp_path: Path):
    [row] = read(tmp_path, objects([pod("p", {"net": "c"})], allocated(("f0", 10_000))))
    assert (row.interfaces, row.reserved_mbps) == (1, 10_000)
    assert row.why == "its claims are allocated; kubectl describe pod says what else it waits for"


def test_claims_of_templates_and_extended_resources_count_before_they_are_generated(tmp_path: Path):
    entry = {"name": "net", "resourceClaimTemplateName": "t"}
    pods = [
        pod("of-template") | {"spec": {"resourceClaims": [entry]}},
        pod("extended", containers=[container("x", 2)]),
    ]
    template_path = "namespaces/default/resourceclaimtemplates/t"
    answers = objects(pods, **{template_path: json.dumps(template(devices(request("a", "1G")))).encode()})
    found = {row.pod: (row.interfaces, row.reserved_mbps) for row in read(tmp_path, answers)}
    assert found == {"default/of-template": (1, 1_000), "default/extended": (2, 0)}


def test_claim_that_is_missing_or_malformed_is_the_reason(tmp_path: Path):
    pods = [pod("p", {"net": "c", "other": "gone"}), pod("q", {"net": "bad"})]
    claims = claim(devices(request()), "c"), claim(devices(request("a", "1x")), "bad")
    first, second = sorted(read(tmp_path, objects(pods, *claims)), key=lambda row: row.pod)
    assert first.why.startswith("there is no resourceclaim default/gone; ")
    assert second.why.startswith("claim net: request a: bandwidth: 1x")


def test_number_of_requests_that_are_judged_is_bounded(tmp_path: Path):
    names = [f"c{index}" for index in range(MAX_REQUESTS + 3)]
    claims = [claim(devices(request("a", f"{index + 1}G")), name) for index, name in enumerate(names)]
    rows = read(tmp_path, objects([pod(f"p-{name}", {"net": name}) for name in names], *claims))
    assert len(rows) == MAX_REQUESTS + 3
    assert sum(row.why.startswith("why is not found here") for row in rows) == 3


def test_namespace_with_many_pods_takes_no_place_of_others(tmp_path: Path):
    """Those of `flood` are older, and each asks for something else."""
    names = [f"c{index}" for index in range(MAX_REQUESTS + 3)]
    requests = [claim(devices(request("a", f"{index + 1}G")), name) for index, name in enumerate(names)]
    flood = [pod(f"p-{name}", {"net": name}, namespace="flood") for name in names]
    late = pod("late", {"net": "own"}, namespace="team-a")
    late["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    claims = [within("flood", each) for each in requests]
    own = within("team-a", claim(devices(request("a", "100G")), "own"))
    rows = read(tmp_path, objects([*flood, late], *claims, own))
    assert [row.pod for row in rows][-1] == "team-a/late", "those that wait longest come first"
    assert rows[-1].why.startswith("2 nodes: ")
    assert sum(row.why.startswith("why is not found here") for row in rows) == 4


def test_pods_beyond_the_bound_are_counted_and_of_the_namespace_with_most(tmp_path: Path):
    flood = [pod(f"p{index}", {"net": "c"}, namespace="flood") for index in range(MAX_PODS + 7)]
    late = pod("late", {"net": "c"}, namespace="team-a")
    late["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    same = claim(devices(request("a", "1G")), "c")
    answers = objects([*flood, late], within("flood", same), within("team-a", same))
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        found = waiting_by_claim(api)
    assert found.unlisted == 8
    assert len(found.rows) == MAX_PODS
    assert found.rows[-1].pod == "team-a/late"
    note = "Of 8 more pods with claims it is not known here whether they wait."
    assert claims_note(replace(found, read_at=0.0), has_pfs=True) == note


def within(namespace: str, found: Json) -> Json:
    """That claim in a namespace."""
    return {**found, "metadata": {**found["metadata"], "namespace": namespace}}


@asynccontextmanager
async def claims_read(
    directory: Path, answers: dict[str, bytes | int], turns: Turns
) -> AsyncIterator[ClaimPodReader]:
    """Run a reader of an API server's claims."""
    with serving_objects(answers, directory) as kubeconfig:
        reader = ClaimPodReader(connect=lambda: Documents(kubeconfig), clock=turns.clock, pause=turns.pause)
        running = asyncio.create_task(reader.run())
        try:
            yield reader
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_pods_by_claim_are_listed_as_others_are(tmp_path: Path):
    turns = Turns()
    answers = objects([pod("by-claim", {"net": "c"})], claim(devices(request("a", "200G")), "c"))
    no_rdma = explanation(
        namespace="default", name="by-claim", state="no-rdma", groups=(), places=(), refused=None
    )
    async with claims_read(tmp_path, answers, turns) as reader, serving(VIEW, no_rdma, claims=reader) as site:
        before = Elements((await site.http.get("/")).text).text
        await turns.read()
        overview, pending, of_pod = [
            " ".join(Elements((await site.http.get(path)).text).text.split())
            for path in ("/", "/pending?q=by-claim", "/pods/default/by-claim")
        ]
    assert "Pods that wait by ResourceClaim are being read" in before
    assert "default/by-claim1 interface, 200 Gb/s · waits" in overview
    assert "Pods pending2" in overview
    assert "research/annotated" in overview
    assert "by ResourceClaim are not" not in overview
    assert "default/by-claim1 interface, 200 Gb/s" in pending
    assert "research/annotated" not in pending
    assert "waiting by ResourceClaim · 1 interface, 200 Gb/s" in of_pod
    assert of_pod.count("2 nodes: ") == 1


async def test_claims_are_read_for_open_pages_alone(tmp_path: Path):
    turns = Turns()
    answers = objects([pod("by-claim", {"net": "c"})], claim(devices(request()), "c"))
    async with claims_read(tmp_path, answers, turns) as reader:
        assert reader.want().read_at is None
        waiting_turns = await turns.read()
        assert [row.pod for row in reader.want().rows] == ["default/by-claim"]
        waiting_turns = await turns.again(waiting_turns)
        answers["/api/v1/pods"] = listed()
        turns.now += WATCH_S
        waiting_turns[0].set_result(None)
        await asyncio.sleep(0)
        assert reader.want().rows == (), "what is old is not shown as if it were new"
        await turns.read()
        assert reader.want().rows == ()


async def test_claims_that_may_not_be_read_are_said_so(tmp_path: Path):
    turns = Turns()
    answers: dict[str, bytes | int] = {"/api/v1/pods": 403}
    async with claims_read(tmp_path, answers, turns) as reader, serving(VIEW, claims=reader) as site:
        await site.http.get("/")
        await turns.read()
        text = Elements((await site.http.get("/")).text).text
    assert "Pods that wait by ResourceClaim are not known: get /api/v1/pods: " in text
    assert "research/annotated" in text


async def test_pods_by_claim_are_shown_to_those_who_may_list_them(tmp_path: Path):
    turns = Turns()
    pods = [pod("mine", {"net": "c"}, "research"), pod("secret", {"net": "c"}, "team-b")]
    mine = claim(devices(request("a", "200G")), "c")
    claims = [mine | {"metadata": {"name": "c", "namespace": name}} for name in ("research", "team-b")]
    (tmp_path / "objects").mkdir()
    async with (
        claims_read(tmp_path / "objects", objects(pods, *claims), turns) as reader,
        reviewed(tmp_path, VIEW, claims=reader) as (site, _),
    ):
        await site.http.get("/", headers=TENANT)
        await turns.read()
        own, every = [
            Elements((await site.http.get("/pending", headers=headers)).text).text
            for headers in (TENANT, OPERATOR)
        ]
        assert (await site.http.get("/pods/team-b/secret", headers=TENANT)).status_code == 403
    assert "research/mine" in own
    assert "team-b" not in own
    assert "1 more pod waits in namespaces whose pods you may not list" in own
    assert "team-b/secret" in every
