"""What doctor collects of ResourceClaims in a cluster, as an API server has it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from claim_cases import claim, devices, request
from deviceplugin.offered_pf import offer
from extender.node_server import PF0, PF1, pf, report
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.doctor.cluster.components import ExtenderFacts
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.node_lease import silence
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.rates_status import RatesState, RatesStatus, digest, encode_rates_status
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma.wire.report import ForeignVf
from k8s_rdma.wire.resource_slice import slice_specs
from kube.stored_objects import serving_objects
from node_objects import skewed_node

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.wire.report import PfReport

    Json = dict[str, Any]

CAPS, STATUS = CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
LEASES = ExtenderConfig().node_lease_namespace
API = "/apis/resource.k8s.io/v1"
OUR_DRIVER = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}


def caps_status(state: RatesState, text: str, message: str = "") -> str:
    return encode_rates_status(RatesStatus(state=state, request=digest(text), message=message))


def for_claims(pci: str, **fields: Any) -> PfReport:
    return pf(pci, vfs=0, pools={CLAIMS_POOL: 4}, **fields)


def found_by_doctor(
    tmp_path: Path,
    *pfs: PfReport,
    pods: tuple[Json, ...] = (),
    claims: tuple[Json, ...] = (),
    lease: Json | None = None,
    node: Json | None = None,
    extender: dict[str, str] | None = None,
    published: Json | None = None,
) -> dict[str, str]:
    """Findings on a cluster with a node w1 of these PFs, of which the first is published.

    lease: what its Lease says otherwise than one that was renewed now. node: its Node object.
    extender: why the extender refuses it. published: what its status says otherwise.
    """
    status = json.loads(encode_status(status_of(report("w1", *pfs)))) | (published or {})
    [spec] = slice_specs(Offers(node="w1", pfs=(offer("f0", pci=PF0),)))
    meta = {"name": "w1"}
    renewed = {"renewTime": datetime.now(UTC).isoformat(), "holderIdentity": status["generation"]}
    objects = {
        "/version": {"gitVersion": "v1.36.2"},
        "/apis/k8s-rdma.io/v1alpha1/rdmanodes": {"items": [{"metadata": meta, "status": status}]},
        f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases": {
            "items": [{"metadata": meta, "spec": {**renewed, **(lease or {})}}]
        },
        "/api/v1/pods": {"items": list(pods)},
        "/api/v1/nodes": {"items": [node] if node else []},
        f"{API}/deviceclasses": {
            "items": [{"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}]
        },
        f"{API}/resourceslices": {
            "items": [{"metadata": meta, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}]
        },
        f"{API}/resourceclaims": {"items": list(claims)},
    }
    documents: dict[str, bytes | int] = {path: json.dumps(each).encode() for path, each in objects.items()}
    with serving_objects(documents, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        collector = ClusterCollector(
            api=api,
            host=Host(tmp_path),
            namespaces=("k8s-rdma", "kube-system"),
            ask_extender=lambda: ExtenderFacts(nodes=extender),
        )
        return {found.id: found.found for found in collector.findings()}


def renewed_ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


@pytest.mark.parametrize(
    ("lease", "finding"),
    [
        ({}, "nodes-ok"),
        ({"renewTime": renewed_ago(seconds=90)}, "nodes-stale"),
        ({"renewTime": renewed_ago(seconds=90), "leaseDurationSeconds": 3600}, "nodes-ok"),
        ({"renewTime": renewed_ago(hours=4), "leaseDurationSeconds": 10**9}, "nodes-stale"),
        ({"holderIdentity": "another.1"}, "nodes-stale"),
        ({"renewTime": None}, "nodes-no-lease"),
    ],
)
def test_lease_counts_as_it_does_for_the_extender(tmp_path: Path, lease: Json, finding: str):
    assert finding in found_by_doctor(tmp_path, pf(), lease=lease)


def test_status_that_the_extender_cannot_read_is_not_ready(tmp_path: Path):
    found = found_by_doctor(tmp_path, pf(), published={"gpus": [{"resource": "a.b/c", "pci": "x"}]})
    assert "nodes-ok" not in found
    assert "RdmaNode status: Expected `str` matching regex" in found["nodes-not-ready"]
    assert "gpus[0].pci" in found["nodes-not-ready"]


def test_status_of_another_form_ends_no_other_subject(tmp_path: Path):
    usual, odd = (found_by_doctor(tmp_path, pf(), published=status) for status in ({}, {"pfs": ["enp1s0f0"]}))
    assert "pfs[0]" in odd["nodes-not-ready"]
    assert odd.get("not-looked-at") == usual.get("not-looked-at")


@pytest.mark.parametrize(
    ("skew_s", "dead_for_s", "finding"),
    [(-3600.0, 10.0, "nodes-ok"), (30 * 86_400.0, 90.0, "nodes-stale"), (30 * 86_400.0, 10.0, "nodes-ok")],
)
def test_node_is_judged_by_one_clock_when_its_own_differs(
    tmp_path: Path, skew_s: float, dead_for_s: float, finding: str
):
    lease = {"renewTime": renewed_ago(seconds=dead_for_s - skew_s)}
    found = found_by_doctor(tmp_path, pf(), lease=lease, node=skewed_node("w1", skew_s))
    assert finding in found
    assert "the API server's" in found["nodes-clock-skew"]


@pytest.mark.parametrize(("skew_s", "age_s"), [(-3600.0, 10.0), (3600.0, 90.0)])
def test_pod_is_as_old_as_its_nodes_clock_says_when_that_clock_differs(
    tmp_path: Path, skew_s: float, age_s: float
):
    pod = {
        "metadata": {
            "name": "p",
            "namespace": "d",
            "uid": "u",
            "annotations": {PLACEMENT_ANNOTATION: '{"version": 1}'},
        },
        "spec": {"nodeName": "w1", "containers": []},
        "status": {"phase": "Running", "startTime": renewed_ago(seconds=age_s - skew_s)},
    }
    lease = {"renewTime": renewed_ago(seconds=1 - skew_s)}
    found = found_by_doctor(tmp_path, pf(), pods=(pod,), lease=lease, node=skewed_node("w1", skew_s))
    assert ("pods-without-interfaces" in found) == (age_s > 60)


SILENT = silence(61.0, 60.0, 0.0)


@pytest.mark.parametrize(
    ("renewed_s_ago", "word", "finding"), [(3600, "", "nodes-ok"), (0, SILENT, "nodes-stale")]
)
def test_answer_of_the_extender_counts_if_it_is_queried(
    tmp_path: Path, renewed_s_ago: float, word: str, finding: str
):
    lease = {"renewTime": renewed_ago(seconds=renewed_s_ago)}
    assert finding in found_by_doctor(tmp_path, pf(), lease=lease, extender={"w1": word})
    by_lease = "nodes-stale" if renewed_s_ago else "nodes-ok"
    assert by_lease in found_by_doctor(tmp_path, pf(), lease=lease, extender={"another": word})


@pytest.mark.parametrize(
    ("second", "missed"),
    [
        (for_claims(PF1), True),
        (for_claims(PF1, mbps=None), False),
        (for_claims(PF1, problems=("PF eth1: hardware.pfs[].use: annotation waits until no ...",)), False),
        (pf(PF1, vfs=0, pools={CLAIMS_POOL: 0}), False),
        (pf(PF1), False),
    ],
    ids=["ready", "link down", "waits", "no VFs", "annotation"],
)
def test_pf_that_is_left_out_on_purpose_is_not_missed(tmp_path: Path, second: PfReport, *, missed: bool):
    found = found_by_doctor(tmp_path, for_claims(PF0), second)
    assert ("claims-not-published" in found) is missed, found


def test_pf_whose_vfs_others_have_is_not_missed(tmp_path: Path):
    taken = tuple(
        ForeignVf(vf=at, why="held", min_tx_rate=0, max_tx_rate=0, pool=CLAIMS_POOL) for at in range(4)
    )
    second = msgspec.structs.replace(for_claims(PF1), foreign=taken)
    assert "claims-not-published" not in found_by_doctor(tmp_path, for_claims(PF0), second)


def test_problem_of_a_pf_is_shown_with_those_of_its_node(tmp_path: Path):
    why = "PF eth1: 5000 Mb/s are reserved, and its link has 1000 Mb/s now"
    assert found_by_doctor(tmp_path, pf(PF0), pf(PF1, problems=(why,)))["nodes-problem"] == why
    assert "nodes-problem" not in found_by_doctor(tmp_path, pf(PF0))


def pod(name: str, scheduler: str, **spec: Any) -> Json:
    entry = {"name": "net", "resourceClaimName": name}
    spec = {"schedulerName": scheduler, "resourceClaims": [entry], "containers": [], **spec}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}


def test_schedulers_are_those_of_bound_pods(tmp_path: Path):
    claims = tuple(claim(devices(request()), name) for name in ("a", "b", "c"))
    bound = (pod("a", "one", nodeName="w1"), pod("b", "two", nodeName="w1"))
    found = found_by_doctor(tmp_path, for_claims(PF0), pods=bound, claims=claims)
    assert "one (1), two (1)" in found["claims-schedulers-unknown"]
    waiting = (bound[0], pod("c", "of-a-tenant"))
    assert "claims-schedulers-unknown" not in found_by_doctor(
        tmp_path, for_claims(PF0), pods=waiting, claims=claims
    )


@pytest.mark.parametrize(
    ("phase", "annotations", "expected"),
    [
        ("Running", {}, {}),
        ("Running", {CAPS: "{}", STATUS: caps_status("programmed", "{}")}, {}),
        (
            "Running",
            {CAPS: "[]", STATUS: caps_status("refused", "[]", "interface a: no")},
            {"claims-caps-refused": "keeps its caps: interface a: no"},
        ),
        ("Running", {CAPS: "{}"}, {"claims-caps-undecided": "w1 has not decided on its caps"}),
        (
            "Running",
            {CAPS: "{}", STATUS: caps_status("refused", "[]", "interface a: no")},
            {"claims-caps-undecided": "w1 has not decided on its caps"},
        ),
        ("Pending", {CAPS: "{}"}, {}),
    ],
)
def test_caps_that_are_not_in_force_are_found(
    tmp_path: Path, phase: str, annotations: Json, expected: dict[str, str]
):
    document = pod("a", "one", nodeName="w1") | {"status": {"phase": phase}}
    document["metadata"] |= {"annotations": annotations}
    found = found_by_doctor(
        tmp_path, for_claims(PF0), pods=(document,), claims=(claim(devices(request()), "a"),)
    )
    assert {name: text for name, text in found.items() if name.startswith("claims-caps")} == expected


def test_caps_that_were_written_just_now_are_not_late(tmp_path: Path):
    written = {
        "time": datetime.now(UTC).isoformat(),
        "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{CAPS}": {}}}},
    }
    document = pod("a", "one", nodeName="w1") | {"status": {"phase": "Running"}}
    document["metadata"] |= {"annotations": {CAPS: "{}"}, "managedFields": [written]}
    found = found_by_doctor(
        tmp_path, for_claims(PF0), pods=(document,), claims=(claim(devices(request()), "a"),)
    )
    assert "claims-caps-undecided" not in found
    assert "claims-ok" in found


def test_claim_that_cannot_be_read_leaves_the_others_counted(tmp_path: Path):
    claims = (claim(devices(request()), "a"), claim(devices(request(count="many")), "b"))
    pods = (pod("a", "one", nodeName="w1"), pod("b", "two", nodeName="w1"))
    found = found_by_doctor(tmp_path, for_claims(PF0), pods=pods, claims=claims)
    assert found["claims-unread"].startswith(
        "not counted: resourceclaim default/b: Expected `int`, got `str`"
    )
    assert "claims-ok" not in found
    assert "not-looked-at" not in found


def test_extender_is_needed_for_annotations_alone(tmp_path: Path):
    found = found_by_doctor(tmp_path, for_claims(PF0))
    assert {"extender-not-needed", "scheduler-not-needed"} <= found.keys()
    assert not {"extender-no-pod", "extender-not-asked", "scheduler-not-seen"} & found.keys()
    assert "extender-no-pod" in found_by_doctor(tmp_path, for_claims(PF0), pf(PF1))
    annotated = pod("a", "one")
    annotated["metadata"]["annotations"] = {"rdma_interfaces_required": "[{}]"}
    assert "extender-no-pod" in found_by_doctor(tmp_path, for_claims(PF0), pods=(annotated,))
