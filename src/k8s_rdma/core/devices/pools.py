"""Pools: every VF is for pods that ask by annotation, or belongs to one exclusive device-plugin resource."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum, unique
from typing import TYPE_CHECKING

from k8s_rdma.core.types import LinkType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.kernel import Hardware, PfState, Vf


@unique
class FunctionKind(StrEnum):
    """The functions that a selector matches."""

    ANY = "any"
    VF = "vf"
    PF = "pf"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPf:
    """A PF by its netdev's name or PCI address; vfs: some of its VFs, by index, None for all."""

    pf: str
    vfs: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A PCI function as selectors compare it; vf: None for a PF. Vendor and driver are the PF's."""

    pci: str
    pf: str
    pf_name: str
    pf_vendor: str
    pf_driver: str
    link_type: LinkType
    vf: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSelector:
    """Selects functions: each set that is not empty must hold their value; vendors as in `PfRule`."""

    pfs: tuple[PoolPf, ...] = ()
    pcis: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    link_types: frozenset[LinkType] = frozenset()
    functions: FunctionKind = FunctionKind.ANY

    def matches(self, function: Function) -> bool:
        """Report whether a function is selected."""
        vendor = function.pf_vendor
        return (
            self.functions in (FunctionKind.ANY, FunctionKind.PF if function.vf is None else FunctionKind.VF)
            and (not self.pfs or any(_chosen(pf, function) for pf in self.pfs))
            and (not self.pcis or function.pci in self.pcis)
            and (not self.vendors or not self.vendors.isdisjoint({vendor, vendor.partition(":")[0]}))
            and (not self.drivers or function.pf_driver in self.drivers)
            and (not self.link_types or function.link_type in self.link_types)
        )


def _chosen(choice: PoolPf, function: Function) -> bool:
    if choice.pf not in (function.pf, function.pf_name):
        return False
    return choice.vfs is None or function.vf in choice.vfs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The functions of one exclusive resource."""

    resource: str
    selector: FunctionSelector


def pool_of(function: Function, pools: Sequence[Pool]) -> str:
    """Return the resource of the function: the first one that selects it; empty if no resource does."""
    return next((pool.resource for pool in pools if pool.selector.matches(function)), "")


def in_pools(hardware: Hardware, pools: Sequence[Pool]) -> Hardware:
    """Return the hardware with every VF in its pool."""
    if not pools:
        return hardware
    return replace(hardware, pfs=tuple(_in_pools(pf, pools) for pf in hardware.pfs))


def _in_pools(pf: PfState, pools: Sequence[Pool]) -> PfState:
    found = [pool_of(_function(pf, vf), pools) for vf in pf.vfs]
    if not any(found):
        return pf
    vfs = (replace(vf, pool=pool) if pool else vf for vf, pool in zip(pf.vfs, found, strict=True))
    return replace(pf, vfs=tuple(vfs))


def _function(pf: PfState, vf: Vf) -> Function:
    return Function(
        pci=vf.pci,
        pf=pf.pci,
        pf_name=pf.name,
        pf_vendor=pf.vendor,
        pf_driver=pf.driver,
        link_type=pf.link_type,
        vf=vf.index,
    )
