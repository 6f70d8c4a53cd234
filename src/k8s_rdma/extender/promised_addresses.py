"""Index of the MACs and GUIDs that reservations ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.types import NodeName, PodUid


class PromisedAddresses:
    """The addresses of reservations, by node and pod."""

    def __init__(self) -> None:
        self._by_pod: dict[tuple[NodeName, PodUid], tuple[str, ...]] = {}
        self._holders: dict[str, dict[tuple[NodeName, PodUid], None]] = {}

    def hold(self, node: NodeName, uid: PodUid, interfaces: tuple[PlacedInterface, ...]) -> None:
        """Hold the addresses of the pod's promise on the node; they replace its earlier ones there."""
        if self._by_pod:
            self.release(node, uid)
        options = [interface.options for interface in interfaces if interface.options is not NO_OPTIONS]
        if not options:
            return
        # Each address once, because an unsigned or unverified placement may name an address twice.
        found = tuple({address: None for option in options for address in addresses(option)})
        if found:
            self._by_pod[node, uid] = found
        for address in found:
            self._holders.setdefault(address, {})[node, uid] = None

    def release(self, node: NodeName, uid: PodUid) -> bool:
        """Release the pod's addresses on the node; report whether it had any."""
        found = self._by_pod.pop((node, uid), ())
        for address in found:
            holders = self._holders[address]
            holders.pop((node, uid), None)
            if not holders:
                del self._holders[address]
        return bool(found)

    def addresses_of(self, node: NodeName, uid: PodUid) -> tuple[str, ...]:
        """Return the addresses that the pod was promised on the node."""
        return self._by_pod.get((node, uid), ())

    def holders(self, address: str) -> Iterable[tuple[NodeName, PodUid]]:
        """Return the pods that were promised the address, with their nodes."""
        return self._holders.get(address, ())


def addresses(options: InterfaceOptions) -> Iterator[str]:
    """Yield the addresses that an interface asks for."""
    if options is not NO_OPTIONS:
        yield from filter(None, (options.mac, options.guid))
