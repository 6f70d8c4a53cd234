"""Words around figures: the same as those that are made for each node anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.packing import Room
from k8s_rdma.core.refusal import Detail, Need, explain_room
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.shortage import Shortage
from k8s_rdma.core.types import PciAddress

NUMBERS = st.integers(0, 4)
MBPS = st.integers(0, 4).map(lambda each: 25_000 * each)


def pf(at: int, link_mbps: int | None, vfs: int = 4) -> Pf:
    return Pf(name=f"enp{at}s0", pci=PciAddress(f"0000:0{at}:00.0"), capacity_vfs=vfs, link_mbps=link_mbps)


@given(
    st.lists(MBPS, min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([100_000, 25_000, None]), MBPS, NUMBERS), min_size=1, max_size=3),
    st.sampled_from(Detail),
)
def test_shortage_summarizes_the_refusals_of_all_nodes(
    rates: list[int], pfs: list[tuple[int | None, int, int]], detail: Detail
):
    need = Need.of_interfaces([InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates])
    inventory = [pf(at, link_mbps) for at, (link_mbps, _, _) in enumerate(pfs)]
    rooms = [Room(mbps, vfs) for _, mbps, vfs in pfs]
    expected = explain_room(need, inventory, rooms).text(detail)
    assert Shortage(need, inventory, detail).text(rooms) == expected


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
    need = Need.of_interfaces([InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates])
    pfs = [pf(at, 10_000) for at in range(len(rooms))]
    assert Shortage(need, pfs, Detail.NUMBERS).text(rooms) == text
