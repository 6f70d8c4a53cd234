"""Sums of both ways on a PF while its configuration, its link and its ledger change under them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.node_claims import W1, allocated
from core.test_claims import WEIGHTS
from core.test_split_pfs import annotated, published, without_pod
from factories import PF0, hardware, pf_state, receipt
from k8s_rdma.core.allocation import mbps_by_claims, used_locally, used_on_node
from k8s_rdma.core.claims import judge, offers, prepared_interfaces, with_uses
from k8s_rdma.core.ledger import ClaimUid, Ledger, LedgerClaim
from k8s_rdma.core.pf_selection import ClaimsPart, PfRule
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.types import PfUse
from k8s_rdma.extender.node_source import facts_of_status

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.rate_ability import RateAbility

LINK, VFS = 1000, 8

RULES = st.one_of(
    st.just(PfRule()),
    st.just(PfRule(use=PfUse.CLAIMS)),
    *[
        st.builds(ClaimsPart, vfs=st.sampled_from([2, 4, 9]), mbps=st.sampled_from([100, 400, 1200])).map(
            lambda part: PfRule(claims=part)
        )
    ]
    * 2,
)
CHANGES = st.one_of(
    st.tuples(st.just("configure"), RULES),
    st.tuples(st.just("link"), st.sampled_from([None, 300, 700, LINK])),
    st.tuples(st.just("rebuild"), st.none()),
    *[
        st.tuples(st.just(kind), st.tuples(st.integers(0, 3), st.sampled_from([0, 50, 200, 400, 700])))
        for kind in ("prepare", "attach", "unprepare", "add", "delete")
    ],
)


def part(mbps: int) -> tuple[str, PfRule]:
    return "configure", PfRule(claims=ClaimsPart(vfs=4, mbps=mbps))


class World:
    """A node with one PF. rule, link_mbps: as they are now."""

    def __init__(self, rates: RateAbility | None) -> None:
        self.rates = rates
        self.rule, self.link_mbps = PfRule(), LINK
        self.ledger = Ledger()

    @property
    def hardware(self) -> Hardware:
        pf = pf_state(PF0, vfs=VFS, link_mbps=self.link_mbps)
        pf = pf if self.rates is None else replace(pf, rates=self.rates)
        return with_uses(hardware(pf), (self.rule,), self.ledger)

    def change(self, kind: str, value: object) -> None:
        """Make a change. Admitted reservations fit the link of that time."""
        match kind, value:
            case "configure", PfRule():
                self.rule = value
            case "link", link_mbps:
                self.link_mbps = link_mbps
            case "rebuild", _:
                self.rebuild()
            case _, (number, mbps):
                getattr(self, kind)(f"{number}", mbps)

    def prepare(self, name: str, mbps: int) -> None:
        judged = judge(allocated(f"c{name}", (PF0, mbps), name=f"c{name}"), W1, self.hardware, self.ledger)
        if isinstance(judged, LedgerClaim) and judged.uid not in self.ledger.claims:
            self.admit(self.ledger.with_claim(judged), mbps)

    def attach(self, name: str, _: int) -> None:
        claim = self.ledger.claims.get(ClaimUid(f"c{name}"))
        if claim is None:
            return
        named = [(interface, f"rdma{at}", at) for at, interface in enumerate(claim.interfaces)]
        interfaces = prepared_interfaces(named, W1, self.hardware, self.ledger)
        assert not isinstance(interfaces, Rejection)
        before = used_locally(self.hardware, self.ledger)
        self.ledger = self.ledger.with_receipt(replace(receipt(f"c{name}", *interfaces), pod=claim.pod))
        assert used_locally(self.hardware, self.ledger) == before

    def unprepare(self, name: str, _: int) -> None:
        self.ledger = without_pod(self.ledger, f"c{name}").without_claim(ClaimUid(f"c{name}"))

    def add(self, name: str, mbps: int) -> None:
        self.delete(name, mbps)
        after = annotated(f"p{name}", mbps, self.hardware, self.ledger)
        if isinstance(after, Ledger):
            self.admit(after, mbps)

    def delete(self, name: str, _: int) -> None:
        self.ledger = without_pod(self.ledger, f"p{name}")

    def rebuild(self) -> None:
        """As `agent.rebuild_ledger` does: claims first."""
        rebuilt = Ledger()
        for claim in self.ledger.claims.values():
            rebuilt = rebuilt.with_claim(claim)
        for held in self.ledger.receipts.values():
            rebuilt = rebuilt.with_receipt(held)
        assert rebuilt == self.ledger

    def admit(self, ledger: Ledger, mbps: int) -> None:
        self.ledger = ledger
        used = used_locally(self.hardware, ledger).get(PF0, NOTHING_USED)
        assert not mbps or used.mbps <= (self.link_mbps or 0)

    def check(self) -> None:
        """Both schedulers together may give away no more than there is."""
        found = self.hardware
        used = used_locally(found, self.ledger).get(PF0, NOTHING_USED)
        in_use = {vf.index for vf in (*self.ledger.holders(), *self.ledger.prepared_vfs())}
        free_mbps, free_vfs = max(0, (self.link_mbps or 0) - used.mbps), VFS - len(in_use)
        by_annotation = self.free_by_annotation(found)
        by_claim = self.free_by_claim(found)
        if self.link_mbps is not None:
            assert by_annotation[0] + by_claim[0] <= free_mbps
        assert by_annotation[1] + by_claim[1] <= free_vfs

    def free_by_annotation(self, found: Hardware) -> tuple[int, int]:
        """Mb/s and VFs that an extender finds free."""
        facts = facts_of_status(published(found, self.ledger), W1)
        used = used_on_node(
            reported=facts.reported, foreign=facts.foreign, promised={}, inventory=facts.inventory
        ).get(PF0, NOTHING_USED)
        [pf] = facts.inventory.pfs or [None]
        vfs = max(0, pf.capacity_vfs - used.vfs) if pf else 0
        return max(0, (pf.link_mbps or 0) - used.mbps) if pf and vfs else 0, vfs

    def free_by_claim(self, found: Hardware) -> tuple[int, int]:
        """Mb/s and VFs that kube-scheduler finds free: it subtracts the claims that there are."""
        used = mbps_by_claims(used_locally(found, self.ledger).get(PF0, NOTHING_USED))
        [offer] = offers(found, self.ledger, {}, (self.rule,)) or [None]
        if offer is None:
            return 0, 0
        vfs = max(0, offer.vfs - len(self.ledger.prepared_vfs()))
        return (max(0, offer.mbps - used) if vfs else 0), vfs


@pytest.mark.parametrize("rates", [None, WEIGHTS], ids=["rates", "weights"])
@given(st.lists(CHANGES, max_size=40))
@example([part(400), ("prepare", (1, 400)), part(100)])
@example([part(400), ("add", (1, 400)), ("prepare", (1, 400)), part(1200), ("prepare", (2, 200))])
@example([part(400), ("add", (1, 400)), ("link", 700), ("prepare", (1, 400)), ("prepare", (2, 200))])
@example([part(400), ("add", (1, 400)), ("prepare", (1, 50)), ("configure", PfRule(use=PfUse.CLAIMS))])
def test_no_vf_or_rate_is_given_twice_whatever_changes(
    rates: RateAbility | None, changes: list[tuple[str, object]]
) -> None:
    world = World(rates)
    for kind, value in changes:
        world.change(kind, value)
        world.check()
