"""Whether nodes' agents are alive: the extender's word before the Leases, and the Leases by two clocks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.node_liveness import NodeLiveness, read_liveness
from k8s_rdma.wire.node_lease import UNRENEWED, NodeLease
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"


def liveness(age_s: float, extender: Mapping[str, str] | None = None) -> NodeLiveness:
    """The Lease of w1, of generation e.7, was renewed so long ago, and the one of w2 never."""
    renewed = NodeLease(
        holder_identity="e.7", lease_duration_seconds=40, renew_time=NOW - timedelta(seconds=age_s)
    )
    leases = {"w1": renewed, "w2": NodeLease(holder_identity="e.7")}
    return NodeLiveness(leases=leases, now=NOW, stale_s=30, extender=extender)


@pytest.mark.parametrize(
    ("age_s", "skew_s", "why"),
    [
        (40, None, ""),
        (41, None, "its agent has not reported for 40 s"),
        (41, -1.0, ""),
        (40, 35.0, "its agent has not reported for 70 s"),
    ],
)
def test_node_is_refused_when_its_lease_is_older_than_its_duration_by_the_nodes_clock(
    age_s: float, skew_s: float | None, why: str
) -> None:
    assert liveness(age_s).why_refused("w1", "e.7", skew_s) == why


def test_node_is_refused_until_a_lease_confirms_its_generation() -> None:
    found = liveness(1)
    assert found.why_refused("w1", "e.8", None) == ""
    for node, generation in (("w1", "e.6"), ("w1", "f.7"), ("w2", "e.7"), ("w3", "e.7")):
        assert found.why_refused(node, generation, None) == UNRENEWED
    assert [found.has_lease(node) for node in ("w1", "w2", "w3")] == [True, False, False]


def test_word_of_the_extender_goes_before_the_leases() -> None:
    found = liveness(999, {"w1": "", "w2": "its state cannot be read"})
    assert found.why_refused("w1", "e.7", None) == ""
    assert found.why_refused("w2", "e.7", None) == "its state cannot be read"
    assert found.why_refused("w3", "e.7", None) == UNRENEWED
    assert [found.is_by_extender(node) for node in ("w1", "w2", "w3")] == [True, True, False]
    assert not liveness(1).is_by_extender("w1")


def test_leases_are_read_and_those_that_cannot_be_are_faults(tmp_path: Path) -> None:
    spec = {"holderIdentity": "e.7", "leaseDurationSeconds": 40, "renewTime": "2026-03-01T00:00:00.000000Z"}
    items = [
        {"metadata": {"name": "w1"}, "spec": spec},
        {"metadata": {"name": "w2"}},
        {"metadata": {"name": "w3"}, "spec": {**spec, "renewTime": "yesterday"}},
        {"metadata": {"name": "w4"}, "spec": "odd"},
    ]
    body = json.dumps({"items": items}).encode()
    with serving_objects({LEASES: body}, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        found = read_liveness(api, namespace="k8s-rdma", stale_s=30, extender=None)
        with pytest.raises(ApiRefusedError):
            read_liveness(api, namespace="../nodes", stale_s=30, extender=None)
    assert found.leases == {
        "w1": NodeLease(holder_identity="e.7", lease_duration_seconds=40, renew_time=NOW),
        "w2": NodeLease(),
    }
    assert [fault.partition(":")[0] for fault in found.faults] == ["Lease w3", "Lease w4"]
    assert (found.stale_s, found.extender) == (30, None)
