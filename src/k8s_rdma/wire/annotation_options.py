"""What an interface of the request annotation asks for besides rates, and what of that has no meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.options import (
    NO_OPTIONS,
    InterfaceOptions,
    LinkState,
    LinkType,
    PfSelector,
    VfDriver,
    VlanProto,
)
from k8s_rdma.wire.annotation_values import (
    Object,
    choice,
    flag,
    guid,
    kind,
    mac,
    pkey,
    refuse,
    text,
    tokens,
    whole,
    word,
)
from k8s_rdma.wire.cni_environment import ifname_fault
from k8s_rdma.wire.json import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from k8s_rdma.core.ids import PciAddress

    Keys = Callable[[Object, str, tuple[str, ...]], Mapping[str, object]]
    """Takes an object apart by known keys: the object, where it is, and the keys."""

SELECTOR_KEYS = ("name", "pci", "vendor", "driver")

_MAX_VLAN, _MAX_QOS, _MIN_MTU, _MAX_MTU = 4094, 7, 68, 65_535
"""IEEE 802.1Q, 9.6: 4095 is reserved; RFC 791: every link carries 68 bytes; `IFLA_MTU` of Linux drivers."""
_NETWORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,252}")
"""As libcni has it (`pkg/utils`), and no longer than a Kubernetes object's name."""
_MAX_VALUES = 32
"""Of a list in a selector: what a pod asks for is kept in memory, and whoever writes it decides how much."""
_DRIVER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_\-]{0,54}")
"""`MODULE_NAME_LEN`, with its end (include/linux/module.h, 6.1)."""
_VENDOR = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4})?")
_LINK_TYPES = {
    "ethernet": LinkType.ETHERNET,
    "ether": LinkType.ETHERNET,
    "eth": LinkType.ETHERNET,
    "infiniband": LinkType.INFINIBAND,
    "ib": LinkType.INFINIBAND,
}
_VLAN_PROTOS = {each.value.lower(): each for each in VlanProto}
_NOT_OF_A_POD = ("lo", "all", "default")
"""Every namespace has the first; the others are files below net.ipv4.conf of all its interfaces together."""
_PCI = "a PCI address such as 0000:65:00.0"
_SELECTOR = '{"driver": "mlx5_core"}'


def _name(value: object, where: str) -> str:
    name = text(value, where, "a network interface's name")
    fault = ifname_fault(name)
    if not fault and not (name.isascii() and name.isprintable() and "%" not in name):
        fault = "has a character that is not printable ASCII, or a %"
    if not fault and name in _NOT_OF_A_POD:
        fault = "is a name that the kernel uses itself"
    if fault:
        refuse(where, f"{shown(name)} {fault}")
    return name


def _network(value: object, where: str) -> str:
    name = text(value, where, "a network's name")
    if not _NETWORK.fullmatch(name):
        refuse(where, f"{shown(name)} is no network's name: letters, digits, _ . - after a letter or digit")
    return name


def _link_type(value: object, where: str) -> LinkType:
    return word(value.lower() if isinstance(value, str) else value, where, _LINK_TYPES)


def _vlan_proto(value: object, where: str) -> VlanProto:
    if isinstance(value, str) and value.lower() in _VLAN_PROTOS:
        return _VLAN_PROTOS[value.lower()]
    return choice(value, where, VlanProto)


def _number(least: int, most: int, what: str) -> Callable[[object, str], int]:
    return lambda value, where: whole(value, where, least, most, what)


_READERS: Mapping[str, Callable[[object, str], object]] = {
    "name": _name,
    "network": _network,
    "link_type": _link_type,
    "driver": lambda value, where: choice(value, where, VfDriver),
    "vlan": _number(0, _MAX_VLAN, "a VLAN"),
    "qos": _number(0, _MAX_QOS, "a VLAN's priority"),
    "vlan_proto": _vlan_proto,
    "mac": mac,
    "mtu": _number(_MIN_MTU, _MAX_MTU, "an MTU in bytes"),
    "trust": flag,
    "spoof_check": flag,
    "link_state": lambda value, where: choice(value, where, LinkState),
    "guid": guid,
    "pkey": pkey,
}
OPTION_KEYS = ("name", "network", "pf", *(key for key in _READERS if key not in ("name", "network")))


def read_options(values: Mapping[str, object], where: str, keys: Keys) -> InterfaceOptions:
    """The options among an interface's values, `NO_OPTIONS` itself where they ask for nothing."""
    found: dict[str, Any] = {
        key: _READERS[key](value, f"{where}.{key}") for key, value in values.items() if key in _READERS
    }
    if "pf" in values:
        found["pf"] = _selector(values["pf"], f"{where}.pf", keys)
    if not found:
        return NO_OPTIONS
    options = InterfaceOptions(**found)
    _check_vlan(options, where)
    _check_link_type(options, found, where)
    _check_driver(options, found, where)
    return NO_OPTIONS if options == NO_OPTIONS else options


def format_options(options: InterfaceOptions) -> dict[str, object]:
    """The keys and values that read as these options."""
    if options == NO_OPTIONS:
        return {}
    asked = {key: getattr(options, key) for key in OPTION_KEYS}
    told: dict[str, object] = {
        key: value for key, value in asked.items() if value != getattr(NO_OPTIONS, key)
    }
    if options.pf is not None:
        told["pf"] = format_selector(options.pf)
    if options.pkey is not None:
        told["pkey"] = f"{options.pkey:#06x}"
    return told


def format_selector(selector: PfSelector) -> dict[str, str | list[str]]:
    """The object that reads as this selector; a set of one as a string."""
    sets = zip(
        SELECTOR_KEYS, (selector.names, selector.pcis, selector.vendors, selector.drivers), strict=True
    )
    return {key: next(iter(found)) if len(found) == 1 else sorted(found) for key, found in sets if found}


def read_selector(document: str, where: str) -> PfSelector:
    """The selector of a JSON text that is no annotation's; MalformedError names the key."""
    return _selector(tokens(document), where, lambda given, _where, _known: dict(given.pairs))


def _selector(value: object, where: str, keys: Keys) -> PfSelector:
    if isinstance(value, str):
        pci = _pci_if_any(value)
        return PfSelector(pcis=frozenset({pci})) if pci else PfSelector(names=frozenset({_pf(value, where)}))
    if not isinstance(value, Object):
        refuse(
            where, f"is {kind(value)}; wanted a PF's name or PCI address, or an object such as {_SELECTOR}"
        )
    given = keys(value, where, SELECTOR_KEYS)
    if not given:
        refuse(where, f"selects nothing; known are {', '.join(SELECTOR_KEYS)}")
    found = {key: _texts(each, f"{where}.{key}") for key, each in given.items()}
    return PfSelector(
        names=frozenset(_pf(each, f"{where}.name") for each in found.get("name", ())),
        pcis=frozenset(_pci(each, f"{where}.pci") for each in found.get("pci", ())),
        vendors=frozenset(_vendor(each, f"{where}.vendor") for each in found.get("vendor", ())),
        drivers=frozenset(_driver(each, f"{where}.driver") for each in found.get("driver", ())),
    )


def _texts(value: object, where: str) -> Iterable[str]:
    wanted = "a string, or a list of some"
    if not isinstance(value, list):
        return [text(value, where, wanted)]
    if not value:
        refuse(where, f"is an empty list; wanted {wanted}")
    if len(value) > _MAX_VALUES:
        refuse(where, f"has {len(value)} values; at most {_MAX_VALUES}")
    return [text(each, f"{where}[{index}]", wanted) for index, each in enumerate(value)]


def _pf(name: str, where: str) -> str:
    """A PF's name; whatever the kernel takes, if it can be shown."""
    fault = ifname_fault(name)
    if fault or not name.isprintable():
        refuse(where, f"{shown(name)} {fault or 'is not printable'}; wanted a PF's name or PCI address")
    return name


def _driver(driver: str, where: str) -> str:
    if not _DRIVER.fullmatch(driver):
        refuse(where, f"{shown(driver)} is no driver's name, such as mlx5_core")
    return driver


def _pci(address: str, where: str) -> PciAddress:
    found = _pci_if_any(address)
    if found is None:
        refuse(where, f"{shown(address)} is not {_PCI}")
    return found


def _pci_if_any(address: str) -> PciAddress | None:
    try:
        return pci_address(address)
    except ValueError:
        return None


def _vendor(vendor: str, where: str) -> str:
    if not _VENDOR.fullmatch(vendor.lower()):
        refuse(where, f"{shown(vendor)} is no PCI vendor (15b3), nor vendor and device (15b3:1017)")
    return vendor.lower()


def _check_vlan(options: InterfaceOptions, where: str) -> None:
    for key in ("qos", "vlan_proto"):
        if getattr(options, key) is not None and options.vlan is None:
            refuse(f"{where}.{key}", "is of a VLAN, and there is no vlan")
    if options.vlan_proto is not None and not (options.vlan or options.qos):
        refuse(f"{where}.vlan_proto", "is of a tag, and vlan 0 without qos is none")


def _check_link_type(options: InterfaceOptions, found: Mapping[str, object], where: str) -> None:
    """What is set by the PF of an Ethernet port, and of an InfiniBand port, has no meaning on the other."""
    ethernet = [key for key in ("vlan", "mac", "trust", "spoof_check") if key in found]
    infiniband = [key for key in ("guid", "pkey") if key in found]
    if infiniband and options.link_type is LinkType.ETHERNET:
        refuse(f"{where}.{infiniband[0]}", "is of InfiniBand, and link_type is ethernet")
    if ethernet and options.link_type is LinkType.INFINIBAND:
        refuse(f"{where}.{ethernet[0]}", "is of Ethernet, and link_type is infiniband")
    if ethernet and infiniband:
        refuse(f"{where}.{infiniband[0]}", f"is of InfiniBand, and {ethernet[0]} of Ethernet")


def _check_driver(options: InterfaceOptions, found: Mapping[str, object], where: str) -> None:
    """With vfio-pci the pod gets no netdev that could have an MTU or addresses."""
    if options.driver is VfDriver.VFIO_PCI:
        for key in ("mtu", "network"):
            if key in found:
                refuse(f"{where}.{key}", "is of a network device, and with driver vfio-pci there is none")
