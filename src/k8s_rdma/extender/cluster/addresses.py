"""MACs and GUIDs that pods ask for: no two functions of the cluster may have the same.

Of two functions with one MAC the fabric gives the frames to either. Taken is what a pod was promised (bound,
being bound, or to be bound where room is held for it), for as long as its reservation stands, and every MAC
that a node reports of its PFs and VFs, also of a node that cannot be read now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.macs import NO_MAC
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.options import NO_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.options import InterfaceOptions
    from k8s_rdma.extender.cluster.nominating import Nominations
    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.extender.cluster.state import ClusterState


class Taken(NamedTuple):
    """Why a pod cannot have an address, and the node on which another has it."""

    why: str
    node: NodeName


class PromisedAddresses:
    """The addresses of reservations: who has been promised which, by node and pod."""

    def __init__(self) -> None:
        self._of: dict[tuple[NodeName, PodUid], tuple[str, ...]] = {}
        self._holders: dict[str, dict[tuple[NodeName, PodUid], None]] = {}

    def hold(self, node: NodeName, uid: PodUid, options: Iterable[InterfaceOptions]) -> None:
        """What the pod was promised on the node asks for these, and for no others."""
        self.release(node, uid)
        found = tuple(address for each in options for address in addresses(each))
        if found:
            self._of[node, uid] = found
        for address in found:
            self._holders.setdefault(address, {})[node, uid] = None

    def release(self, node: NodeName, uid: PodUid) -> bool:
        """The pod was promised nothing there any more; whether it had any address."""
        found = self._of.pop((node, uid), ())
        for address in found:
            holders = self._holders[address]
            holders.pop((node, uid), None)
            if not holders:
                del self._holders[address]
        return bool(found)

    def of(self, node: NodeName, uid: PodUid) -> tuple[str, ...]:
        """The pod's own there."""
        return self._of.get((node, uid), ())

    def holders(self, address: str) -> Iterable[tuple[NodeName, PodUid]]:
        """Who was promised it."""
        return self._holders.get(address, ())


def addresses(options: InterfaceOptions) -> Iterator[str]:
    """The addresses that an interface asks for."""
    if options is not NO_OPTIONS:
        yield from filter(None, (options.mac, options.guid))


def _kind(address: str) -> str:
    return "mac" if len(address) == len(NO_MAC) else "guid"


class AddressCheck:
    """Tells whether a pod may have the addresses that it asks for."""

    def __init__(self, state: ClusterState, nominations: Nominations) -> None:
        self._state = state
        self._nominations = nominations

    def taken(self, pod: PendingPod) -> Taken | None:
        """Who else has an address that the pod asks for; None when nobody has.

        Looks through the nodes for pods that ask for a MAC alone.
        """
        asked = {
            address: f"interface {index} asks for {_kind(address)} {address}"
            for index, each in enumerate(pod.request.interfaces)
            for address in addresses(each.options)
        }
        return next(self._all(pod, asked), None) if asked else None

    def _all(self, pod: PendingPod, asked: dict[str, str]) -> Iterator[Taken]:
        for address, what in asked.items():
            for node, uid in self._state.promised_addresses.holders(address):
                if uid != pod.uid:
                    holder = self._state.reservation(node, uid)
                    whose = f"pod {holder.pod}" if holder else "another pod"
                    yield Taken(f"{what}, which {whose} on node {node} has", node)
        for node, hold in self._nominations.holds_against(pod.uid, pod.priority):
            for address in (each for placed in hold.interfaces for each in addresses(placed.options)):
                if address in asked:
                    yield Taken(f"{asked[address]}, which is held for pod {hold.pod} on node {node}", node)
        yield from self._reported(pod, asked)

    def _reported(self, pod: PendingPod, asked: dict[str, str]) -> Iterator[Taken]:
        macs = {address_number(address): address for address in asked if _kind(address) == "mac"}
        rising = sorted(macs)
        for node, ranges in self._state.reported_macs():
            own = self._state.promised_addresses.of(node, pod.uid)
            found = ranges.any_of([mac for mac in rising if macs[mac] not in own] if own else rising)
            if found is not None:
                yield Taken(f"{asked[macs[found]]}, which a PF or VF of node {node} has", node)
