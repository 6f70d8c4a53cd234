"""The keys of a requested interface: one row for each key.

`InterfaceOptions` is the table. A row says which values a key takes, which ability of a PF's driver it needs,
and who may use it. Everything else is made from the rows: the annotation's reader, the placement's document,
a claim's parameters, needs, namespace policies, the lists of the admission policies and the table of
`docs/annotation.md`. `CONTRIBUTING.md` has the recipe for a new key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum, auto, unique
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, get_type_hints

from k8s_rdma.core.types import (
    MAX_MTU,
    MIN_MTU,
    NO_NEEDS,
    Accelerator,
    LinkState,
    LinkType,
    Needs,
    PfSelector,
    Setting,
    VfDriver,
    VlanProto,
)

_ETHERNET, _INFINIBAND = LinkType.ETHERNET, LinkType.INFINIBAND


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `smallest` to `largest`.

    subject: their name in messages.
    unit: their name in messages about claims.
    """

    smallest: int
    largest: int
    subject: str
    unit: str = "a whole number"


@dataclass(frozen=True, slots=True)
class Choices:
    """Members of an enumeration by their words. any_case: whether the case of letters does not matter."""

    by_word: Mapping[str, StrEnum]
    any_case: bool = False


@unique
class Syntax(Enum):
    """Values with a syntax of their own. FLAG: a truth value. PFS: a PF, or a selector of PFs."""

    FLAG = auto()
    MAC = auto()
    GUID = auto()
    PKEY = auto()
    INTERFACE_NAME = auto()
    NETWORK_NAME = auto()
    PFS = auto()


Values: TypeAlias = Whole | Choices | Syntax


@unique
class Permission(Enum):
    """The namespaces whose pods may use a key.

    ALWAYS: all namespaces, because the key affects only the pod.
    UNLESS_DENIED: all namespaces but those whose policy denies it.
    IF_ALLOWED: only those whose policy allows it, because it reaches other pods.
    """

    ALWAYS = auto()
    UNLESS_DENIED = auto()
    IF_ALLOWED = auto()


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The properties of a key.

    values: the values that it takes.
    permission: the namespaces whose pods may use it.
    setting: the ability of a PF's driver that it needs.
    link_type: the only link type that has it; None for a key of both.
    of_netdev: whether it configures a network device, which a VF with vfio-pci has not.
    unique: whether the values of a pod's interfaces must differ.
    in_claims: whether it is a parameter of a claim. Otherwise selectors of the claim do the same.
    plain: a value with which the interface is as without the key.
    harmless: a value that needs no permission.
    address_flags: for a value, the flags that IPv6 addresses of the interface get (`ifa_flags`,
        include/uapi/linux/if_addr.h, Linux 6.1).
    """

    values: Values
    permission: Permission
    _: KW_ONLY
    setting: Setting | None = None
    link_type: LinkType | None = None
    of_netdev: bool = False
    unique: bool = False
    in_claims: bool = True
    plain: object = None
    harmless: object = None
    address_flags: Mapping[object, int] = field(default_factory=dict)


_ALWAYS, _UNLESS_DENIED, _IF_ALLOWED = tuple(Permission)


def _choices(choices: type[StrEnum], *, any_case: bool = False) -> Choices:
    return Choices({choice.value: choice for choice in choices}, any_case)


_LINK_TYPES = Choices(
    {
        "ethernet": _ETHERNET,
        "ether": _ETHERNET,
        "eth": _ETHERNET,
        "infiniband": _INFINIBAND,
        "ib": _INFINIBAND,
    },
    any_case=True,
)
_VLAN_PROTOS = _choices(VlanProto, any_case=True)
_VLANS = Whole(0, 4094, "a VLAN")
"""IEEE 802.1Q, 9.6: 4095 is reserved."""
_PRIORITIES = Whole(0, 7, "a VLAN's priority")
_MTUS = Whole(MIN_MTU, MAX_MTU, "an MTU in bytes", unit="bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceOptions:
    """The optional settings of an interface. A VF keeps its own setting unless another is requested.

    An empty name is replaced by one of the network's pattern. An empty network is the network that the pod is
    attached to. `per` is replaced by `near` as soon as the number of devices is known
    (`core.request.Request.per_gpu`).
    """

    name: Annotated[str, KeyRow(Syntax.INTERFACE_NAME, _ALWAYS, unique=True)] = ""
    network: Annotated[str, KeyRow(Syntax.NETWORK_NAME, _UNLESS_DENIED, of_netdev=True)] = ""
    pf: Annotated[PfSelector | None, KeyRow(Syntax.PFS, _UNLESS_DENIED, in_claims=False)] = None
    link_type: Annotated[LinkType | None, KeyRow(_LINK_TYPES, _ALWAYS, in_claims=False)] = None
    driver: Annotated[VfDriver, KeyRow(_choices(VfDriver), _IF_ALLOWED, setting=Setting.VFIO_PCI)] = (
        VfDriver.KERNEL
    )
    vlan: Annotated[int | None, KeyRow(_VLANS, _IF_ALLOWED, setting=Setting.VLAN, link_type=_ETHERNET)] = None
    qos: Annotated[int | None, KeyRow(_PRIORITIES, _IF_ALLOWED, setting=Setting.QOS)] = None
    vlan_proto: Annotated[
        VlanProto | None,
        KeyRow(_VLAN_PROTOS, _IF_ALLOWED, setting=Setting.VLAN_PROTO, plain=VlanProto.DOT1Q),
    ] = None
    mac: Annotated[
        str | None,
        KeyRow(Syntax.MAC, _IF_ALLOWED, setting=Setting.MAC, link_type=_ETHERNET, unique=True),
    ] = None
    mtu: Annotated[int | None, KeyRow(_MTUS, _UNLESS_DENIED, setting=Setting.MTU, of_netdev=True)] = None
    trust: Annotated[
        bool | None,
        KeyRow(Syntax.FLAG, _IF_ALLOWED, setting=Setting.TRUST, link_type=_ETHERNET, harmless=False),
    ] = None
    spoof_check: Annotated[
        bool | None,
        KeyRow(Syntax.FLAG, _IF_ALLOWED, setting=Setting.SPOOF_CHECK, link_type=_ETHERNET, harmless=True),
    ] = None
    link_state: Annotated[
        LinkState | None, KeyRow(_choices(LinkState), _UNLESS_DENIED, setting=Setting.LINK_STATE)
    ] = None
    guid: Annotated[
        str | None,
        KeyRow(Syntax.GUID, _IF_ALLOWED, setting=Setting.GUID, link_type=_INFINIBAND, unique=True),
    ] = None
    pkey: Annotated[
        int | None, KeyRow(Syntax.PKEY, _IF_ALLOWED, setting=Setting.PKEY, link_type=_INFINIBAND)
    ] = None
    near: Annotated[Accelerator | None, KeyRow(_choices(Accelerator), _ALWAYS, in_claims=False)] = None
    per: Annotated[Accelerator | None, KeyRow(_choices(Accelerator), _ALWAYS, in_claims=False)] = None


NO_OPTIONS = InterfaceOptions()

OPTIONS: Mapping[str, KeyRow] = {
    key: hint.__metadata__[0] for key, hint in get_type_hints(InterfaceOptions, include_extras=True).items()
}
"""The rows by key, in the order of the annotation's reference."""


def keys_with(condition: Callable[[KeyRow], bool]) -> tuple[str, ...]:
    """Return the keys whose rows meet a condition."""
    return tuple(key for key, row in OPTIONS.items() if condition(row))


def claim_parameter(key: str) -> str:
    """Return the spelling of a key in a claim's parameters."""
    first, *parts = key.split("_")
    return first + "".join(map(str.capitalize, parts))


def requested_values(options: InterfaceOptions) -> dict[str, Any]:
    """Return the values that are requested, by key, without those that change no setting."""
    values = ((key, row, getattr(options, key)) for key, row in OPTIONS.items())
    return {key: value for key, row, value in values if value not in (getattr(NO_OPTIONS, key), row.plain)}


@lru_cache(maxsize=1024)
def needs_of(options: InterfaceOptions, *, software_caps: bool = False) -> Needs:
    """Return the needs of these options, and of caps in software; `NO_NEEDS` itself if there are no needs."""
    rows = (OPTIONS[key] for key in requested_values(options))
    settings = {row.setting for row in rows if row.setting is not None}
    needs = Needs(
        pf=options.pf,
        link_type=options.link_type,
        mtu=options.mtu or 0,
        settings=frozenset(settings | ({Setting.SOFTWARE_CAPS} if software_caps else set())),
        near_gpu=options.near is not None or options.per is not None,
    )
    return NO_NEEDS if needs == NO_NEEDS else needs


def address_flags(options: InterfaceOptions) -> int:
    """Return the flags that IPv6 addresses of the interface get."""
    flags = 0
    for key, value in requested_values(options).items():
        flags |= OPTIONS[key].address_flags.get(value, 0)
    return flags
