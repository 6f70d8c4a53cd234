"""Pods that hold exclusive devices: whichever devices kubelet gives them, no PF is over-committed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.allocation import used_on_node
from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory, Pf
from k8s_rdma.core.offers import WHOLE
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, fits, place, score
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import Enforce, LinkType, NodeName, PciAddress, PodUid, Setting, Strategy, VfDriver
from k8s_rdma.errors import Reason
from packing_oracle import pci

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


W1 = NodeName("w1")
A, B = "a.example/rdma", "b.example/rdma"
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def pf(at: int, link_mbps: int | None = 100, vfs: int = 0, /, **pools: int) -> Pf:
    return Pf(
        name=f"enp{at}",
        pci=pci(at),
        capacity_vfs=vfs,
        link_mbps=link_mbps,
        pools={{"a": A, "b": B}[name]: number for name, number in pools.items()},
    )


def node(*pfs: Pf) -> Inventory:
    return Inventory(node=W1, pfs=pfs)


def asking(*rates: int, **devices: int) -> Request:
    held = tuple(({"a": A, "b": B}[name], number) for name, number in devices.items())
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates), devices=held)


def placed(found: Placement | Rejection) -> Placement:
    assert isinstance(found, Placement), found
    return found


def refused(found: Placement | Rejection) -> Rejection:
    assert isinstance(found, Rejection), found
    return found


def test_interface_is_placed_on_every_pf_that_has_devices_of_the_pool() -> None:
    found = placed(place(asking(30, 20, a=2), node(pf(0, a=1), pf(1, 100, 4), pf(2, a=3)), {}))
    assert [(each.pf, each.min_tx_rate_mbps, each.pool, each.entry) for each in found.interfaces] == [
        (pci(0), 30, A, 0),
        (pci(2), 30, A, 0),
        (pci(0), 20, A, 1),
        (pci(2), 20, A, 1),
    ]


def test_vfs_for_claims_are_no_devices_whatever_a_pod_requests() -> None:
    split = replace(pf(0, 100, 4), pools={CLAIMS_POOL: 4})
    found = placed(place(replace(asking(30), devices=((CLAIMS_POOL, 1),)), node(split), {}))
    assert [each.pool for each in found.interfaces] == [""]


def test_pf_takes_as_many_of_the_largest_as_it_has_devices() -> None:
    there = node(pf(0, 50, a=1), pf(1, 90, a=3))
    usage = placed(place(asking(30, 50, a=2), there, {})).usage(there)
    assert {address: (used.mbps, used.in_use, used.vfs) for address, used in usage.items()} == {
        pci(0): (50, 1, 0),
        pci(1): (80, 2, 0),
    }


def test_placement_has_the_pods_own_interfaces_and_its_devices() -> None:
    request = asking(30, 20, 10, a=2, b=1)
    found = placed(place(request, node(pf(0, a=2), pf(1, a=2, b=1)), {}))
    assert found.request() == replace(request, devices=())
    assert found.devices() == {A: 2, B: 1}


def test_devices_of_several_resources_are_interfaces_in_the_order_of_their_names() -> None:
    found = placed(place(asking(30, 20, 10, b=1, a=2), node(pf(0, a=2), pf(1, b=1)), {}))
    assert [(each.pf, each.entry) for each in found.interfaces] == [(pci(0), 0), (pci(0), 1), (pci(1), 2)]


def test_request_is_placed_as_usual_if_its_resources_are_no_pools() -> None:
    there = node(pf(0, 100, 4, b=2))
    assert place(asking(30, a=1), there, {}) == place(asking(30), there, {})


@pytest.mark.parametrize(("number", "interfaces"), [(1, "1 interface"), (3, "3 interfaces")])
def test_another_number_of_interfaces_than_devices_is_refused_with_both(number: int, interfaces: str) -> None:
    why = refused(place(asking(*[10] * number, a=2), node(pf(0, a=4)), {}))
    assert why.reason is Reason.DEVICES_DIFFER
    assert why.message == (
        f"the pod asks both pools: its containers request 2 of {A}, which are VFs of the node, and its "
        f"annotation has {interfaces}, not 2; it must have one for each device, and sets their rates"
    )


def test_more_devices_than_the_node_has_are_beyond_it() -> None:
    why = refused(place(asking(*[0] * 5, a=3, b=2), node(pf(0, a=3), pf(1, a=1, b=1)), {}))
    assert why.reason is Reason.EXCEEDS_CAPACITY
    assert why.message == f"needs 2 devices of {B}; the node has 1 VF in that pool"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (InterfaceOptions(vlan=7, qos=1), "vlan, qos"),
        (InterfaceOptions(mac="02:00:00:00:00:01"), "mac"),
        (InterfaceOptions(link_type=LinkType.ETHERNET), "link_type"),
        (InterfaceOptions(driver=VfDriver.VFIO_PCI, name="x"), "driver"),
    ],
)
def test_option_that_chooses_or_configures_a_vf_is_refused_by_its_key(
    options: InterfaceOptions, keys: str
) -> None:
    request = Request((InterfaceRequest(), InterfaceRequest(options=options)), devices=((A, 2),))
    why = refused(place(request, node(pf(0, a=4)), {}))
    assert why.reason is Reason.DEVICES_DIFFER
    assert why.message.startswith(f"interface 1 of the pod asks for {keys}: its containers request 2 of {A},")
    assert why.message.endswith("the annotation sets their rates only")


def test_name_and_network_may_be_requested_for_a_device() -> None:
    options = InterfaceOptions(name="fast", network="net-a")
    request = Request((InterfaceRequest(options=options),), devices=((A, 1),))
    assert placed(place(request, node(pf(0, a=1)), {})).request().interfaces == request.interfaces


def test_policy_is_refused() -> None:
    request = Request((InterfaceRequest(),), PfPolicy.SAME_NUMA, ((A, 1),))
    why = refused(place(request, node(pf(0, a=1)), {}))
    assert why.reason is Reason.DEVICES_DIFFER
    assert "the pod's policy is same-numa" in why.message


def test_refusal_names_the_worst_choice_if_it_does_not_fit() -> None:
    there = node(pf(0, a=1), pf(1, a=4))
    used = {pci(1): placed(place(asking(30), node(pf(1, 100, 1)), {})).usage(there)[pci(1)]}
    why = refused(place(asking(40, 40, a=2), there, used))
    assert why.reason is Reason.INSUFFICIENT
    needs = f"needs 2 interfaces of 40 Mb/s as devices of {A}, and kubelet chooses which"
    assert (
        why.message
        == f"{needs}; PF enp1 may come to carry 80 Mb/s of that, and has 70 of 100 Mb/s unreserved"
    )
    assert (
        why.numbers == f"{needs}; a PF may come to carry 80 Mb/s of that, and has 70 of 100 Mb/s unreserved"
    )
    assert why.cause == f"{needs}; a PF that may come to carry them has too little bandwidth free"


def test_request_is_beyond_capacity_when_the_worst_choice_is_too_much_for_the_empty_node() -> None:
    why = refused(place(asking(60, 60, a=2), node(pf(0, a=2), pf(1, 1000, a=2)), {}))
    assert why.reason is Reason.EXCEEDS_CAPACITY
    assert why.message.endswith("PF enp0 may come to carry 120 Mb/s of that, and has 100 Mb/s when empty")


def test_reservation_is_refused_if_the_link_of_a_pf_is_down() -> None:
    assert "PF enp1 where they may be has no known link speed" in (
        refused(place(asking(1, a=1), node(pf(0, a=1), pf(1, None, a=1)), {})).message
    )
    placed(place(asking(0, a=1), node(pf(0, a=1), pf(1, None, a=1)), {}))


def test_rates_must_suit_every_driver_if_hardware_is_demanded() -> None:
    request = Request((InterfaceRequest(min_tx_rate_mbps=10, enforce=Enforce.HARDWARE),), devices=((A, 1),))
    there = node(pf(0, a=1), replace(pf(1, a=1), rates=RateAbility(), driver="ixgbe"))
    why = refused(place(request, there, {}))
    assert why.reason is Reason.DRIVER_REFUSES
    assert "PF enp1 where they may be does not take them: ixgbe takes no minimum rates" in why.message


def test_agent_that_cannot_cap_by_software_gets_no_pod_that_demands_it() -> None:
    request = Request((InterfaceRequest(max_tx_rate_mbps=10, enforce=Enforce.SOFTWARE),), devices=((A, 1),))
    why = refused(place(request, node(pf(0, a=1)), {}))
    assert why.reason is Reason.DRIVER_REFUSES
    assert "PF enp0 where they may be does not take them: its node caps nothing by" in why.message
    able = replace(pf(0, a=1), supported_settings=frozenset({Setting.SOFTWARE_CAPS}))
    assert isinstance(place(request, node(able), {}), Placement)


def test_rates_are_weighed_if_minima_are_weights() -> None:
    weighing = replace(pf(0, 10_000, a=2), rates=WEIGHTS, driver="mlx5_core")
    placed(place(asking(5_000, 4_900, a=2), node(weighing), {}))
    why = refused(place(asking(9_950, 1, a=2), node(weighing), {}))
    assert "minimum rates that are weights (mlx5_core)" in why.message


def test_smaller_choice_is_weighed_too_because_the_largest_sets_the_shares() -> None:
    """With 20000 the eight of 10000 have half its share, with 19990 a little more."""
    there = node(*(replace(pf(at, 100_000, 20, a=1), rates=WEIGHTS, driver="mlx5_core") for at in (0, 1)))
    used = {pci(at): Used(8, 80_000, (10_000,) * 8) for at in (0, 1)}
    assert placed(place(asking(20_000, 20_000, a=2), there, used))
    why = refused(place(asking(20_000, 19_990, a=2), there, used))
    assert why.reason is Reason.INSUFFICIENT
    assert "has minimum rates that are weights (mlx5_core)" in why.message
    alone = PlacedInterface(pf=pci(0), min_tx_rate_mbps=19_990, pool=A)
    assert not fits([alone], there, used)


@pytest.mark.parametrize("rates", list(product((0, 10_000, 19_990, 20_000), repeat=2)))
@pytest.mark.parametrize("others", [7, 8])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_choice_of_devices_fits_if_minima_are_weights(
    rates: tuple[int, ...], others: int, devices: int
) -> None:
    there = node(*(replace(pf(at, 100_000, 20, a=devices), rates=WEIGHTS) for at in (0, 1)))
    used = {pci(at): Used(others, others * 10_000, (10_000,) * others) for at in (0, 1)}

    def fitting(*pfs: int) -> bool:
        chosen = zip(pfs, rates, strict=True)
        given = [PlacedInterface(pf=pci(at), min_tx_rate_mbps=rate, pool=A) for at, rate in chosen]
        return fits(given, there, used)

    choices = [(0, 1), (1, 0), (0, 0), (1, 1)][: 2 * devices]
    found = place(asking(*rates, a=2), there, used)
    assert isinstance(found, Placement) is all(fitting(*pfs) for pfs in choices)


def test_whole_pfs_are_given_one_after_the_other() -> None:
    """Each has one device and each pod reserves all of a link: whoever is there keeps the others away."""
    there = node(pf(0, a=1), pf(1, a=1))
    reported: dict[PodUid, tuple[PlacedInterface, ...]] = {}
    for at in range(2):
        used = used_on_node(reported=reported, foreign={}, promised={}, inventory=there)
        found = placed(place(asking(100, a=1), there, used))
        assert fits(found.interfaces, there, used)
        reported[PodUid(f"{at}")] = (PlacedInterface(pf=pci(at), min_tx_rate_mbps=100, pool=A),)


def test_held_devices_count_even_if_the_pool_has_fewer_now() -> None:
    there = node(pf(0, a=1))
    held = tuple(PlacedInterface(pf=pci(0), min_tx_rate_mbps=40, pool=A) for _ in range(2))
    used = used_on_node(reported={PodUid("u"): held}, foreign={}, promised={}, inventory=there)
    assert used[pci(0)].mbps == 80


@pytest.mark.parametrize("strategy", Strategy)
def test_score_is_a_number_of_thousandths_whatever_is_in_pools(strategy: Strategy) -> None:
    there = node(pf(0, a=1), pf(1, 100, 4, a=3))
    found = placed(place(asking(30, 20, a=2), there, {}))
    assert 0 <= score(found, there, {}, strategy) <= WHOLE


@dataclass(frozen=True)
class _Pod:
    """Its request, and kubelet's choice for it: positions among the devices that are free then."""

    rates: tuple[int, ...]
    resource: str | None
    picks: tuple[int, ...]


pods = st.builds(
    _Pod,
    rates=st.lists(st.integers(0, 60), min_size=1, max_size=4).map(tuple),
    resource=st.sampled_from([A, A, B, None]),
    picks=st.tuples(*[st.integers(0, 100)] * 4),
)
pfs = st.tuples(st.integers(20, 120), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
steps = st.lists(
    st.tuples(st.sampled_from(["bind", "bind", "bind", "give", "give part", "end"]), st.integers(0, 5)),
    max_size=25,
)


@given(st.lists(pfs, min_size=1, max_size=3), st.lists(pods, min_size=6, max_size=6), steps)
def test_no_pf_is_over_committed_whatever_devices_kubelet_gives(
    shapes: Sequence[tuple[int, int, int, int]], wanted: Sequence[_Pod], play: Sequence[tuple[str, int]]
) -> None:
    """Pods are bound if they fit, and given devices later, at once or one by one; others come and go.

    kubelet gives whatever is free, and admits a pod only if that is enough.
    """
    there = node(*(pf(at, mbps, vfs, a=a, b=b) for at, (mbps, vfs, a, b) in enumerate(shapes)))
    play_ = _Play(there)
    for what, which in play:
        getattr(play_, what.replace(" ", "_"))(which, wanted[which])
        play_.check()


class _Play:
    def __init__(self, there: Inventory) -> None:
        self.there = there
        self.promised: dict[PodUid, tuple[PlacedInterface, ...]] = {}
        self.reported: dict[PodUid, dict[int, PlacedInterface]] = {}
        self.free = {(pf.pci, resource): number for pf in there.pfs for resource, number in pf.pools.items()}

    def used(self) -> Mapping[PciAddress, Used]:
        return used_on_node(
            reported={uid: tuple(held.values()) for uid, held in self.reported.items()},
            entries={uid: frozenset(held) for uid, held in self.reported.items()},
            foreign={},
            promised=self.promised,
            inventory=self.there,
        )

    def bind(self, which: int, pod: _Pod) -> None:
        uid = PodUid(f"{which}")
        if uid in self.promised:
            return
        interfaces = tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in pod.rates)
        devices = ((pod.resource, len(pod.rates)),) if pod.resource else ()
        found = place(Request(interfaces, devices=devices), self.there, self.used())
        if isinstance(found, Placement):
            self.promised[uid] = found.interfaces

    def give(self, which: int, pod: _Pod, most: int = 4) -> None:
        uid = PodUid(f"{which}")
        promised = self.promised.get(uid, ())
        held = self.reported.get(uid, {})
        for at, rate in list(enumerate(pod.rates))[:most]:
            if at in held or not promised:
                continue
            own = [each for place_, each in enumerate(promised) if each.entry_at(place_) == at]
            if own[0].pool:
                left = sorted(key for key, number in self.free.items() if number and key[1] == own[0].pool)
                if not left:
                    return  # kubelet admits it not, or later
                chosen = left[pod.picks[at] % len(left)]
                self.free[chosen] -= 1
                given = PlacedInterface(pf=chosen[0], min_tx_rate_mbps=rate, pool=chosen[1])
            else:
                given = PlacedInterface(pf=own[0].pf, min_tx_rate_mbps=rate)
            self.reported.setdefault(uid, held)[at] = given
            held = self.reported[uid]

    def give_part(self, which: int, pod: _Pod) -> None:
        self.give(which, pod, most=1)

    def end(self, which: int, pod: _Pod) -> None:
        uid = PodUid(f"{which}")
        self.promised.pop(uid, None)
        for each in self.reported.pop(uid, {}).values():
            if each.pool:
                self.free[each.pf, each.pool] += 1

    def check(self) -> None:
        for pf in self.there.pfs:
            here = [
                each.min_tx_rate_mbps
                for held in self.reported.values()
                for each in held.values()
                if each.pf == pf.pci
            ]
            assert sum(here) <= (pf.link_mbps or 0)
