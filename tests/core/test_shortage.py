"""The simplest lack of free capacity, and its sentences for one node and for many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.packing import Demand, Room
from k8s_rdma.core.refusal import Need, explain_room, explain_rooms
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.shortage import Lack, NodeTotals
from k8s_rdma.core.types import PciAddress

ROOMS = st.lists(st.builds(Room, st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)


def pf(link_mbps: int | None, at: int = 0) -> Pf:
    return Pf(name=f"enp{at}s0", pci=PciAddress(f"0000:0{at}:00.0"), capacity_vfs=4, link_mbps=link_mbps)


def need_of(rates: list[int]) -> Need:
    return Need.of_interfaces([InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), ROOMS)
def test_sums_exclude_what_no_arrangement_of_the_interfaces_could_take(rates: list[int], rooms: list[Room]):
    demand = Demand.from_rates(rates)
    lack = NodeTotals.of_rooms(rooms).lack(len(rates), max(rates), demand.total)
    excluded = {
        Lack.VFS: len(rates) > sum(room.vfs for room in rooms),
        Lack.LARGEST: not any(room.vfs and room.mbps >= max(rates) for room in rooms) and max(rates) > 0,
        Lack.BANDWIDTH: sum(rates) > sum(room.mbps for room in rooms),
        Lack.PLACES: True,
    }
    assert lack is next(each for each in Lack if excluded[each])


@pytest.mark.parametrize(
    ("rates", "rooms", "text"),
    [
        ([0, 0], [Room(9_000, 1)], "needs 2 interfaces; 1 PF has 1 of 4 VFs free"),
        ([5_000], [Room(4_000, 1)], "needs 1 interface of 5000 Mb/s; best PF has 4000 Mb/s and 1 VF free"),
        (
            [5_000, 4_000],
            [Room(8_000, 2)],
            "needs 9000 Mb/s for 2 interfaces; 1 PF has 8000 of 10000 Mb/s unreserved and 2 of 4 VFs free",
        ),
        (
            [4_000] * 2,
            [Room(7_000, 2), Room(3_000, 2)],
            (
                "needs 2 interfaces of 4000 Mb/s; 2 PFs have 10000 of 20000 Mb/s unreserved and 4 of 8 VFs "
                "free, room for 1 such interface"
            ),
        ),
    ],
    ids=["vfs", "largest", "together", "places"],
)
def test_shortage_names_the_simplest_cause(rates: list[int], rooms: list[Room], text: str):
    pfs = [pf(10_000, at) for at in range(len(rooms))]
    assert explain_room(need_of(rates), pfs, rooms).numbers == text


@pytest.mark.parametrize(
    ("rates", "lack", "text"),
    [
        ([0, 0], Lack.VFS, "needs 2 interfaces; too few VFs free, at most 1 VF on a node"),
        (
            [5_000],
            Lack.LARGEST,
            "needs 1 interface of 5000 Mb/s; no PF has 5000 Mb/s free, at most 1 Mb/s on a PF",
        ),
        (
            [5_000, 4_000],
            Lack.BANDWIDTH,
            "needs 2 interfaces of 4000 to 5000 Mb/s; too little bandwidth free, at most 1 Mb/s on a node",
        ),
        (
            [4_000] * 2,
            Lack.PLACES,
            (
                "needs 2 interfaces of 4000 Mb/s; no arrangement of the interfaces on its PFs fits, "
                "at most 1 interface on a node"
            ),
        ),
    ],
    ids=["vfs", "largest", "together", "places"],
)
def test_sentence_for_many_nodes_has_the_largest_figure(rates: list[int], lack: Lack, text: str):
    assert explain_rooms(need_of(rates), [pf(10_000)], lack, 1) == text
    cause, _, _ = text.partition(", at most")
    assert explain_rooms(need_of(rates), [pf(10_000)], lack, None) == cause


def test_sentence_for_many_nodes_counts_links_whose_speed_is_unknown():
    text = explain_rooms(need_of([5_000]), [pf(None)], Lack.LARGEST, 0)
    assert text.endswith(
        "; link speed of a PF is unknown (link down?), only interfaces without a reservation fit there"
    )
