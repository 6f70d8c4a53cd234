"""Promises that are not held yet, and those that a pod takes over from its earlier sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0, PF1, hardware, interface, pod, receipt
from k8s_rdma.core.allocation import decide, inherited_placement, outstanding
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid

W1 = NodeName("w1")
NOBODY = PodUid("nobody")


def placed(pf: str, rate: int = 0) -> PlacedInterface:
    return PlacedInterface(pf=pf, min_tx_rate_mbps=rate)


def promise(*interfaces: PlacedInterface) -> Placement:
    return Placement(node=W1, interfaces=interfaces)


def test_promise_is_outstanding_until_its_pod_holds_it_entry_by_entry() -> None:
    first, second = placed(PF0, 300), placed(PF1, 400)
    promises = {pod().uid: promise(first, second)}

    def left(*held: int) -> tuple[PlacedInterface, ...]:
        ledger = Ledger()
        for number in held:
            had = replace(interface(PF0, number), entry=number)
            attachment = replace(receipt().attachment, network=f"net{number}")
            ledger = ledger.with_receipt(receipt("c1", had, attachment=attachment))
        return outstanding(promises, ledger, requester=NOBODY, entries=())

    assert left() == (first, second)
    assert left(1) == (first,)
    assert left(0, 1) == ()


def test_promise_of_the_requested_interfaces_does_not_count_against_them() -> None:
    promises = {pod().uid: promise(placed(PF0, 300), placed(PF1, 400)), NOBODY: promise(placed(PF0, 5))}
    left = outstanding(promises, Ledger(), requester=pod().uid, entries=[0])
    assert left == (placed(PF1, 400), placed(PF0, 5))


def decided(promised: Placement | None, others: tuple[PlacedInterface, ...]) -> object:
    found = decide(
        node=W1,
        request=Request((InterfaceRequest(min_tx_rate_mbps=600),)),
        promised=promised,
        hardware=hardware(),
        ledger=Ledger(),
        outstanding=others,
    )
    return [each.pf for each in found.interfaces] if isinstance(found, Placement) else found.reason


def test_pod_without_a_placement_gets_the_room_that_promises_leave() -> None:
    assert decided(None, (placed(PF0, 500),)) == [PF1]
    assert decided(None, (placed(PF0, 500), placed(PF1, 500))) == "insufficient"


def test_promises_do_not_contend_with_each_other() -> None:
    assert decided(promise(placed(PF0, 600)), (placed(PF0, 500), placed(PF1, 500))) == [PF0]


@pytest.mark.parametrize(
    ("rates", "entries", "pfs"),
    [((300, 400), (0, 1), [PF0, PF1]), ((400,), (1,), [PF1]), ((300, 9), (0, 1), None), ((1,), (2,), None)],
)
def test_pod_inherits_placements_if_its_older_sandbox_had_the_same_interfaces(
    rates: tuple[int, ...], entries: tuple[int, ...], pfs: list[str] | None
) -> None:
    older = receipt(
        "old", interface(PF0, 0, minimum=300), replace(interface(PF1, 0, "rdma1", minimum=400), entry=1)
    )
    wanted = Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))
    found = inherited_placement(W1, wanted, entries, [older])
    assert (found and [each.pf for each in found.interfaces]) == pfs
