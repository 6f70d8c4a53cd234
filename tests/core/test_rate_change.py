"""Rates of a running pod: the next generation of its placement, and the PFs that can keep it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.core.rate_change import admit, changed_rates
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import Enforce
from k8s_rdma.errors import MalformedError, Reason
from packing_oracle import NODE, inventory, pci, request
from placement_oracle import MLX5

LINK = inventory((1000, 8), (1000, 8))


def placement(*mins: int) -> Placement:
    """The first generation: one interface on each PF."""
    interfaces = (PlacedInterface(pf=pci(at), min_tx_rate_mbps=rate) for at, rate in enumerate(mins))
    return Placement(node=NODE, interfaces=tuple(interfaces))


def change(current: Placement, *mins: int, programmed: bool = True) -> Placement:
    found = changed_rates(current, request(*mins), programmed=programmed)
    assert found is not None
    return found


def refusal(
    current: Placement,
    changed: Placement,
    node: Inventory = LINK,
    used: Used = Used(),  # noqa: B008 - immutable
) -> tuple[Reason, str] | None:
    found = admit(changed, current, node, {pci(0): used})
    return (found.reason, found.message) if found else None


def test_next_generation_has_the_requested_rates_and_remembers_the_previous_reservations() -> None:
    found = change(placement(100, 200), 300, 50)
    assert found.generation == 1
    assert [interface.min_tx_rate_mbps for interface in found.interfaces] == [300, 50]
    assert [interface.until_programmed().min_tx_rate_mbps for interface in found.interfaces] == [300, 200]


def test_generation_that_supersedes_one_that_is_not_programmed_counts_the_largest_of_all() -> None:
    largest = change(placement(100), 700)
    [superseded] = change(largest, 200, programmed=False).interfaces
    assert superseded.until_programmed().min_tx_rate_mbps == 700
    [cut] = change(change(placement(700), 100), 200, programmed=False).interfaces
    assert cut.until_programmed().min_tx_rate_mbps == 700


def test_request_of_the_rates_that_a_pod_has_is_no_change() -> None:
    assert changed_rates(placement(100, 0), request(100, 0), programmed=True) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(100), "the pod runs with 2 interfaces, and its annotation asks for 1"),
        (
            Request((InterfaceRequest(), InterfaceRequest(options=InterfaceOptions(vlan=7)))),
            "interface 1 differs in more than its rates",
        ),
        (
            Request((InterfaceRequest(enforce=Enforce.HARDWARE), InterfaceRequest())),
            "interface 0 differs in more than its rates",
        ),
    ],
    ids=["number", "options", "enforcement"],
)
def test_change_of_more_than_rates_is_refused(asked: Request, message: str) -> None:
    with pytest.raises(MalformedError, match=message) as caught:
        changed_rates(placement(0, 0), asked, programmed=True)
    assert caught.value.reason is Reason.NOT_ALLOWED


def test_raise_is_admitted_as_far_as_other_pods_leave_the_link() -> None:
    current, others = placement(100), Used(2, 600)
    assert refusal(current, change(current, 400), used=others) is None
    assert refusal(current, change(current, 401), used=others) == (
        Reason.INSUFFICIENT,
        (
            "PF enp0s0: 401 Mb/s needed, and others leave 400 of 1000 Mb/s to the pod; "
            "the pod has 100 Mb/s there now"
        ),
    )
    found = refusal(current, change(current, 1001))
    assert found is not None
    assert found[0] is Reason.EXCEEDS_CAPACITY


def test_pf_on_which_the_reservation_does_not_grow_needs_no_room() -> None:
    """Its link may have got slower since the pod was placed."""
    slower, current = inventory((100, 8), (1000, 8)), placement(500, 0)
    assert refusal(current, change(current, 400, 300), slower) is None
    found = refusal(current, change(current, 600, 0), slower)
    assert found is not None
    assert found[0] is Reason.EXCEEDS_CAPACITY


def test_raise_is_refused_while_the_speed_of_the_link_is_unknown() -> None:
    current = placement(100)
    assert refusal(current, change(current, 200), inventory((None, 8))) == (
        Reason.EXCEEDS_CAPACITY,
        "PF enp0s0: the speed of its link is unknown now; the pod has 100 Mb/s there now",
    )


def test_change_waits_for_a_report_that_has_the_pf() -> None:
    current = placement(100)
    assert refusal(current, change(current, 50), inventory()) == (
        Reason.UNREADABLE_NODE,
        f"its node does not report PF {pci(0)} now",
    )


def test_rate_that_must_be_enforced_is_refused_if_the_driver_does_not_take_it() -> None:
    [pf] = inventory((1000, 8)).pfs
    node = Inventory(node=NODE, pfs=(replace(pf, rates=NO_RATE, driver="igb"),))
    asked = InterfaceRequest(enforce=Enforce.HARDWARE)
    current = Placement(node=NODE, interfaces=(PlacedInterface(pf=pci(0), enforce=asked.enforce),))
    changed = changed_rates(current, Request((replace(asked, min_tx_rate_mbps=5),)), programmed=True)
    assert changed is not None
    found = refusal(current, changed, node)
    assert found is not None
    assert found[0] is Reason.DRIVER_REFUSES
    assert found[1].startswith("interface 0 on PF enp0s0: igb takes no minimum rates")


def test_raise_is_refused_if_others_would_get_less_by_their_weights() -> None:
    [pf] = inventory((1000, 8)).pfs
    node = Inventory(node=NODE, pfs=(replace(pf, rates=MLX5, driver="mlx5_core"),))
    current, others = placement(0), Used(4, 5, (2, 1, 1, 1))
    found = refusal(current, change(current, 990), node, others)
    assert found is not None
    assert found[0] is Reason.INSUFFICIENT
    assert "minimum rates of mlx5_core are weights" in found[1]
