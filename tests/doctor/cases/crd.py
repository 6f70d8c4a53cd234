"""Facts of `crd`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from doctor.cases.scheduler import ROOT
from k8s_rdma.doctor.cluster.crd import CrdFacts, check_crd

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


CRD = CrdFacts(
    found=yaml.safe_load((ROOT / "deploy" / "crds" / "rdmanodes.yaml").read_text()),
    expected=frozenset({"generation", "pfs"}),
    needed=True,
)


def crd(**more: Any) -> list[Finding]:
    return list(check_crd(replace(CRD, **more)))


IN_ORDER = crd()

CASES = {
    "crd-missing": crd(found=None),
    "crd-unused": crd(found=None, needed=False),
    "crd-version": crd(found={"spec": {"versions": [{"name": "v1", "served": True}]}}),
    "crd-fields": crd(expected=frozenset({"generation", "rails"})),
}
