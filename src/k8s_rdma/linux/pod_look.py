"""What is in a pod's namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import PodInterface
from k8s_rdma.linux.netlink.rtnl import AddressState, Rtnl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netlink.rtnl import HeldAddress, Link
    from k8s_rdma.linux.netns import Namespaces


def interfaces_in(netns: NetnsRef, namespaces: Namespaces) -> dict[str, PodInterface]:
    """Its interfaces by name. KernelError when it is gone, or cannot be looked at."""
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as there:
        held = there.every_address()
        return {link.name: _interface(link, held.get(link.index, [])) for link in there.links()}


def _interface(link: Link, held: Iterable[HeldAddress]) -> PodInterface:
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
    )
