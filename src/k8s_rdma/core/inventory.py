"""What a node has, as placement sees it, and what is used of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PciAddress
from k8s_rdma.core.rates import EVERY_RATE, Enforce, RateAbility

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Pf:
    """A physical function.

    capacity_vfs: VFs that exist and may be given to pods.
    link_mbps: link speed in Mb/s that reservations may add up to; None when unknown (link down):
        such a PF takes interfaces without a reservation only.
    rates, enforce: what its driver can program, and what is demanded of it.
    """

    name: str
    pci: PciAddress
    capacity_vfs: int
    link_mbps: int | None
    rates: RateAbility = EVERY_RATE
    enforce: Enforce = Enforce.AUTO


@dataclass(frozen=True, slots=True)
class Generation:
    """Names one state of a node. Two generations of different epochs cannot be ordered.

    epoch: changes when the agent starts, so that a counter is never reused with another meaning.
    """

    epoch: str
    counter: int

    def __str__(self) -> str:
        """`epoch.counter`, as in the REST documents."""
        return f"{self.epoch}.{self.counter}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A node's PFs, ordered by PCI address."""

    node: NodeName
    pfs: tuple[Pf, ...]

    def __post_init__(self) -> None:
        """Order the PFs, so that equal hardware gives equal inventories."""
        object.__setattr__(self, "pfs", tuple(sorted(self.pfs, key=lambda pf: pf.pci)))


@dataclass(frozen=True, slots=True)
class Used:
    """What is taken of one PF: VFs, and the sum of their reservations in Mb/s."""

    vfs: int = 0
    mbps: int = 0

    def __add__(self, other: Used) -> Used:
        """Both together."""
        return Used(self.vfs + other.vfs, self.mbps + other.mbps)


NOTHING_USED = Used()


def total(*usages: Mapping[PciAddress, Used]) -> dict[PciAddress, Used]:
    """Add usages PF by PF."""
    result: dict[PciAddress, Used] = {}
    for usage in usages:
        for pci, used in usage.items():
            result[pci] = result.get(pci, NOTHING_USED) + used
    return result
