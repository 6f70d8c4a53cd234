"""Claims on a node: whatever kube-scheduler allocates, no PF has more reserved than its link."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.node_claims import RULES, W1, allocated, for_claims
from factories import PF0, PF1, hardware, interface, pf_state, pod, receipt
from k8s_rdma.core.allocation import used_locally
from k8s_rdma.core.claims import AllocatedClaim, claim_pfs, judge, offers
from k8s_rdma.core.ledger import ClaimUid, Ledger, LedgerClaim
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.round_robin import RoundRobin, effective_mins
from k8s_rdma.errors import LedgerError, Reason

if TYPE_CHECKING:
    from k8s_rdma.core.claims import ClaimsOffer
    from k8s_rdma.core.kernel import Hardware

WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def prepared_in(claim: AllocatedClaim, found: Hardware, ledger: Ledger) -> Ledger:
    judged = judge(claim, W1, found, ledger)
    assert isinstance(judged, LedgerClaim), judged
    return ledger.with_claim(judged)


CLAIMS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.booleans(),
        st.lists(st.tuples(st.sampled_from([PF0, PF1]), st.integers(0, 700)), min_size=1, max_size=4),
    ),
    max_size=20,
)


@pytest.mark.parametrize("rates", [None, WEIGHTS], ids=["rates", "weights"])
@given(CLAIMS)
def test_no_pf_has_more_reserved_than_its_link_whatever_is_allocated(
    rates: RateAbility | None, claims: list[tuple[int, bool, list[tuple[str, int]]]]
) -> None:
    found = for_claims(hardware())
    if rates is not None:
        found = replace(found, pfs=tuple(replace(pf, rates=rates) for pf in found.pfs))
    ledger, inventory = Ledger(), found.inventory(W1)
    for number, ends, interfaces in claims:
        uid = ClaimUid(f"c{number}")
        if ends:
            ledger = ledger.without_claim(uid)
            continue
        judged = judge(allocated(uid, *interfaces), W1, found, ledger)
        if isinstance(judged, Rejection):
            assert judged.message
            continue
        ledger = ledger.with_claim(judged)
        used = used_locally(found, ledger)
        for pf in inventory.pfs:
            on_pf = used.get(pf.pci, NOTHING_USED)
            assert on_pf.mbps <= (pf.link_mbps or 0)
            round_robin = RoundRobin.for_pf(pf, on_pf)
            assert round_robin is None or round_robin.load().is_within_limit


def test_rejection_reports_the_shortage_of_every_pf() -> None:
    found = for_claims(hardware())
    ledger = prepared_in(allocated("c1", (PF0, 800), (PF1, 300)), found, Ledger())
    judged = judge(allocated("c2", (PF0, 300), (PF1, 800)), W1, found, ledger)
    assert isinstance(judged, Rejection)
    assert judged.reason is Reason.INSUFFICIENT
    assert judged.message == (
        "PF enp3s0f0: the claim needs 300 Mb/s; 200 of 1000 are unreserved; "
        "PF enp3s0f1: the claim needs 800 Mb/s; 700 of 1000 are unreserved"
    )


def test_link_that_is_down_takes_no_reservation() -> None:
    found = for_claims(hardware(pf_state(PF0, link_mbps=None)))
    judged = judge(allocated("c1", (PF0, 1)), W1, found, Ledger())
    assert isinstance(judged, Rejection)
    assert "its link speed is unknown (link down?)" in judged.message
    assert isinstance(judge(allocated("c1", (PF0, 0)), W1, found, Ledger()), LedgerClaim)


def test_foreign_vf_counts_and_is_not_offered() -> None:
    pf = pf_state(PF0)
    found = for_claims(hardware(replace(pf, vfs=(replace(pf.vfs[0], min_tx_rate_mbps=400), *pf.vfs[1:]))))
    [offer] = offers(found, Ledger(), {}, RULES)
    assert (offer.mbps, offer.vfs) == (600, 3)
    judged = judge(allocated("c1", (PF0, 700)), W1, found, Ledger())
    assert isinstance(judged, Rejection)
    assert "600 of 1000 are unreserved" in judged.message


def test_pf_without_vfs_or_a_known_speed_is_not_offered() -> None:
    dark = pf_state(PF0, link_mbps=None)
    found = for_claims(hardware(dark, pf_state(PF1, vfs=0)))
    assert offers(found, Ledger(), {}, RULES) == ()
    [offer] = offers(found, Ledger(), {PF0: 1_000}, RULES)
    assert (offer.mbps, offer.link_up) == (1_000, False)


LINKS = st.sampled_from([10_000, 25_000, 40_000, 100_000, 400_000])


def of_weights(vfs: int, link_mbps: int) -> Hardware:
    return for_claims(hardware(replace(pf_state(PF0, vfs=vfs, link_mbps=link_mbps), rates=WEIGHTS)))


@pytest.mark.parametrize(("vfs", "mbps"), [(1, 100_000), (8, 93_899), (16, 88_949), (63, 82_804)])
def test_weights_are_offered_as_far_as_any_mix_of_reservations_is_kept(vfs: int, mbps: int) -> None:
    [offer] = offers(of_weights(vfs, 100_000), Ledger(), {}, RULES)
    assert (offer.mbps, offer.least_mbps) == (mbps, 1_000)


def admitted(mins: list[int], offer: ClaimsOffer) -> list[int]:
    """The reservations that kube-scheduler makes of requests, in order, as far as their sum goes."""
    mix: list[int] = []
    for mbps in mins:
        consumed = max(mbps, offer.least_mbps)
        if len(mix) < offer.vfs and sum(mix) + consumed <= offer.mbps:
            mix.append(consumed)
    return mix


HOSTILE = st.builds(
    lambda largest, others, last: [largest, *others, last],
    st.integers(0, 1_000),
    st.lists(st.sampled_from([0, 10, 11, 20, 21]) | st.integers(0, 100), max_size=99),
    st.integers(0, 1_000),
)
"""Thousandths of the link: one that may be large, and many that may be just above a step of it."""


@given(HOSTILE, LINKS, st.integers(1, 127))
@example([499, *[0] * 99, 0], 100_000, 63)
@example([19, *[0] * 99, 0], 10_000, 63)
def test_agent_takes_every_mix_that_an_offer_of_weights_admits(
    thousandths: list[int], link: int, vfs: int
) -> None:
    found = of_weights(vfs, link)
    for offer in offers(found, Ledger(), {}, RULES):
        mix = admitted([link * part // 1_000 for part in thousandths], offer)
        claim = allocated("c", *((PF0, mbps) for mbps in mix))
        judged = judge(claim, W1, found, Ledger())
        assert isinstance(judged, LedgerClaim), judged
        rates = effective_mins(mix, link, 100)
        assert all(rate >= least for rate, least in zip(rates, mix, strict=True))


MIX = st.lists(st.sampled_from([0, 1_000, 60_000, 95_000]) | st.integers(0, 95_000), max_size=24)


@given(MIX)
@example([95_000, *[0] * 6])
def test_mix_beyond_an_offer_of_weights_is_refused_only_if_a_vf_would_fall_short(mins: list[int]) -> None:
    """As another scheduler gives it away: 95 % beside six VFs without a reservation has 100 of 106 shares."""
    link, found = 100_000, of_weights(24, 100_000)
    ledger, held = Ledger(), []
    for number, mbps in enumerate(mins):
        mix = [*held, mbps]
        judged = judge(allocated(f"c{number}", (PF0, mbps)), W1, found, ledger)
        rates = effective_mins(mix, link, 100)
        short = any(rate < least for rate, least in zip(rates, mix, strict=True))
        assert isinstance(judged, Rejection) == (short or sum(mix) > link)
        if isinstance(judged, LedgerClaim):
            ledger, held = ledger.with_claim(judged), mix


def test_device_is_named_after_its_netdev_or_by_its_address() -> None:
    odd = replace(pf_state(PF1), name="Eth.1")
    assert set(claim_pfs(for_claims(hardware(pf_state(PF0), odd)))) == {"enp3s0f0", "pci-0000-03-00-1"}


def test_pf_with_vfs_of_annotations_waits_with_a_problem() -> None:
    ledger = Ledger().with_receipt(receipt("a", interface(PF0, 0)))
    found = for_claims(hardware(), ledger)
    assert set(claim_pfs(found)) == {"enp3s0f1"}
    assert found.problems == (
        "PF enp3s0f0: hardware.pfs[].use: claims waits until no pod has VFs of it by annotation",
    )
    assert not any(pf.problems for pf in found.pfs)


def test_ledger_refuses_a_prepared_vf_to_others() -> None:
    found = for_claims(hardware())
    ledger = prepared_in(allocated("c1", (PF0, 0)), found, Ledger())
    with pytest.raises(LedgerError, match="is prepared for claim default/c1, cannot go to container b"):
        ledger.with_receipt(receipt("b", interface(PF0, 0), pod=pod("q")))
    ledger.with_receipt(receipt("b", interface(PF0, 0)))
    taken = replace(ledger.claims[ClaimUid("c1")], uid=ClaimUid("c2"))
    with pytest.raises(LedgerError, match="is in use, cannot be prepared for claim default/c1"):
        ledger.with_claim(taken)


def test_devices_of_one_request_are_numbered() -> None:
    found = for_claims(hardware())
    claim = allocated("c1", (PF0, 0), (PF1, 0), (PF0, 0))
    first, second, third = claim.interfaces
    alike = (replace(first, request="x"), replace(second, request="x"), replace(third, request="y/z"))
    judged = judge(replace(claim, interfaces=alike), W1, found, Ledger())
    assert isinstance(judged, LedgerClaim)
    assert judged.device_names() == ("c1.x.1", "c1.x.2", "c1.y.z")
