"""What is in a pod's namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import LocatedVf, PodInterface
from k8s_rdma.linux.netlink.rtnl import AddressState, Rtnl
from k8s_rdma.linux.netlink.token_bucket import RootQdisc, root_qdiscs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netlink.rtnl import HeldAddress, Link
    from k8s_rdma.linux.netns import Namespaces


def interfaces_in(netns: NetnsRef, namespaces: Namespaces) -> dict[str, PodInterface]:
    """Its interfaces by name. KernelError when it is gone, or cannot be looked at."""
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as there:
        held, qdiscs = there.every_address(), root_qdiscs(there.socket, f"namespace {netns.path}")
        return {
            link.name: _interface(link, held.get(link.index, []), qdiscs.get(link.index))
            for link in there.links()
        }


def located_vfs(links: Mapping[PciAddress, Link], there: Rtnl, what: str) -> dict[PciAddress, LocatedVf]:
    """VFs, and what they are limited to. links: their netdevs, of the namespace of `there`."""
    qdiscs = root_qdiscs(there.socket, what) if links else {}
    return {pci: _located(link, qdiscs.get(link.index)) for pci, link in links.items()}


def _located(link: Link, qdisc: RootQdisc | None) -> LocatedVf:
    return LocatedVf(
        ifname=link.name,
        mac=link.mac,
        max_tx_rate_mbps=qdisc.mbps if qdisc else 0,
        qdisc=qdisc.kind if qdisc else "",
    )


def _interface(link: Link, held: Iterable[HeldAddress], qdisc: RootQdisc | None) -> PodInterface:
    by_state: dict[AddressState, set[str]] = {state: set() for state in AddressState}
    for each in held:
        by_state[each.state].add(str(each.address))
    return PodInterface(
        mac=link.mac,
        mtu=link.mtu,
        up=link.up,
        carrier=link.carrier,
        addresses=frozenset().union(*by_state.values()),
        duplicates=frozenset(by_state[AddressState.DUPLICATE]),
        unusable=frozenset(by_state[AddressState.TENTATIVE]),
        unverified=frozenset(by_state[AddressState.OPTIMISTIC]),
        max_tx_rate_mbps=qdisc.mbps if qdisc else 0,
    )
