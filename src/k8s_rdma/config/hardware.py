"""The section `hardware` of the configuration files of `init`, `agent` and `server`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from k8s_rdma.core.pf_selection import ClaimsPart, PfRule, Selection
from k8s_rdma.core.types import MAX_MTU, MAX_RATE_MBPS, MIN_MTU, Enforce, LinkType, PfUse, pci_address

VfSource = Literal["linux", "virtual"]
"""The source of VFs: the node's network cards, or SR-IOV made of ordinary Linux parts."""

PciText = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$",
        description="a PCI address, such as 0000:03:00.0",
    ),
]
VendorText = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9a-f]{4}(:[0-9a-f]{4})?$",
        description="a PCI vendor, such as 15b3, or vendor and device, such as 15b3:1017",
    ),
]
_NETDEV = r"^[^\s:/*?\[\]]{1,15}$"
NetdevText = Annotated[
    str,
    msgspec.Meta(
        pattern=_NETDEV,
        description="the whole name of a network device, such as enp1s0f0",
    ),
]
"""A netdev's name by `dev_valid_name` of the kernel's net/core/dev.c, without wildcard characters, because
patterns are not supported here, and one would select no netdev."""
Count = Annotated[int, msgspec.Meta(ge=0)]


def is_netdev_name(text: str) -> bool:
    """Report whether a text is a `NetdevText`."""
    return re.fullmatch(_NETDEV, text) is not None


class ClaimsPartConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `core.pf_selection.ClaimsPart`."""

    vfs: Annotated[int, msgspec.Meta(ge=1)]
    mbps: Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE_MBPS)]


class PfConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A rule; see `core.pf_selection.PfRule`. numVfs: a number, or `all`.

    use: how pods ask for its VFs, by `annotation` or by ResourceClaims, `claims`. A change waits until no
        pod has any of them.
    claims: the part of it that is for ResourceClaims; the rest is for annotations.
    """

    names: tuple[NetdevText, ...] = ()
    pcis: tuple[PciText, ...] = ()
    vendors: tuple[VendorText, ...] = ()
    drivers: tuple[str, ...] = ()
    link_types: tuple[LinkType, ...] = ()
    num_vfs: Count | Literal["all"] = "all"
    enforce: Enforce = Enforce.AUTO
    trust: bool | None = None
    mtu: Annotated[int, msgspec.Meta(ge=MIN_MTU, le=MAX_MTU)] | None = None
    use: PfUse = PfUse.ANNOTATION
    claims: ClaimsPartConfig | None = None

    def __post_init__(self) -> None:
        """Refuse a part of a PF that is for ResourceClaims as a whole, and of more VFs than there will be."""
        if self.claims is None:
            return
        if self.use is PfUse.CLAIMS:
            msg = "claims: is a part of the PF, and use: claims is all of it; leave one out"
            raise ValueError(msg)
        if isinstance(self.num_vfs, int) and self.claims.vfs > self.num_vfs:
            msg = f"claims.vfs: {self.claims.vfs} is more than numVfs, {self.num_vfs}"
            raise ValueError(msg)

    def to_core(self) -> PfRule:
        """Convert to the rule."""
        return PfRule(
            names=frozenset(self.names),
            pcis=frozenset(map(pci_address, self.pcis)),
            vendors=frozenset(self.vendors),
            drivers=frozenset(self.drivers),
            link_types=frozenset(self.link_types),
            num_vfs=None if isinstance(self.num_vfs, str) else self.num_vfs,
            enforce=self.enforce,
            trust=self.trust,
            mtu=self.mtu,
            use=self.use,
            claims=ClaimsPart(vfs=self.claims.vfs, mbps=self.claims.mbps) if self.claims else None,
        )


class HardwareConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    pfs: rules for PFs; the first that matches applies.
    all: whether PFs that no rule matches are used as well, except those that carry the default route; by
        default if there are no rules.
    unsafe_noiommu: see `core.pf_selection.Selection`.
    """

    require_rdma: bool = True
    unsafe_noiommu: bool = False
    all: bool | None = None
    pfs: tuple[PfConfig, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a list without rules, because it is not clear whether it means all PFs or no PF."""
        if self.pfs == ():
            msg = "pfs: is empty; leave it out, with all: true to use every PF, all: false to use none"
            raise ValueError(msg)

    def to_core(self) -> Selection:
        """Convert to the selection."""
        rules = tuple(rule.to_core() for rule in self.pfs or ())
        every_other = not rules if self.all is None else self.all
        return Selection(
            require_rdma=self.require_rdma,
            rules=(*rules, PfRule()) if every_other else rules,
            unsafe_noiommu=self.unsafe_noiommu,
        )
