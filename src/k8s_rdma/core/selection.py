"""Which PFs of a machine are ours, and how they are to be set up."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.options import LinkType
from k8s_rdma.core.rates import Enforce


@dataclass(frozen=True, slots=True, kw_only=True)
class PfRule:
    """Selectors, all of which must match (one without values matches every PF), and settings for it.

    names: of network devices. vendors: PCI vendor, or vendor and device: `15b3`, `15b3:1017`.
    num_vfs: how many VFs `init` creates; None for as many as the PF can have.
    trust: whether its VFs are trusted (may be promiscuous, set their own MAC); None leaves that as it is.
    """

    names: frozenset[str] = frozenset()
    pcis: frozenset[PciAddress] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    link_types: frozenset[LinkType] = frozenset()
    num_vfs: int | None = None
    enforce: Enforce = Enforce.AUTO
    trust: bool | None = None

    @property
    def names_it(self) -> bool:
        """Whether whoever wrote it meant these very PFs, so that even one with the default route is taken."""
        return bool(self.names or self.pcis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The first rule that matches a PF applies to it; a PF without one is left alone.

    require_rdma: whether a PF must have an RDMA device.
    unsafe_noiommu: whether VFs may be given to programs without an IOMMU, each of which can then read and
        write all of the machine's memory.
    allocated: PFs whose VFs pods have got; these are ours whatever the rules say by now, so that what pods
        give back is taken back.
    """

    require_rdma: bool = True
    rules: tuple[PfRule, ...] = (PfRule(),)
    unsafe_noiommu: bool = False
    allocated: frozenset[PciAddress] = frozenset()
