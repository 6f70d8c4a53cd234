"""ResourceClaims that doctor collects in a cluster, as an API server has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from claim_cases import claim, devices, request
from doctor.cluster_findings import for_claims, found_by_doctor, pod, renewed_ago
from extender.node_server import PF0, PF1, pf
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.rates_status import RatesState, RatesStatus, digest, encode_rates_status
from k8s_rdma.wire.report import ForeignVf
from node_objects import skewed_node

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.wire.report import PfReport

    Json = dict[str, Any]

CAPS, STATUS = CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION


def caps_status(state: RatesState, text: str, message: str = "") -> str:
    return encode_rates_status(RatesStatus(state=state, request=digest(text), message=message))


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
