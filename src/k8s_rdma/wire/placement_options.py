"""What interfaces ask for besides rates, as the placement annotation carries it: what is asked for, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.options import InterfaceOptions, LinkState, LinkType, PfSelector, VfDriver, VlanProto

if TYPE_CHECKING:
    from collections.abc import Iterable

_Set = tuple[str, ...]
_Name = Annotated[str, msgspec.Meta(max_length=15)]
_Vlan = Annotated[int, msgspec.Meta(ge=0, le=4094)]
_Qos = Annotated[int, msgspec.Meta(ge=0, le=7)]
_Mtu = Annotated[int, msgspec.Meta(ge=68, le=65_535)]
_Pkey = Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]
_Mac = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")]
_Guid = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}(:[0-9a-f]{2}){7}\Z")]


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `core.options.PfSelector`; each set in order."""

    name: _Set = ()
    pci: _Set = ()
    vendor: _Set = ()
    driver: _Set = ()


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `core.options.InterfaceOptions`, field by field."""

    name: _Name = ""
    network: str = ""
    pf: Selector | None = None
    link_type: LinkType | None = None
    driver: VfDriver = VfDriver.KERNEL
    vlan: _Vlan | None = None
    qos: _Qos | None = None
    vlan_proto: VlanProto | None = None
    mac: _Mac | None = None
    mtu: _Mtu | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    link_state: LinkState | None = None
    guid: _Guid | None = None
    pkey: _Pkey | None = None


_FIELDS = tuple(field.name for field in msgspec.structs.fields(Options) if field.name != "pf")


def options_of(options: InterfaceOptions) -> Options:
    """The document's words."""
    told: dict[str, Any] = {field: getattr(options, field) for field in _FIELDS}
    return Options(**told, pf=None if options.pf is None else _selector_of(options.pf))


def to_core(options: Options) -> InterfaceOptions:
    """The options that a document tells; ValueError when a selector's PCI address is none."""
    told: dict[str, Any] = {field: getattr(options, field) for field in _FIELDS}
    return InterfaceOptions(**told, pf=None if options.pf is None else _selector(options.pf))


def _selector_of(selector: PfSelector) -> Selector:
    return Selector(
        name=_sorted(selector.names),
        pci=_sorted(selector.pcis),
        vendor=_sorted(selector.vendors),
        driver=_sorted(selector.drivers),
    )


def _selector(selector: Selector) -> PfSelector:
    return PfSelector(
        names=frozenset(selector.name),
        pcis=frozenset(pci_address(each) for each in selector.pci),
        vendors=frozenset(selector.vendor),
        drivers=frozenset(selector.driver),
    )


def _sorted(found: Iterable[str]) -> _Set:
    return tuple(sorted(found))
