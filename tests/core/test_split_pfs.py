"""PFs of which a part is for ResourceClaims: neither way ever gets the other's part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.node_claims import W1, allocated
from core.test_claims import WEIGHTS, prepared_in
from factories import PF0, hardware, interface, pf_state, pod, receipt
from k8s_rdma.core.allocation import choose_vfs, decide, mbps_by_claims, used_locally
from k8s_rdma.core.claims import judge, offers, with_uses
from k8s_rdma.core.inventory import CLAIMS_POOL, Generation
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, ClaimUid, Ledger, LedgerClaim
from k8s_rdma.core.pf_selection import ClaimsPart, PfRule
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.round_robin import RoundRobin
from k8s_rdma.core.types import ContainerId, PfUse
from k8s_rdma.errors import Reason
from k8s_rdma.wire.rdma_node import RdmaNodeStatus, status_of
from k8s_rdma.wire.report_builder import node_report

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

LINK, VFS = 1000, 8
PART = ClaimsPart(vfs=3, mbps=400)
EMPTY = Ledger()


def split(ledger: Ledger = EMPTY, part: ClaimsPart | None = PART, **changes: object) -> Hardware:
    """Return a PF with that part for claims, if any. changes: of the PF."""
    pf = replace(pf_state(PF0, vfs=VFS, link_mbps=LINK), **changes)
    return with_uses(hardware(pf), (PfRule(claims=part),), ledger)


def offered(found: Hardware, ledger: Ledger = EMPTY, part: ClaimsPart = PART) -> list[tuple[int, int]]:
    """Return the VFs and Mb/s that a slice shows."""
    return [(offer.vfs, offer.mbps) for offer in offers(found, ledger, {}, (PfRule(claims=part),))]


def published(found: Hardware, ledger: Ledger = EMPTY) -> RdmaNodeStatus:
    """Return the status that the extender sees."""
    return status_of(node_report(node=W1, generation=Generation("e", 1), hardware=found, ledger=ledger))


def annotated(name: str, mbps: int, found: Hardware, ledger: Ledger) -> Ledger | Rejection:
    """The ledger with a pod that has one interface by annotation."""
    request = Request((InterfaceRequest(min_tx_rate_mbps=mbps),))
    placement = decide(node=W1, request=request, promised=None, hardware=found, ledger=ledger)
    if isinstance(placement, Rejection):
        return placement
    chosen = choose_vfs(placement, found, ledger, ["rdma0"])
    return chosen if isinstance(chosen, Rejection) else with_pod(ledger, name, *chosen)


def with_pod(ledger: Ledger, name: str, *interfaces: AllocatedInterface) -> Ledger:
    return ledger.with_receipt(replace(receipt(name, *interfaces), pod=pod(name)))


def without_pod(ledger: Ledger, name: str) -> Ledger:
    return ledger.without_attachments(Attachment("net", ContainerId(name), "eth0"))


def pools(found: Hardware) -> list[str]:
    [pf] = found.pfs
    return [vf.pool for vf in pf.vfs]


def problems(found: Hardware) -> list[str]:
    [pf] = found.pfs
    return [*found.problems, *pf.problems]


def test_vfs_of_highest_index_are_for_claims() -> None:
    found = split()
    assert pools(found) == [""] * 5 + [CLAIMS_POOL] * 3
    assert offered(found) == [(3, 400)]
    [pf] = published(found).pfs
    assert (pf.capacity_vfs, pf.link_mbps) == (5, 600)
    assert problems(found) == []


@pytest.mark.parametrize("rates", [None, WEIGHTS], ids=["rates", "weights"])
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 450)), max_size=40))
def test_claims_and_annotations_stay_within_their_parts_of_a_split_pf(
    rates, changes: list[tuple[bool, bool, int, int]]
) -> None:
    more = {} if rates is None else {"rates": rates}
    ledger = EMPTY
    for by_claim, ends, number, mbps in changes:
        found, name = split(ledger, **more), f"{'c' if by_claim else 'p'}{number}"
        if by_claim:
            ledger = ledger.without_claim(ClaimUid(name))
            judged = judge(allocated(name, (PF0, mbps), name=name), W1, found, ledger)
            if not ends and isinstance(judged, LedgerClaim):
                ledger = ledger.with_claim(judged)
        else:
            ledger = without_pod(ledger, name)
            after = ledger if ends else annotated(name, mbps, found, ledger)
            ledger = ledger if isinstance(after, Rejection) else after
        check_parts(split(ledger, **more), ledger)


def check_parts(found: Hardware, ledger: Ledger) -> None:
    used = used_locally(found, ledger).get(PF0, NOTHING_USED)
    by_claims = mbps_by_claims(used)
    assert by_claims <= PART.mbps
    assert used.mbps - by_claims <= LINK - PART.mbps
    prepared = {vf.index for vf in ledger.prepared_vfs()}
    assert prepared <= {5, 6, 7}
    assert {vf.index for vf in ledger.holders()} <= {0, 1, 2, 3, 4}
    assert offered(found, ledger) == [(PART.vfs, PART.mbps)]
    status = published(found, ledger)
    [pf] = status.pfs
    assert (pf.capacity_vfs, pf.link_mbps) == (VFS - PART.vfs, LINK - PART.mbps)
    held = [interface for each in status.allocations for interface in each.interfaces]
    assert sum(each.vfs * each.min_mbps for each in held) == used.mbps - by_claims
    round_robin = RoundRobin.for_pf(found.inventory(W1).pfs[0], used)
    assert round_robin is None or round_robin.load().is_within_limit


def test_each_way_is_refused_beyond_its_part() -> None:
    found = split()
    ledger = prepared_in(allocated("c1", (PF0, 300)), found, EMPTY)
    judged = judge(allocated("c2", (PF0, 200)), W1, found, ledger)
    assert isinstance(judged, Rejection)
    assert judged.message == "PF enp3s0f0: the claim needs 200 Mb/s; 100 of 400 are unreserved"
    judged = judge(allocated("c2", (PF0, 401)), W1, found, ledger)
    assert isinstance(judged, Rejection)
    assert judged.reason is Reason.EXCEEDS_CAPACITY
    assert judged.message == "PF enp3s0f0: the claim needs 401 Mb/s; its part for claims has 400"
    assert isinstance(annotated("p", 600, found, ledger), Ledger)
    assert isinstance(annotated("p", 601, found, ledger), Rejection)


def test_interface_of_a_claim_leaves_the_published_link_as_it_is() -> None:
    found = split()
    claim = prepared_in(allocated("c1", (PF0, 300)), found, EMPTY)
    held = replace(interface(PF0, 5, minimum=300), pool=CLAIMS_POOL)
    ledger = claim.with_receipt(receipt("a", held))
    status = published(split(ledger), ledger)
    [allocation] = status.allocations
    assert [(each.pool, each.min_mbps) for each in allocation.interfaces] == [(CLAIMS_POOL, 0)]
    assert status.summary.bandwidth == "0.6/0.6Gb/s"


def test_foreign_vf_counts_in_the_part_it_is_of() -> None:
    pf = pf_state(PF0, vfs=VFS)
    vfs = [replace(vf, min_tx_rate_mbps=100) if vf.index in {0, 7} else vf for vf in pf.vfs]
    found = split(vfs=tuple(vfs))
    assert offered(found) == [(2, 300)]
    status = published(found)
    assert sum(use.vfs * use.min_mbps for use in status.pfs[0].foreign) == 100
    assert isinstance(annotated("p", 500, found, EMPTY), Ledger)
    assert isinstance(annotated("p", 501, found, EMPTY), Rejection)


def test_part_that_is_larger_than_the_pf_is_all_of_it_with_a_problem() -> None:
    large = ClaimsPart(vfs=9, mbps=2000)
    found = split(part=large)
    assert offered(found, part=large) == [(8, 1000)]
    [pf] = published(found).pfs
    assert (pf.capacity_vfs, pf.link_mbps) == (0, 0)
    assert problems(found) == [
        "PF enp3s0f0: hardware.pfs[].claims.vfs: 9 is more than its 8 VFs",
        "PF enp3s0f0: hardware.pfs[].claims.mbps: 2000 is more than its link's 1000 Mb/s",
    ]


def test_slower_link_gives_no_bandwidth_twice() -> None:
    ledger = annotated("p", 600, split(), EMPTY)
    assert isinstance(ledger, Ledger)
    slow = split(ledger, link_mbps=700)
    assert offered(slow, ledger) == [(3, 100)]
    assert isinstance(judge(allocated("c", (PF0, 101)), W1, slow, ledger), Rejection)
    assert isinstance(judge(allocated("c", (PF0, 100)), W1, slow, ledger), LedgerClaim)
    assert isinstance(annotated("q", 1, slow, ledger), Rejection)
    assert [pf.link_mbps for pf in published(slow, ledger).pfs] == [300]
    assert [pf.link_mbps for pf in published(split(ledger, link_mbps=None), ledger).pfs] == [None]


def test_split_waits_for_annotations_on_the_vfs_of_claims() -> None:
    ledger = with_pod(EMPTY, "p", interface(PF0, 5))
    found = split(ledger)
    assert pools(found) == [""] * 8
    assert offered(found, ledger) == []
    [problem] = problems(found)
    assert problem == ("PF enp3s0f0: hardware.pfs[].claims waits until no pod has VFs of it by annotation")
    others = with_pod(EMPTY, "p", interface(PF0, 4))
    assert offered(split(others), others) == [(3, 400)]


def test_smaller_part_waits_for_claims_beyond_it() -> None:
    """Meanwhile no new pod comes by claim, and no pod gets the VFs by annotation."""
    ledger = prepared_in(allocated("c1", (PF0, 300)), split(), EMPTY)
    small = ClaimsPart(vfs=2, mbps=200)
    found = split(ledger, small)
    assert offered(found, ledger, small) == []
    assert pools(found) == [CLAIMS_POOL] * 8
    assert problems(found) == [
        "PF enp3s0f0: hardware.pfs[].claims waits until no ResourceClaim has VFs of it"
    ]
    assert offered(split(part=small), part=small) == [(2, 200)]


def test_pf_that_is_to_be_for_claims_alone_is_not_offered_while_it_waits() -> None:
    ledger = prepared_in(allocated("c1", (PF0, 300)), split(), EMPTY)
    ledger = with_pod(ledger, "p", interface(PF0, 0, minimum=100))
    rules = (PfRule(use=PfUse.CLAIMS),)
    waiting = with_uses(hardware(pf_state(PF0, vfs=VFS, link_mbps=LINK)), rules, ledger)
    assert offers(waiting, ledger, {}, rules) == ()
    ended = without_pod(ledger, "p")
    done = with_uses(hardware(pf_state(PF0, vfs=VFS, link_mbps=LINK)), rules, ended)
    assert [(offer.vfs, offer.mbps) for offer in offers(done, ended, {}, rules)] == [(8, 1000)]


def test_pf_for_claims_offers_the_rest_beside_its_exclusive_devices() -> None:
    vfs = (*pf_state(PF0, vfs=VFS - 1).vfs, replace(pf_state(PF0, vfs=VFS).vfs[-1], pool="example.com/rdma"))
    rules = (PfRule(use=PfUse.CLAIMS),)
    device = replace(interface(PF0, VFS - 1, minimum=300), pool="example.com/rdma")
    ledger = with_pod(EMPTY, "p", device)
    found = with_uses(hardware(replace(pf_state(PF0, link_mbps=LINK), vfs=vfs)), rules, ledger)
    assert [(offer.vfs, offer.mbps) for offer in offers(found, ledger, {}, rules)] == [(7, 700)]


def test_part_of_other_bandwidth_is_offered_as_far_as_it_is_there() -> None:
    ledger = annotated("p", 600, split(), EMPTY)
    assert isinstance(ledger, Ledger)
    ledger = prepared_in(allocated("c", (PF0, 400)), split(ledger), ledger)
    more, less = ClaimsPart(vfs=3, mbps=700), ClaimsPart(vfs=3, mbps=100)
    assert offered(split(ledger, more), ledger, more) == [(3, 400)]
    assert offered(split(ledger, less), ledger, less) == [(3, 100)]
    assert [pf.link_mbps for pf in published(split(ledger, less), ledger).pfs] == [600]


def test_exclusive_devices_are_of_neither_part() -> None:
    vfs = (*pf_state(PF0, vfs=VFS - 1).vfs, replace(pf_state(PF0, vfs=VFS).vfs[-1], pool="example.com/rdma"))
    found = split(vfs=vfs)
    assert pools(found) == [""] * 4 + [CLAIMS_POOL] * 3 + ["example.com/rdma"]
