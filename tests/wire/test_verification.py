"""Reports of `k8s-rdma verify`: the data that they leave out, and how they are read."""

from __future__ import annotations

import pytest

from k8s_rdma.core.types import pci_address
from k8s_rdma.core.verification import Check, PfFacts, Result, TrafficKind, TrialOutcome
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.rdma_node import (
    ForeignUse,
    HeldInterfaces,
    Holder,
    PfStatus,
    PodAllocation,
    RdmaNodeStatus,
    Summary,
)
from k8s_rdma.wire.report import PfRates
from k8s_rdma.wire.verification import (
    VerificationReport,
    anonymous,
    card_report,
    decode_verification,
    encode_verification,
    pf_facts,
)

PF = PfFacts(
    name="enp1s0f0",
    pci=pci_address("0000:01:00.0"),
    driver="ice",
    vendor="8086:1592",
    link_mbps=100_000,
    free_mbps=0,
    holders=("team/secret",),
)
NAMES = {"enp1s0f0": "PF", "0000:01:00.0": "PF", "node-1.example": "NODE"}


def report(why: str) -> VerificationReport:
    outcome = TrialOutcome(
        check=Check.CAP,
        traffic=TrafficKind.TCP,
        rate_mbps=10_000,
        mbps=9_999.876,
        result=Result.FAIL,
        why=why,
    )
    return VerificationReport(
        version="1.0", kernel="6.1", cards=(card_report(PF, "same PF", [outcome], NAMES),)
    )


def test_report_is_read_as_it_was_written():
    made = report("more than the cap")
    assert decode_verification(encode_verification(made), "r.json") == made
    assert made.cards[0].checks[0].measured_mbps == 9_999.88


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("PF enp1s0f0 (0000:01:00.0) is full", "PF PF (PF) is full"),
        ("node-1.example: no", "NODE: no"),
        ("10.0.0.7 and fe80::1:2:3:4 and 02:00:00:00:00:01", "ADDRESS and ADDRESS and ADDRESS"),
        (
            "needs 1 interface of 600 Mb/s; best PF has 400 Mb/s",
            "needs 1 interface of 600 Mb/s; best PF has 400 Mb/s",
        ),
        ("enp1s0f01 is another", "enp1s0f01 is another"),
    ],
)
def test_reasons_are_shown_without_names_and_addresses(why, shown):
    assert anonymous(why, NAMES) == shown


def test_pf_has_left_the_vfs_that_are_not_held():
    status = RdmaNodeStatus(
        generation="e.1",
        summary=Summary(pfs=2, vfs="", bandwidth=""),
        pfs=(
            PfStatus(
                name="eth0",
                pci="0000:01:00.0",
                link_mbps=1000,
                capacity_vfs=8,
                rates=PfRates(),
                foreign=(ForeignUse(vfs=2, min_mbps=50), ForeignUse(vfs=1, min_mbps=10, pool="a.b/c")),
            ),
            PfStatus(name="claims", pci="0000:02:00.0", link_mbps=1000, rates=PfRates()),
        ),
        allocations=(
            PodAllocation(
                pod=Holder(namespace="team", name="p", uid="u"),
                interfaces=(HeldInterfaces(pf="0000:01:00.0", vfs=3, min_mbps=100),),
            ),
        ),
    )
    [pf] = pf_facts(status)
    assert (pf.name, pf.free_mbps, pf.holders) == ("eth0", 590, ("team/p",))


def test_report_has_no_names():
    text = encode_verification(report("PF enp1s0f0: 0000:01:00.0")).decode()
    assert not any(name in text for name in ("enp1s0f0", "0000:01", "secret"))


def test_document_that_is_no_report_names_the_field():
    with pytest.raises(MalformedError, match=r"r.json: .*\$.version"):
        decode_verification(b'{"version": 1, "kernel": "", "cards": []}', "r.json")
