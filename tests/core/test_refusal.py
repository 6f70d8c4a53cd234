"""The sentences of refusals: the needs, and the node's numbers against them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cards import FOUR, asks
from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import DEFAULT_BUDGET, Placement, Rejection, place
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility, RateRange
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.errors import Reason
from packing_oracle import NODE, inventory, pci, request
from placement_oracle import COARSE, REQUESTS, needy, nodes

if TYPE_CHECKING:
    from placement_oracle import Situation

TWO = ((100_000, 8), (100_000, 8))


def _refused(
    rates: list[int],
    pfs: tuple[tuple[int | None, int], ...],
    used: list[Used] | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Rejection:
    taken = {pci(at): there for at, there in enumerate(used or [])}
    found = place(request(*rates), inventory(*pfs), taken, budget=budget)
    assert isinstance(found, Rejection)
    return found


@pytest.mark.parametrize(
    ("rates", "pfs", "used", "reason", "message"),
    [
        pytest.param(
            [5000, 5000],
            (),
            [],
            Reason.NO_RDMA,
            "needs 2 interfaces of 5000 Mb/s; the node has no SR-IOV PF",
            id="no PF",
        ),
        pytest.param(
            [100_000] * 2,
            TWO,
            [Used(5, 50_000), Used(2, 70_000)],
            Reason.INSUFFICIENT,
            "needs 2 interfaces of 100000 Mb/s; best PF has 50000 Mb/s and 3 VFs free",
            id="one larger than any PF",
        ),
        pytest.param(
            [200_000, 5],
            TWO,
            [Used(8, 50_000), Used(1, 1)],
            Reason.EXCEEDS_CAPACITY,
            "needs an interface of 200000 Mb/s; best PF has 100000 Mb/s and 8 VFs when empty",
            id="one larger than any PF ever",
        ),
        pytest.param(
            [0, 0, 0],
            ((100_000, 4),),
            [Used(3, 0)],
            Reason.INSUFFICIENT,
            "needs 3 interfaces; 1 PF has 1 of 4 VFs free",
            id="VFs",
        ),
        pytest.param(
            [0] * 17,
            TWO,
            [],
            Reason.EXCEEDS_CAPACITY,
            "needs 17 interfaces; 2 PFs have 16 VFs when empty",
            id="VFs ever",
        ),
        pytest.param(
            [50_000, 40_000, 60_000],
            TWO,
            [Used(1, 60_000)],
            Reason.INSUFFICIENT,
            "needs 150000 Mb/s for 3 interfaces; "
            "2 PFs have 140000 of 200000 Mb/s unreserved and 15 of 16 VFs free",
            id="bandwidth in total",
        ),
        pytest.param(
            [50_001, 50_001, 50_001, 10, 0],
            TWO,
            [],
            Reason.EXCEEDS_CAPACITY,
            "needs 3 interfaces of 50001 Mb/s; "
            "2 PFs have 200000 Mb/s and 16 VFs when empty, room for 2 such interfaces",
            id="places",
        ),
        pytest.param(
            [50_002, 50_001, 50_003],
            ((100_000, 8), (100_000, 8), (100_000, 8)),
            [Used(1, 1), Used(1, 1), Used(1, 50_000)],
            Reason.INSUFFICIENT,
            "needs 3 interfaces of 50001 Mb/s or more; 3 PFs have 249998 of 300000 Mb/s unreserved "
            "and 21 of 24 VFs free, room for 2 such interfaces",
            id="places for several rates",
        ),
        pytest.param(
            [60, 40, 40, 40, 0],
            ((90, 8), (90, 8)),
            [],
            Reason.EXCEEDS_CAPACITY,
            "needs 5 interfaces, 4 of them of 40 to 60 Mb/s (180 Mb/s together); "
            "2 PFs have 180 Mb/s and 16 VFs when empty, but no arrangement of the interfaces fits",
            id="arrangement",
        ),
        pytest.param(
            [5000],
            ((None, 8), (10_000, 8)),
            [Used(), Used(9, 8000)],
            Reason.INSUFFICIENT,
            "needs 1 interface of 5000 Mb/s; best PF has 0 Mb/s and 8 VFs free; link speed of enp0s0 "
            "is unknown (link down?), only interfaces without a reservation fit there",
            id="link unknown",
        ),
    ],
)
def test_rejection_reports_needed_and_available_room(
    rates: list[int], pfs: tuple[tuple[int | None, int], ...], used: list[Used], reason: Reason, message: str
) -> None:
    found = _refused(rates, pfs, used)
    assert (found.reason, found.message) == (reason, message)


def test_rejection_gives_advice_when_the_search_ended_at_its_budget() -> None:
    found = _refused([40, 30, 30, 20, 20, 20], ((80, 8), (81, 8)), budget=5)
    assert found.reason is Reason.UNDECIDED
    assert found.message == (
        "needs 6 interfaces of 20 to 40 Mb/s (160 Mb/s together); 2 PFs have 161 of 161 Mb/s unreserved and "
        "16 of 16 VFs free; the search for an arrangement of 3 distinct rates ended at its work budget: "
        "fewer distinct rates (such as multiples of 1000 Mb/s), fewer interfaces or less bandwidth "
        "make it decidable"
    )


def test_rejection_is_insufficient_when_the_empty_node_cannot_be_decided_within_the_budget() -> None:
    """Refused as it is by a sum, while whether it fits the empty node takes a search."""
    rates, pfs = [40, 30, 30, 20, 20, 20], ((80, 8), (81, 8))
    used = [Used(1, 70), Used()]
    assert _refused(rates, pfs, used, budget=5).reason is Reason.INSUFFICIENT


@pytest.mark.parametrize("used", [[], [Used(8, 90_000), Used(8, 90_000)]])
def test_rejection_message_is_one_line_without_the_nodes_name(used: list[Used]) -> None:
    message = _refused([70_000] * 3, TWO, used).message
    assert "\n" not in message
    assert "w1" not in message


UNKNOWN_LINK = "link speed of a PF is unknown (link down?), only interfaces without a reservation fit there"

TASKS = needy() | st.tuples(REQUESTS, nodes())


@given(TASKS, st.sampled_from(PfPolicy))
def test_rejection_says_the_same_of_nodes_whose_pfs_differ_in_names_alone(
    task: tuple[Request, Situation], policy: PfPolicy
) -> None:
    asked, (node, used) = replace(task[0], policy=policy), task[1]
    renamed = Inventory(node=NODE, pfs=tuple(replace(pf, name=f"x-{pf.name}") for pf in node.pfs))
    if any(each.options.pf for each in asked.interfaces):
        return  # these ask for PFs by their names
    one, other = place(asked, node, used), place(asked, renamed, used)
    if isinstance(one, Rejection):
        assert isinstance(other, Rejection)
        assert one.reason is other.reason
        for detail in Detail:
            assert one.text(detail) == other.text(detail)
            assert not any(pf.name in one.text(detail) for pf in node.pfs)
        assert one.message.replace("enp", "x-enp") == other.message


@given(TASKS, st.sampled_from(PfPolicy))
def test_cause_has_no_number_but_those_of_the_request(
    task: tuple[Request, Situation], policy: PfPolicy
) -> None:
    asked, (node, used) = replace(task[0], policy=policy), task[1]
    found = place(asked, node, used)
    if not isinstance(found, Rejection):
        return
    of_the_request = {len(asked.interfaces)}
    for wanted in asked.interfaces:
        of_the_request |= {wanted.min_tx_rate_mbps, wanted.needs.mtu}
    of_the_request.add(sum(each.min_tx_rate_mbps > 0 for each in asked.interfaces))
    said = re.sub(r"not what pf selects \(.*?\)|802\.1\w+", "", found.cause)
    assert {int(number) for number in re.findall(r"\d+", said)} <= of_the_request


@pytest.mark.parametrize(
    ("rates", "pfs", "used", "cause"),
    [
        ([5, 5], (), [], "needs 2 interfaces of 5 Mb/s; the node has no SR-IOV PF"),
        ([0, 0], ((9, 1),), [], "needs 2 interfaces; too few VFs even when empty"),
        ([0], ((9, 1),), [Used(1, 0)], "needs 1 interface; too few VFs free"),
        ([8, 1], ((9, 4),), [Used(1, 2)], "needs 2 interfaces of 1 to 8 Mb/s; no PF has 8 Mb/s free"),
        ([5, 5], ((9, 4),), [], "needs 2 interfaces of 5 Mb/s; too little bandwidth even when empty"),
        (
            [5, 5, 5],
            ((9, 4), (9, 4)),
            [],
            "needs 3 interfaces of 5 Mb/s; no arrangement of the interfaces on its PFs fits, even when empty",
        ),
        (
            [5],
            ((None, 4), (9, 4)),
            [Used(), Used(1, 5)],
            f"needs 1 interface of 5 Mb/s; no PF has 5 Mb/s free; {UNKNOWN_LINK}",
        ),
    ],
)
def test_cause_names_the_shortage_without_the_amount_available(
    rates: list[int], pfs: tuple[tuple[int | None, int], ...], used: list[Used], cause: str
) -> None:
    assert _refused(rates, pfs, used).cause == cause


def test_cause_names_the_drivers_own_limits_once() -> None:
    node = inventory((100, 4), (100, 4))
    node = Inventory(node=NODE, pfs=tuple(replace(pf, mtu=1500 + at) for at, pf in enumerate(node.pfs)))
    wanted = Request((InterfaceRequest(options=InterfaceOptions(mtu=9000)),))
    found = place(wanted, node, {})
    assert isinstance(found, Rejection)
    assert found.numbers == (
        "needs 1 interface; 1 PF: its MTU is 1500, and mtu is 9000; 1 PF: its MTU is 1501, and mtu is 9000"
    )
    assert found.cause == "needs 1 interface; a PF: its MTU is below 9000"


def test_node_whose_pfs_are_for_claims_says_so() -> None:
    pf = Pf(name="enp1s0", pci=pci(1), capacity_vfs=0, link_mbps=1000, pools={CLAIMS_POOL: 8})
    found = place(request(5), Inventory.of_node(NODE, [pf]), {})
    assert isinstance(found, Rejection)
    assert (found.reason, found.message) == (
        Reason.NO_RDMA,
        "needs 1 interface of 5 Mb/s; its PFs are for claims",
    )


@pytest.mark.parametrize(
    ("asked", "used", "reason", "numbers", "cause"),
    [
        pytest.param(
            asks(PfPolicy.SPREAD_PFS, 50, 50, 50),
            {0: Used(8, 0), 1: Used(1, 51)},
            Reason.INSUFFICIENT,
            "policy spread-pfs: 3 interfaces of 50 Mb/s need 3 PFs; "
            "2 of 4 PFs have a free VF and enough bandwidth",
            "policy spread-pfs: needs 3 interfaces of 50 Mb/s; too few PFs have room for one",
            id="too few PFs free",
        ),
        pytest.param(
            asks(PfPolicy.SPREAD_PFS, 70, 60, 10),
            {0: Used(1, 50), 1: Used(1, 50), 2: Used(1, 50)},
            Reason.INSUFFICIENT,
            "needs 2 interfaces of 60 Mb/s or more; 4 PFs have 250 of 400 Mb/s unreserved and 29 of 32 VFs "
            "free, room for 1 such interface",
            "needs 3 interfaces of 10 to 70 Mb/s; no arrangement of the interfaces on its PFs fits",
            id="not for the policy's sake",
        ),
        pytest.param(
            asks(PfPolicy.SPREAD_PFS, 40, 40, 10),
            {0: Used(1, 90), 1: Used(1, 90), 2: Used(1, 90)},
            Reason.INSUFFICIENT,
            "policy spread-pfs: 2 interfaces of 40 Mb/s need 2 PFs; "
            "1 of 4 PFs has a free VF and enough bandwidth",
            "policy spread-pfs: needs 3 interfaces of 10 to 40 Mb/s; too few PFs have room for one",
            id="too few PFs for some",
        ),
        pytest.param(
            asks(PfPolicy.SPREAD_PFS, *[0] * 5),
            {0: Used(8, 0)},
            Reason.EXCEEDS_CAPACITY,
            "policy spread-pfs: 5 interfaces need 5 PFs; the node has 4 PFs",
            "policy spread-pfs: needs 5 interfaces; too few PFs have room for one even when empty",
            id="fewer PFs than interfaces",
        ),
        pytest.param(
            asks(PfPolicy.SAME_PF, 40, 40),
            {0: Used(1, 30), 1: Used(1, 50), 2: Used(7, 0), 3: Used(8, 0)},
            Reason.INSUFFICIENT,
            "policy same-pf: needs 80 Mb/s for 2 interfaces; 1 PF has 70 of 100 Mb/s unreserved and "
            "7 of 8 VFs free (best of 4 PFs)",
            "policy same-pf: needs 2 interfaces of 40 Mb/s; no PF has room for all",
            id="no PF has room",
        ),
        pytest.param(
            asks(PfPolicy.SAME_PF, *[0] * 9),
            {},
            Reason.EXCEEDS_CAPACITY,
            "policy same-pf: needs 9 interfaces; 1 PF has 8 VFs when empty (best of 4 PFs)",
            "policy same-pf: needs 9 interfaces; no PF has room for all even when empty",
            id="no PF ever has room",
        ),
        pytest.param(
            asks(PfPolicy.SAME_NUMA, 60, 60, 60),
            {},
            Reason.EXCEEDS_CAPACITY,
            "policy same-numa: needs 3 interfaces of 60 Mb/s; 2 PFs have 200 Mb/s and 16 VFs when empty, "
            "room for 2 such interfaces (best of 2 NUMA nodes and 1 PF without one)",
            "policy same-numa: needs 3 interfaces of 60 Mb/s; no NUMA node has room for all even when empty",
            id="no NUMA node ever has room",
        ),
    ],
)
def test_rejection_names_the_pfs_that_the_policy_lacks(
    asked: Request, used: dict[int, Used], reason: Reason, numbers: str, cause: str
) -> None:
    found = place(asked, FOUR, {pci(at): there for at, there in used.items()})
    assert isinstance(found, Rejection)
    assert (found.reason, found.numbers, found.cause) == (reason, numbers, cause)
    assert found.message == found.numbers


def test_rejection_names_drivers_beside_the_policy() -> None:
    """One of the two PFs could take both, were it not for its driver."""
    pfs = (
        Pf(name="a", pci=pci(0), capacity_vfs=8, link_mbps=100, rates=COARSE, driver="igb"),
        Pf(name="b", pci=pci(1), capacity_vfs=1, link_mbps=100, rates=EVERY_RATE, driver="ice"),
    )
    wanted = (InterfaceRequest(min_tx_rate_mbps=50), InterfaceRequest(min_tx_rate_mbps=46))
    found = place(Request(wanted, PfPolicy.SAME_PF), Inventory(node=NODE, pfs=pfs), {})
    assert isinstance(found, Placement)  # 50 and 50
    wanted = (InterfaceRequest(min_tx_rate_mbps=50), InterfaceRequest(min_tx_rate_mbps=42), *wanted[:0])
    steep = replace(pfs[0], rates=RateAbility(min=RateRange(step=25, smallest=25, largest=100)), link_mbps=99)
    found = place(Request(wanted, PfPolicy.SAME_PF), Inventory(node=NODE, pfs=(steep, pfs[1])), {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.DRIVER_REFUSES
    assert found.message == (
        "policy same-pf: needs 2 interfaces of 42 to 50 Mb/s (92 Mb/s together); 1 PF has 99 Mb/s and 8 VFs "
        "when empty, but no arrangement of the interfaces fits (best of 2 PFs); "
        "a: igb rounds a reservation of 42 up to 50 Mb/s"
    )
    assert found.cause == (
        "policy same-pf: needs 2 interfaces of 42 to 50 Mb/s; no PF has room for all even when empty; "
        "igb rounds reservations up"
    )
