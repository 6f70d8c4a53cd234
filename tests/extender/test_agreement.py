"""What the extender concludes from a report is what the agent that wrote it would decide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.allocation import choose_vfs, decide, used_here
from k8s_rdma.core.allocation import given as given_to_pod
from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.inventory import Generation
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.placement import Placement, place
from k8s_rdma.core.rates import EVERY_RATE, NO_RATE, Enforce, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.reservation import used_on_node
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.facts import facts_of
from k8s_rdma.wire.node_report import node_report
from k8s_rdma.wire.rest import decode_report, encode_report

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

W1 = NodeName("w1")
COARSE = RateAbility(min=RateRange(step=50, smallest=50, largest=900), max=RateRange(), needs_link=True)
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)
PFS = st.builds(
    lambda pci, rates, enforce, link, driver: pf_state(
        pci, vfs=6, rates=rates, enforce=enforce, link_mbps=link, driver=driver
    ),
    st.just(PF0),
    st.sampled_from([EVERY_RATE, NO_RATE, COARSE, WEIGHTS]),
    st.sampled_from(Enforce),
    st.sampled_from([None, 1000, 1000]),
    st.sampled_from(["ice", "mlx5_core"]),
)
ASKED = st.lists(
    st.builds(
        InterfaceRequest,
        min_tx_rate_mbps=st.sampled_from([0, 10, 49, 250, 499, 500]),
        enforce=st.sampled_from([Enforce.AUTO, Enforce.AUTO, Enforce.HARDWARE]),
    ),
    min_size=1,
    max_size=3,
).map(lambda drawn: Request(tuple(drawn)))


def as_used(seen: Hardware, pods: list[Request]) -> tuple[Hardware, Ledger]:
    """The node after these pods were given what it has."""
    ledger = Ledger()
    for number, request in enumerate(pods):
        found = decide(node=W1, request=request, promised=None, hardware=seen, ledger=ledger)
        if not isinstance(found, Placement):
            continue
        names = tuple(f"rdma{at}" for at in range(len(request.interfaces)))
        chosen = choose_vfs(found, seen, ledger, names)
        assert isinstance(chosen, tuple)
        held = receipt(f"c{number}", *chosen)
        ledger = ledger.with_receipt(replace(held, pod=replace(held.pod, uid=f"uid-{number}")))
        seen = given_to_pod(seen, chosen)
    return seen, ledger


@given(PFS, PFS, st.lists(ASKED, max_size=4), st.sampled_from([0, 100, 333]), ASKED)
def test_extender_decides_as_the_agent_does(first, second, pods, foreign, request):
    second = replace(second, pci=PF1, name="enp3s0f1", vfs=pf_state(PF1, vfs=6).vfs)
    first = replace(first, vfs=(*first.vfs[:5], replace(first.vfs[5], min_tx_rate_mbps=foreign)))
    seen, ledger = as_used(hardware(first, second), pods)
    told = node_report(node=W1, generation=Generation("e", 1), hardware=seen, ledger=ledger)
    facts = facts_of(decode_report(encode_report(told)), W1)
    used = used_on_node(
        reported=facts.reported, foreign=facts.foreign, promised={}, inventory=facts.inventory
    )
    assert facts.inventory == seen.inventory(W1)
    assert used == used_here(seen, ledger)
    by_agent = decide(node=W1, request=request, promised=None, hardware=seen, ledger=ledger)
    assert place(request, facts.inventory, used) == by_agent


def test_report_that_says_nothing_of_rates_is_no_report():
    told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=Ledger())
    with pytest.raises(MalformedError, match="rates"):
        decode_report(encode_report(told).replace(b'"rates":', b'"said":'))


def test_reservation_counts_as_programmed_where_that_is_more():
    held = replace(interface(PF0, 0, minimum=510), set_min_tx_rate_mbps=550)
    ledger = Ledger().with_receipt(receipt("c1", held))
    told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger)
    [placed] = next(iter(facts_of(told, W1).reported.values()))
    assert placed.min_tx_rate_mbps == 550
