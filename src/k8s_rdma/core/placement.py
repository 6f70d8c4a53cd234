"""Which PF each interface of a request goes on, or why it cannot be placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import Used

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.core.ids import NodeName, PciAddress
    from k8s_rdma.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInterface:
    """An interface on a PF; rates in Mb/s, 0 as in `InterfaceRequest`."""

    pf: PciAddress
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A possible assignment on a node; `interfaces` in the request's order."""

    node: NodeName
    interfaces: tuple[PlacedInterface, ...]

    def usage(self) -> dict[PciAddress, Used]:
        """What this placement takes of each PF."""
        return usage_of(self.interfaces)


def usage_of(interfaces: Iterable[PlacedInterface]) -> dict[PciAddress, Used]:
    """What placed interfaces take of each PF."""
    result: dict[PciAddress, Used] = {}
    for interface in interfaces:
        result[interface.pf] = result.get(interface.pf, Used()) + Used(1, interface.min_tx_rate_mbps)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why there is no placement on a node.

    reason: `NO_RDMA` (no PF at all), `EXCEEDS_CAPACITY` (would not fit on the empty node),
        `INSUFFICIENT` (would fit if enough of what is used were free) or `UNDECIDED` (the search
        ended at its work budget; nothing is claimed about the request).
    message: one line with the node's numbers, without the node's name.
    """

    node: NodeName
    reason: Reason
    message: str
