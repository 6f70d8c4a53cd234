"""Selection of the PFs of a machine that are ours, and how they are set up."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.core.types import Enforce, LinkType, PciAddress, PfUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsPart:
    """The part of a PF that is for ResourceClaims: its VFs of highest index, and bandwidth, Mb/s."""

    vfs: int
    mbps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PfRule:
    """Selectors that must all match (one without values matches every PF), and settings for it.

    names: of network devices.
    vendors: PCI vendor, or vendor and device: `15b3`, `15b3:1017`.
    num_vfs: how many VFs `init` creates; None for as many as the PF can have.
    trust: whether its VFs are trusted (may be promiscuous, set their own MAC); None leaves that unchanged.
    mtu: bytes, that `init` sets on PF and VFs; None leaves them unchanged.
    claims: the part for ResourceClaims of a PF that is split; the rest is for `use`. None if the PF is whole.
    """

    names: frozenset[str] = frozenset()
    pcis: frozenset[PciAddress] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    link_types: frozenset[LinkType] = frozenset()
    num_vfs: int | None = None
    enforce: Enforce = Enforce.AUTO
    trust: bool | None = None
    mtu: int | None = None
    use: PfUse = PfUse.ANNOTATION
    claims: ClaimsPart | None = None

    @property
    def names_it(self) -> bool:
        """Report whether the rule names these very PFs, even one with the default route."""
        return bool(self.names or self.pcis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The first rule that matches a PF applies to it; a PF without one is left alone.

    require_rdma: whether a PF must have an RDMA device.
    unsafe_noiommu: whether VFs may be given to programs without an IOMMU; such a program can read and write
        all of the machine's memory.
    allocated: PFs whose VFs pods have. These PFs are ours even if no rule matches them any more, so that VFs
        that pods give back are taken back.
    """

    require_rdma: bool = True
    rules: tuple[PfRule, ...] = (PfRule(),)
    unsafe_noiommu: bool = False
    allocated: frozenset[PciAddress] = frozenset()
