"""Requests on PFs of different abilities, and whether any assignment holds, from the rules alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.round_robin import effective_mins
from k8s_rdma.core.types import Enforce, LinkType, PfSelector, Setting, VfDriver, VlanProto
from packing_oracle import NODE, pci

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.types import PciAddress

    Situation = tuple[Inventory, dict[PciAddress, Used]]

MLX5 = RateAbility(min=RateRange(), max=RateRange(), weights=100)
COARSE = RateAbility(
    min=RateRange(step=10, smallest=10, largest=1000), max=RateRange(step=10, smallest=10, largest=1000)
)
CAPS_ONLY = RateAbility(max=RateRange(), needs_link=True)
ABILITIES = st.sampled_from(
    [
        EVERY_RATE,
        replace(EVERY_RATE, sum_checked=False),
        NO_RATE,
        MLX5,
        replace(MLX5, weights=4),
        COARSE,
        CAPS_ONLY,
    ]
)
REQUESTS = st.lists(
    st.builds(
        lambda least, capped, enforce: InterfaceRequest(
            min_tx_rate_mbps=least, max_tx_rate_mbps=capped and least + capped, enforce=enforce
        ),
        st.sampled_from([0, 0, 1, 9, 10, 25, 33, 49, 50, 51, 75, 99, 100]),
        st.sampled_from([0, 0, 3, 30]),
        st.sampled_from([Enforce.AUTO, Enforce.AUTO, Enforce.HARDWARE, Enforce.SOFTWARE]),
    ),
    min_size=1,
    max_size=5,
).map(lambda drawn: Request(tuple(drawn)))


def anywhere(request: Request) -> Request:
    """The same, whichever PFs these are: an MTU may be any, but has to be set."""
    wanted = [
        replace(each, options=replace(each.options, pf=None, link_type=None, mtu=each.options.mtu and 0))
        for each in request.interfaces
    ]
    return replace(request, interfaces=tuple(wanted))


def used_of(pf: Pf, mins: list[int], others: int) -> Used:
    there = tuple(sorted(mins, reverse=True))
    return Used(len(there) + others, sum(there), there if pf.rates.weights else ())


@st.composite
def nodes(draw: st.DrawFn, abilities: st.SearchStrategy[RateAbility] = ABILITIES) -> Situation:
    pfs, used = [], {}
    for at in range(draw(st.integers(1, 3))):
        pf = Pf(
            name=f"enp{at}s0",
            pci=pci(at),
            capacity_vfs=draw(st.integers(1, 6)),
            link_mbps=draw(st.sampled_from([None, 100, 100, 100, 150])),
            rates=draw(abilities),
            enforce=draw(st.sampled_from([Enforce.AUTO, Enforce.AUTO, Enforce.HARDWARE, Enforce.SOFTWARE])),
            supported_settings=draw(
                st.sampled_from([*[frozenset({Setting.SOFTWARE_CAPS})] * 3, frozenset()])
            ),
            driver="one",
            numa_node=draw(st.sampled_from([None, 0, 0, 1])),
        )
        pfs.append(pf)
        mins = draw(st.lists(st.sampled_from([1, 20, 49, 50]), max_size=2))
        used[pf.pci] = used_of(pf, mins, draw(st.integers(0, 2)))
    return Inventory(node=NODE, pfs=tuple(pfs)), used


def meets(pf: Pf, wanted: InterfaceRequest) -> bool:
    """Report whether a PF meets an interface's request besides rates, option by option."""
    options = wanted.options
    selector = options.pf or PfSelector()
    settings = [
        (Setting.VLAN, options.vlan is not None),
        (Setting.QOS, options.qos is not None),
        (Setting.VLAN_PROTO, options.vlan_proto is VlanProto.DOT1AD),
        (Setting.MAC, options.mac is not None),
        (Setting.MTU, options.mtu is not None),
        (Setting.TRUST, options.trust is not None),
        (Setting.VFIO_PCI, options.driver is VfDriver.VFIO_PCI),
        (Setting.SOFTWARE_CAPS, wanted.enforce is Enforce.SOFTWARE),
    ]
    return (
        all(setting in pf.supported_settings for setting, asked in settings if asked)
        and (options.mtu or 0) <= pf.mtu
        and options.link_type in (None, pf.link_type)
        and (not selector.names or pf.name in selector.names)
        and (not selector.pcis or pf.pci in selector.pcis)
        and (not selector.vendors or any(pf.vendor.startswith(vendor) for vendor in selector.vendors))
        and (not selector.drivers or pf.driver in selector.drivers)
    )


def takes(pf: Pf, there: Used, joining: list[InterfaceRequest]) -> bool:
    """Whether a PF can be given these interfaces, from the rules alone."""
    if not joining:
        return True
    if (
        any(objection(pf, wanted) or not meets(pf, wanted) for wanted in joining)
        or there.vfs + len(joining) > pf.capacity_vfs
    ):
        return False
    mins = [reserved(pf, wanted.min_tx_rate_mbps) for wanted in joining]
    if any(mins) and there.mbps + sum(mins) > (pf.link_mbps or 0):
        return False
    if not pf.rates.weights:
        return True
    everyone = [*there.mins, *[0] * (there.vfs - len(there.mins)), *mins]
    got = effective_mins(everyone, pf.link_mbps or 0, pf.rates.weights)
    return all(gets >= rate for gets, rate in zip(got, everyone, strict=True))


def as_wanted(policy: PfPolicy, chosen: Sequence[Pf], beside: Sequence[Pf] = ()) -> bool:
    """Report whether interfaces may be on these PFs, one each, if others of the pod are on those beside."""
    everywhere = [pf.pci for pf in (*chosen, *beside)]
    match policy:
        case PfPolicy.SAME_PF:
            return len(set(everywhere)) == 1
        case PfPolicy.SPREAD_PFS:
            return all(everywhere.count(pf.pci) == 1 for pf in chosen)
        case PfPolicy.SAME_NUMA:
            numa = {pf.numa_node for pf in (*chosen, *beside)}
            return len(set(everywhere)) == 1 or (len(numa) == 1 and numa != {None})
        case _:
            return True


def possible(
    request: Request, node: Inventory, used: Mapping[PciAddress, Used], beside: Sequence[Pf] = ()
) -> bool:
    """Whether any assignment that is as the policy says is taken by all PFs."""
    return any(
        as_wanted(request.policy, chosen, beside)
        and all(
            takes(
                pf,
                used.get(pf.pci, NOTHING_USED),
                [wanted for wanted, at in zip(request.interfaces, chosen, strict=True) if at is pf],
            )
            for pf in node.pfs
        )
        for chosen in product(node.pfs, repeat=len(request.interfaces))
    )


def unlike(situation: Situation, draw: st.DrawFn) -> Situation:
    """The same node with PFs that also differ in their other abilities."""
    node, used = situation
    pfs = [
        replace(
            pf,
            driver=draw(st.sampled_from(["ice", "igb"])),
            vendor=draw(st.sampled_from(["8086:1592", "8086:10c9", "15b3:1017"])),
            mtu=draw(st.sampled_from([0, 1500, 9000])),
            link_type=draw(st.sampled_from([LinkType.ETHERNET, LinkType.ETHERNET, LinkType.INFINIBAND])),
            supported_settings=draw(
                st.sampled_from(
                    [frozenset(Setting)] * 2 + [frozenset({Setting.VLAN, Setting.MTU}), frozenset()]
                )
            ),
        )
        for pf in node.pfs
    ]
    return Inventory(node=NODE, pfs=tuple(pfs)), used


SELECTORS = st.builds(
    PfSelector,
    names=st.sampled_from([frozenset(), frozenset({"enp0s0"}), frozenset({"enp1s0", "enp2s0"})]),
    pcis=st.sampled_from([frozenset(), frozenset(), frozenset({pci(0), pci(2)})]),
    vendors=st.sampled_from([frozenset(), frozenset({"8086"}), frozenset({"8086:1592", "15b3"})]),
    drivers=st.sampled_from([frozenset(), frozenset(), frozenset({"ice"})]),
)
OPTIONS = st.builds(
    InterfaceOptions,
    name=st.sampled_from(["", "a", "b"]),
    network=st.sampled_from(["", "x"]),
    pf=st.none() | SELECTORS,
    link_type=st.sampled_from([None, None, None, LinkType.ETHERNET, LinkType.INFINIBAND]),
    vlan=st.sampled_from([None, None, 5, 6]),
    vlan_proto=st.sampled_from([None, VlanProto.DOT1Q, VlanProto.DOT1AD]),
    mac=st.sampled_from([None, None, None, "02:00:00:00:00:01", "02:00:00:00:00:02"]),
    mtu=st.sampled_from([None, None, 1500, 9000]),
    trust=st.sampled_from([None, None, None, True]),
    driver=st.sampled_from([VfDriver.KERNEL, VfDriver.KERNEL, VfDriver.VFIO_PCI]),
)


@st.composite
def needy(draw: st.DrawFn) -> tuple[Request, Situation]:
    """A request with options of some interfaces, or without any, and a node."""
    rated = draw(REQUESTS)
    some = draw(st.lists(OPTIONS | st.just(InterfaceOptions()), min_size=1, max_size=3))
    interfaces = [replace(each, options=draw(st.sampled_from(some))) for each in rated.interfaces]
    abilities = draw(st.sampled_from([ABILITIES, st.just(EVERY_RATE)]))
    return Request(tuple(interfaces)), unlike(draw(nodes(abilities)), draw)
