"""Findings on ResourceClaims, beside the table of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from doctor.cases.claims import PACKING, claims, claims_with
from k8s_rdma.doctor.cluster.claims import ClaimFacts, check_claims
from k8s_rdma.doctor.cluster.scheduler import Profile, SchedulerFile

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def ids_of(found: list[Finding]) -> set[str]:
    return {each.id for each in found}


def test_profiles_of_one_kube_scheduler_are_one_scheduler():
    schedulers = {"default-scheduler": 3, "second": 1}
    profiles = [Profile(name=name, has_extender=False, location="a.yaml") for name in schedulers]
    assert ids_of(claims(schedulers=schedulers, profiles=profiles)) == {"claims-ok"}
    assert "claims-two-schedulers" in ids_of(claims(schedulers=schedulers, profiles=profiles[:1]))
    elsewhere = [profiles[0], replace(profiles[1], location="b.yaml")]
    assert "claims-two-schedulers" in ids_of(claims(schedulers=schedulers, profiles=elsewhere))
    assert ids_of(claims(schedulers=schedulers)) == {"claims-ok", "claims-schedulers-unknown"}


def test_only_profiles_that_schedule_pods_with_claims_are_judged():
    other = "kind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: other}]"
    assert ids_of(claims_with(other)) == {"claims-ok"}
    file = SchedulerFile(location="a.yaml", text=other)
    found = ids_of(claims(files=(file,), schedulers={"other": 1}))
    assert found == {"claims-ok", "claims-least-allocated", "claims-filter-timeout"}


@pytest.mark.parametrize(("timeout", "long"), [("1s", False), ("500ms", False), ("2s", True), ("0", True)])
def test_timeout_of_a_filter_is_long_above_a_second_or_without_an_end(timeout: str, *, long: bool):
    text = PACKING.replace("filterTimeout: 1s", f"filterTimeout: {timeout}")
    assert ("claims-filter-timeout" in ids_of(claims_with(text))) is long


def test_cluster_without_claims_is_in_order_whatever_its_api():
    [found] = check_claims(ClaimFacts(served=False))
    assert found.id == "claims-ok"
