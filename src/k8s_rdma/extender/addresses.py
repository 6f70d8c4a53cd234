"""Addresses that pods ask for: no two functions of the cluster may have the same MAC or GUID.

Of two functions with one MAC the fabric gives the frames to either. Taken is what a pod was promised
(bound, being bound, or to be bound where room is held for it), for as long as its reservation stands, and
every MAC that a node reports of its PFs and VFs, also of a node that cannot be read now.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.extender.node_cache import ClusterState, _kind, addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.macs import MacRanges
    from k8s_rdma.core.types import NodeName
    from k8s_rdma.extender.fit_cache import SearchQueue
    from k8s_rdma.extender.nominated_pods import NominatedPods
    from k8s_rdma.extender.pod_request import PendingPod

_MAX_REMEMBERED = 16
"""Sets of MACs of which it is remembered which nodes' reports have none of them."""


class AddressConflict(NamedTuple):
    """An address that another pod or node has: why the pod cannot have it, and on which node it is."""

    why: str
    node: NodeName


class AddressCheck:
    """Tells whether a pod may have the addresses that it asks for."""

    def __init__(self, state: ClusterState, nominations: NominatedPods) -> None:
        self._state = state
        self._nominations = nominations
        self._free: OrderedDict[tuple[int, ...], dict[NodeName, MacRanges]] = OrderedDict()

    async def search(self, pod: PendingPod, queue: SearchQueue) -> None:
        """Look through the nodes' reports beforehand, in turns of the pod's namespace.

        A thousand MACs take 0.1 s of the processor with a thousand nodes; `taken` then looks only at reports
        that are new.
        """
        macs = sorted(address_number(address) for address in _requested(pod) if _kind(address) == "mac")
        if not macs:
            return
        free = self._free_of(macs)
        async with queue.turn(pod.namespace) as turn:
            for node, ranges in [*self._state.reported_macs()]:
                _first_in(macs, node, ranges, free)
                await turn.give_way()

    def conflict(self, pod: PendingPod) -> AddressConflict | None:
        """Return the first address of the pod that another has; None when all are free.

        Looks through the nodes for pods that ask for a MAC alone, but for what `search` has looked at.
        """
        requested = _requested(pod)
        return next(self._conflicts(pod, requested), None) if requested else None

    def _conflicts(self, pod: PendingPod, requested: dict[str, str]) -> Iterator[AddressConflict]:
        for address, clause in requested.items():
            for node, uid in self._state.promised_addresses.holders(address):
                if uid != pod.uid:
                    holder = self._state.reservation(node, uid)
                    owner = f"pod {holder.pod}" if holder else "another pod"
                    yield AddressConflict(f"{clause}, which {owner} on node {node} has", node)
        for node, hold in self._nominations.holds_against(pod.uid, pod.priority):
            for address in (
                requested_address
                for placed in hold.interfaces
                for requested_address in addresses(placed.options)
            ):
                if address in requested:
                    yield AddressConflict(
                        f"{requested[address]}, which is held for pod {hold.pod} on node {node}", node
                    )
        yield from self._reported(pod, requested)

    def _reported(self, pod: PendingPod, requested: dict[str, str]) -> Iterator[AddressConflict]:
        macs = {address_number(address): address for address in requested if _kind(address) == "mac"}
        if not macs:
            return
        rising = sorted(macs)
        free = self._free_of(rising)
        for node, ranges in self._state.reported_macs():
            if own := self._state.promised_addresses.addresses_of(node, pod.uid):
                found = ranges.first_index_in([mac for mac in rising if macs[mac] not in own])
            else:
                found = _first_in(rising, node, ranges, free)
            if found is not None:
                yield AddressConflict(f"{requested[macs[found]]}, which a PF or VF of node {node} has", node)

    def _free_of(self, rising: list[int]) -> dict[NodeName, MacRanges]:
        """The reports that have none of these MACs, by node; of the sets that were asked for last."""
        key = tuple(rising)
        free = self._free.setdefault(key, {})
        self._free.move_to_end(key)
        if len(self._free) > _MAX_REMEMBERED:
            self._free.popitem(last=False)
        return free


def _requested(pod: PendingPod) -> dict[str, str]:
    """The addresses that a pod asks for, and that it does, in a clause."""
    return {
        address: f"interface {index} asks for {_kind(address)} {address}"
        for index, interface in enumerate(pod.request.interfaces)
        for address in addresses(interface.options)
    }


def _first_in(
    rising: list[int], node: NodeName, ranges: MacRanges, free: dict[NodeName, MacRanges]
) -> int | None:
    """Return a MAC that the node reports; None when it reports none of them, which `free` keeps."""
    if free.get(node) is ranges:
        return None
    found = ranges.first_index_in(rising)
    if found is None:
        free[node] = ranges
    return found
