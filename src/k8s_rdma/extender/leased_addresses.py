"""Index of the MACs and GUIDs that nodes hold by Leases, as for ResourceClaims, which no extender places."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.address_leases import leased_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.kube.published_api import LeaseView

MOST_OF_A_NODE = 4096
"""The largest number of addresses that count of one node, which has fewer VFs.

A node's token can make any number of Leases, and they shall not fill the memory that all nodes share. The
agents heed the Leases beyond it all the same, when the pod starts.
"""

_log = structlog.get_logger()


class LeasedAddresses:
    """Index of addresses by their node. on_free: called with a node that no longer holds one of its own."""

    def __init__(self, on_free: Callable[[NodeName], None]) -> None:
        self._on_free = on_free
        self._holders: dict[str, NodeName] = {}
        self._counts: Counter[NodeName] = Counter()
        self._full: set[NodeName] = set()

    def holder(self, address: str) -> NodeName | None:
        """Return the node that holds the address by a Lease, if there is one."""
        return self._holders.get(address)

    def replace(self, leases: Iterable[LeaseView]) -> None:
        """Take the complete list of Leases; the names of others are ignored."""
        listed = {}
        for lease in leases:
            if (address := leased_address(lease.name)) is not None:
                listed[address] = lease
        for address in [address for address in self._holders if address not in listed]:
            self._release(address)
        for lease in listed.values():
            self.put(lease)

    def put(self, lease: LeaseView) -> None:
        """Take a Lease that is new or different. A Lease without a holder frees its address."""
        address, node = leased_address(lease.name), NodeName(lease.holder)
        if address is None or self._holders.get(address) == node:
            return
        self._release(address)
        if not node:
            return
        if self._counts[node] < MOST_OF_A_NODE:
            self._holders[address] = node
            self._counts[node] += 1
        elif node not in self._full:
            self._full.add(node)
            _log.warning("too_many_addresses", node=node, counted=MOST_OF_A_NODE)

    def drop(self, lease: LeaseView) -> None:
        """Drop the address of a Lease that was deleted."""
        if (address := leased_address(lease.name)) is not None:
            self._release(address)

    def _release(self, address: str) -> None:
        node = self._holders.pop(address, None)
        if node is None:
            return
        self._counts[node] -= 1
        if not self._counts[node]:
            del self._counts[node]
        self._full.discard(node)
        self._on_free(node)
