"""The pod annotations `rdma_interfaces_required`, alias `k8s-rdma.io/interfaces`, and `k8s-rdma.io/policy`.

`[{"min_tx_rate": 15000, "max_tx_rate": 20000}, {"max_tx_rate": 500, "enforce": "hardware"}, {}]`: a JSON
list, one object an interface. Rates are unsigned integers in Mb/s, either may be absent or 0. `enforce` is
`auto` (as if absent), `hardware` or `software`, see `core.types.Enforce`. `count` stands for as many
interfaces that are alike. The other keys are those of `core.options.InterfaceOptions`. The policy determines
how the pod's interfaces are spread over PFs. `docs/annotation.md` is the reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from k8s_rdma.core.devices.gpu_demand import GPU_RESOURCES, gpus_requested
from k8s_rdma.core.devices.pod_devices import MEMLOCK_UNLIMITED
from k8s_rdma.core.options import (
    NO_OPTIONS,
    OPTIONS,
    Choices,
    InterfaceOptions,
    Syntax,
    Values,
    Whole,
    keys_with,
)
from k8s_rdma.core.request import MAX_INTERFACES, InterfaceRequest, PfPolicy, Request, Topology, class_of
from k8s_rdma.core.types import (
    MAX_RATE_MBPS,
    Enforce,
    LinkType,
    PciAddress,
    PfSelector,
    VfDriver,
    pci_address,
)
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation_values import (
    ANNOTATION,
    ANNOTATION_ALIAS,
    Number,
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
from k8s_rdma.wire.cni_request import ifname_fault
from k8s_rdma.wire.json import utf8_bytes
from k8s_rdma.wire.json_faults import describe_unknown, nearest, shown
from k8s_rdma.wire.pod_spec import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Reader = Callable[[object, str], object]
    """Reads a value: the value, and its place for errors."""

    Keys = Callable[[Object, str, tuple[str, ...]], Mapping[str, object]]
    """Takes an object apart by known keys: the object, where it is, and the keys."""

__all__ = [
    "ANNOTATION",
    "ANNOTATION_ALIAS",
    "CONTAINERS_ANNOTATION",
    "DEFAULT_CONTAINER_ANNOTATION",
    "KEYS",
    "MEMLOCK_ANNOTATION",
    "NCCL_ANNOTATION",
    "ReadRequest",
    "format_request",
    "parse_request",
    "read_memlock",
    "read_pod",
    "read_request",
    "request_name",
    "request_text",
    "request_texts",
    "requests_interfaces",
    "with_gpus",
]

SELECTOR_KEYS = ("name", "pci", "vendor", "driver")

_NETWORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,252}")
"""A network's name: libcni's pattern (`pkg/utils`), and at most the length of a Kubernetes object's name."""
_MAX_VALUES = 32
"""The limit for a list in a selector: a pod's request is kept in memory, and its author decides its size."""
_DRIVER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_\-]{0,54}")
"""`MODULE_NAME_LEN`, with its end (include/linux/module.h, 6.1)."""
_VENDOR = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4})?")
_NOT_OF_A_POD = ("lo", "all", "default")
"""Every namespace has the first; the others are files below net.ipv4.conf of all its interfaces together."""
_OF_ETHERNET = keys_with(lambda row: row.link_type is LinkType.ETHERNET)
_OF_INFINIBAND = keys_with(lambda row: row.link_type is LinkType.INFINIBAND)
_OF_NETDEV = keys_with(lambda row: row.of_netdev)
_PCI = "a PCI address such as 0000:65:00.0"
_SELECTOR = '{"driver": "mlx5_core"}'

_Named = TypeVar("_Named", PfPolicy, Topology)

POLICY_ANNOTATION = "k8s-rdma.io/policy"
TOPOLOGY_ANNOTATION = "k8s-rdma.io/topology"

CONTAINERS_ANNOTATION = "k8s-rdma.io/containers"
"""Names the containers that get device nodes, with commas between them; by default the pod's program."""

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""Names the pod's program among its containers: for `kubectl logs` and `exec`, and here for device nodes."""

NCCL_ANNOTATION = "k8s-rdma.io/nccl"
"""`required`: NCCL uses the pod's devices, and fails instead of using TCP."""

MEMLOCK_ANNOTATION = "k8s-rdma.io/memlock"
"""The memory that containers with a slot may lock: a quantity or `unlimited`; `0` leaves the runtime's."""

REQUEST_ANNOTATIONS = (
    ANNOTATION,
    ANNOTATION_ALIAS,
    POLICY_ANNOTATION,
    MEMLOCK_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
"""Annotations by which a pod requests interfaces."""

_RATES = ("min_tx_rate", "max_tx_rate")
_ENFORCE = "enforce"
_COUNT = "count"
KEYS = (*_RATES, _ENFORCE, _COUNT, *OPTIONS)
"""The keys of an interface's object."""
_UNIQUE = keys_with(lambda row: row.unique)
"""The keys whose values must differ between the interfaces of a pod."""
_MAX_WARNINGS = 10
"""The limit for warnings: each costs a search for the nearest key, and the author decides their number."""
_SPACE = " \t\n\r"
"""The white space of JSON: RFC 8259, section 2."""


def _name(value: object, path: str) -> str:
    name = text(value, path, "a network interface's name")
    fault = ifname_fault(name)
    if not fault and not (name.isascii() and name.isprintable() and "%" not in name):
        fault = "has a character that is not printable ASCII, or a %"
    if not fault and name in _NOT_OF_A_POD:
        fault = "is a name that the kernel uses itself"
    if fault:
        refuse(path, f"{shown(name)} {fault}")
    return name


def _network(value: object, path: str) -> str:
    name = text(value, path, "a network's name")
    if not _NETWORK.fullmatch(name):
        refuse(path, f"{shown(name)} is no network's name: letters, digits, _ . - after a letter or digit")
    return name


_FORMS: Mapping[Syntax, Reader] = {
    Syntax.FLAG: flag,
    Syntax.MAC: mac,
    Syntax.GUID: guid,
    Syntax.PKEY: pkey,
    Syntax.INTERFACE_NAME: _name,
    Syntax.NETWORK_NAME: _network,
}


def _reader(values: Values) -> Reader:
    """Return the reader of a key's values."""
    match values:
        case Whole():
            return lambda value, path: whole(value, path, values.smallest, values.largest, values.subject)
        case Choices():
            return lambda value, path: word(value, path, values)
    return _FORMS[values]


_READERS = {key: _reader(row.values) for key, row in OPTIONS.items() if row.values is not Syntax.PFS}


def read_options(values: Mapping[str, object], path: str, members: Keys) -> InterfaceOptions:
    """Read the options among an interface's values; `NO_OPTIONS` itself if there are no options."""
    found: dict[str, Any] = {
        key: _READERS[key](value, f"{path}.{key}") for key, value in values.items() if key in _READERS
    }
    if "pf" in values:
        found["pf"] = _selector(values["pf"], f"{path}.pf", members)
    if not found:
        return NO_OPTIONS
    options = InterfaceOptions(**found)
    _check_vlan(options, path)
    _check_link_type(options, found, path)
    _check_driver(options, found, path)
    if options.near is not None and options.per is not None:
        refuse(f"{path}.per", "is said beside near: an interface per GPU is near it")
    return NO_OPTIONS if options == NO_OPTIONS else options


def format_options(options: InterfaceOptions) -> dict[str, object]:
    """Return the keys and values that read as these options."""
    if options == NO_OPTIONS:
        return {}
    values = {key: getattr(options, key) for key in OPTIONS}
    document = {key: value for key, value in values.items() if value != getattr(NO_OPTIONS, key)}
    if options.pf is not None:
        document["pf"] = format_selector(options.pf)
    if options.pkey is not None:
        document["pkey"] = f"{options.pkey:#06x}"
    return document


def format_selector(selector: PfSelector) -> dict[str, str | list[str]]:
    """Return the object that reads as this selector; a set of one as a string."""
    sets = zip(
        SELECTOR_KEYS, (selector.names, selector.pcis, selector.vendors, selector.drivers), strict=True
    )
    return {key: next(iter(found)) if len(found) == 1 else sorted(found) for key, found in sets if found}


def read_selector(document: str, path: str) -> PfSelector:
    """Return the selector of a JSON text that is no annotation's; MalformedError names the key."""
    return _selector(tokens(document), path, lambda fields, _path, _keys: dict(fields.pairs))


def _selector(value: object, path: str, members: Keys) -> PfSelector:
    if isinstance(value, str):
        pci = _pci_if_any(value)
        return PfSelector(pcis=frozenset({pci})) if pci else PfSelector(names=frozenset({_pf(value, path)}))
    if not isinstance(value, Object):
        refuse(path, f"is {kind(value)}; wanted a PF's name or PCI address, or an object such as {_SELECTOR}")
    fields = members(value, path, SELECTOR_KEYS)
    if not fields:
        refuse(path, f"selects nothing; known are {', '.join(SELECTOR_KEYS)}")
    found = {key: _texts(entry, f"{path}.{key}") for key, entry in fields.items()}
    return PfSelector(
        names=frozenset(_pf(name, f"{path}.name") for name in found.get("name", ())),
        pcis=frozenset(_pci(address, f"{path}.pci") for address in found.get("pci", ())),
        vendors=frozenset(_vendor(vendor, f"{path}.vendor") for vendor in found.get("vendor", ())),
        drivers=frozenset(_driver(driver, f"{path}.driver") for driver in found.get("driver", ())),
    )


def _texts(value: object, path: str) -> Iterable[str]:
    expected = "a string, or a list of some"
    if not isinstance(value, list):
        return [text(value, path, expected)]
    if not value:
        refuse(path, f"is an empty list; wanted {expected}")
    if len(value) > _MAX_VALUES:
        refuse(path, f"has {len(value)} values; at most {_MAX_VALUES}")
    return [text(entry, f"{path}[{index}]", expected) for index, entry in enumerate(value)]


def _pf(name: str, path: str) -> str:
    """Return a PF's name; any name that the kernel takes, if it can be shown."""
    fault = ifname_fault(name)
    if fault or not name.isprintable():
        refuse(path, f"{shown(name)} {fault or 'is not printable'}; wanted a PF's name or PCI address")
    return name


def _driver(driver: str, path: str) -> str:
    if not _DRIVER.fullmatch(driver):
        refuse(path, f"{shown(driver)} is no driver's name, such as mlx5_core")
    return driver


def _pci(address: str, path: str) -> PciAddress:
    found = _pci_if_any(address)
    if found is None:
        refuse(path, f"{shown(address)} is not {_PCI}")
    return found


def _pci_if_any(address: str) -> PciAddress | None:
    try:
        return pci_address(address)
    except ValueError:
        return None


def _vendor(vendor: str, path: str) -> str:
    if not _VENDOR.fullmatch(vendor.lower()):
        refuse(path, f"{shown(vendor)} is no PCI vendor (15b3), nor vendor and device (15b3:1017)")
    return vendor.lower()


def _check_vlan(options: InterfaceOptions, path: str) -> None:
    for key in ("qos", "vlan_proto"):
        if getattr(options, key) is not None and options.vlan is None:
            refuse(f"{path}.{key}", "is of a VLAN, and there is no vlan")
    if options.vlan_proto is not None and not (options.vlan or options.qos):
        refuse(f"{path}.vlan_proto", "is of a tag, and vlan 0 without qos is none")


def _check_link_type(options: InterfaceOptions, found: Mapping[str, object], path: str) -> None:
    """Check that settings of Ethernet and of InfiniBand ports are not mixed."""
    ethernet = [key for key in _OF_ETHERNET if key in found]
    infiniband = [key for key in _OF_INFINIBAND if key in found]
    if infiniband and options.link_type is LinkType.ETHERNET:
        refuse(f"{path}.{infiniband[0]}", "is of InfiniBand, and link_type is ethernet")
    if ethernet and options.link_type is LinkType.INFINIBAND:
        refuse(f"{path}.{ethernet[0]}", "is of Ethernet, and link_type is infiniband")
    if ethernet and infiniband:
        refuse(f"{path}.{infiniband[0]}", f"is of InfiniBand, and {ethernet[0]} of Ethernet")


def _check_driver(options: InterfaceOptions, found: Mapping[str, object], path: str) -> None:
    """Check that no setting of a netdev (MTU, addresses) is requested with vfio-pci."""
    if options.driver is VfDriver.VFIO_PCI:
        for key in _OF_NETDEV:
            if key in found:
                refuse(f"{path}.{key}", "is of a network device, and with driver vfio-pci there is none")


def read_policy(text: str | None) -> PfPolicy:
    """Return the policy; `ANY` for no text, or only white space.

    MalformedError (`MALFORMED_ANNOTATION`) names the annotation, and the known policies.
    """
    return _by_name(text, POLICY_ANNOTATION, PfPolicy.ANY, "policy")


def read_topology(annotations: Mapping[str, str]) -> Topology:
    """Read how near to GPUs a pod's interfaces have to be; MalformedError as `read_policy`."""
    return _by_name(annotations.get(TOPOLOGY_ANNOTATION), TOPOLOGY_ANNOTATION, Topology.PREFER, "topology")


def _by_name(text: str | None, annotation: str, default: _Named, subject: str) -> _Named:
    found = (text or "").strip()
    if not found:
        return default
    values = {value.value: value for value in type(default)}
    value = values.get(found)
    if value is None:
        near = nearest(found, values)
        hint = f"; did you mean {near}?" if near else ""
        msg = f"{annotation}: {shown(found)} is no {subject}; known are {', '.join(values)}{hint}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
    return value


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request, and one sentence for each key that was not taken at its word."""

    request: Request
    warnings: tuple[str, ...] = ()


def parse_request(text: str | None) -> Request:
    """Return the request that the annotation's text makes; an empty one for no text or `[]`.

    MalformedError (`MALFORMED_ANNOTATION`) names the field and its fault.
    """
    return read_request(text, strict=True).request


def read_request(text: str | None, *, strict: bool, name: str = ANNOTATION) -> ReadRequest:
    """Read a request; unknown keys are errors, and with `strict=False` warnings.

    A key that differs from a known one in letter case alone is then taken as that one, as the original system
    did, because ignoring it would silently drop a reservation.

    name: the annotation's, for errors.
    """
    if text is None or not text.strip(_SPACE):
        return ReadRequest(Request())
    reader = _Reader(name, strict=strict)
    interfaces: list[InterfaceRequest] = []
    for index, element in enumerate(_elements(text, name)):
        interface, count = reader.element(element, f"{name}[{index}]")
        interfaces += [interface] * count
        if len(interfaces) > MAX_INTERFACES:
            refuse(name, f"asks for {len(interfaces)} interfaces or more; at most {MAX_INTERFACES}")
    return ReadRequest(Request(tuple(interfaces)), tuple(reader.report()))


def read_pod(annotations: Mapping[str, str], *, strict: bool) -> ReadRequest:
    """Read the request of a pod with these annotations: `read_request`, its policy and locked memory.

    Policy and memory of a pod without interfaces are not read.
    MalformedError as for all three.
    """
    found = read_request(request_text(annotations), strict=strict, name=request_name(annotations))
    near_gpus = found.request.shape.near_gpus
    if not found.request or (
        not near_gpus and annotations.keys().isdisjoint((POLICY_ANNOTATION, MEMLOCK_ANNOTATION))
    ):
        return found
    request = replace(
        found.request,
        policy=read_policy(annotations.get(POLICY_ANNOTATION)),
        memlock=read_memlock(annotations),
        topology=read_topology(annotations) if near_gpus else Topology.PREFER,
    )
    if near_gpus:
        _check_near_gpus(request, request_name(annotations))
    return replace(found, request=request)


def with_gpus(request: Request, annotation: str) -> Request:
    """Return the request with an interface for each GPU in place of one that stands for all.

    MalformedError if it has interfaces near GPUs, and no GPUs.
    """
    if not request.shape.near_gpus:
        return request
    gpus = gpus_requested(request.devices)
    if not gpus:
        resources = ", ".join(f"{prefix}*" for prefix in GPU_RESOURCES)
        msg = f"{annotation}: has interfaces near GPUs, and the pod's containers request none ({resources})"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
    expanded = request.per_gpu(gpus)
    if len(expanded.interfaces) > MAX_INTERFACES:
        msg = f"{annotation}: asks for {len(expanded.interfaces)} interfaces; at most {MAX_INTERFACES}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
    return expanded


def _check_near_gpus(request: Request, name: str) -> None:
    """Refuse a request that does not hold for every choice of GPUs."""
    if request.policy is not PfPolicy.ANY:
        refuse(POLICY_ANNOTATION, f"{name} has interfaces near GPUs, which are on the PFs near these")
    first: tuple[int, InterfaceRequest] | None = None
    for index, interface in enumerate(request.interfaces):
        if not interface.needs.near_gpu:
            continue
        first = first or (index, interface)
        if class_of(interface) != class_of(first[1]):
            refuse(
                f"{name}[{index}]",
                f"differs from {name}[{first[0]}] in more than names: interfaces near GPUs are alike, "
                "since any may come to any GPU",
            )


def read_memlock(annotations: Mapping[str, str]) -> int | None:
    """Read the memory that a pod's containers with a slot may lock, in bytes, if the pod states it.

    MalformedError (`MALFORMED_ANNOTATION`) if the text is no amount.
    """
    text = annotations.get(MEMLOCK_ANNOTATION, "").strip(_SPACE)
    if not text:
        return None
    try:
        return parse_memlock(text)
    except ValueError as error:
        refuse(MEMLOCK_ANNOTATION, str(error))


def parse_memlock(text: str) -> int:
    """Parse an amount of locked memory, a quantity such as `16Gi` or `unlimited`; ValueError for another."""
    if text == "unlimited":
        return MEMLOCK_UNLIMITED
    try:
        amount = quantity(text)
    except ValueError:
        amount = Fraction(-1)
    if not 0 <= amount < MEMLOCK_UNLIMITED or amount.denominator != 1:
        msg = f"{shown(text)} is neither bytes, such as 16Gi, nor unlimited"
        raise ValueError(msg)
    return int(amount)


def annotation_bytes(annotations: Mapping[str, str]) -> int:
    """Return the size of the annotations as the API server counts it."""
    return utf8_bytes("".join((*annotations, *annotations.values())))


def request_name(annotations: Mapping[str, str]) -> str:
    """Return the name of the annotation by which a pod requests interfaces."""
    return (
        ANNOTATION if ANNOTATION in annotations or ANNOTATION_ALIAS not in annotations else ANNOTATION_ALIAS
    )


def request_text(annotations: Mapping[str, str]) -> str | None:
    """Return the text of that annotation; MalformedError when both names are there and their texts differ."""
    text, alias = annotations.get(ANNOTATION), annotations.get(ANNOTATION_ALIAS)
    if text is None or alias is None:
        return alias if text is None else text
    if text.strip(_SPACE) != alias.strip(_SPACE):
        refuse(ANNOTATION_ALIAS, f"differs from {ANNOTATION}, and is an alias of it; set one of them")
    return text


def requests_interfaces(annotations: Mapping[str, str]) -> bool:
    """Report whether a pod has either annotation with any text; the text may still be `[]`."""
    return bool(annotations.get(ANNOTATION) or annotations.get(ANNOTATION_ALIAS))


def request_texts(annotations: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the annotations that `read_pod` reads: a pod with equal ones asks for the same."""
    return tuple(map(annotations.get, REQUEST_ANNOTATIONS))


def format_request(request: Request) -> str:
    """Return the annotation's text for a request, without its policy, rates of 0 and `auto`."""
    interfaces = []
    for interface in request.interfaces:
        rates = zip(_RATES, (interface.min_tx_rate_mbps, interface.max_tx_rate_mbps), strict=True)
        document: dict[str, object] = {key: rate for key, rate in rates if rate}
        if interface.enforce is not Enforce.AUTO:
            document[_ENFORCE] = interface.enforce.value
        interfaces.append(document | format_options(interface.options))
    return msgspec.json.encode(interfaces).decode()


def _elements(text: str, name: str) -> list[object]:
    document = tokens(text, name)
    if not isinstance(document, list):
        refuse(name, f"is {kind(document)}; wanted a list of objects, one an interface")
    if len(document) > MAX_INTERFACES:
        refuse(name, f"asks for {len(document)} interfaces; at most {MAX_INTERFACES}")
    return document


@dataclass(slots=True)
class _Reader:
    """Reads interfaces and remembers the keys that it passed over: `recased` and `unknown` ones by field.

    name: the annotation's.
    owners: the field in which each value that interfaces may not share was requested first.
    """

    name: str
    strict: bool
    recased: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)

    def element(self, element: object, path: str) -> tuple[InterfaceRequest, int]:
        """Return an interface, and how many of it."""
        if not isinstance(element, Object):
            refuse(path, f"is {kind(element)}; wanted an object such as {{}}")
        values = self.keys(element, path, KEYS)
        interface = self._interface(values, path)
        self._claim(interface, path)
        return interface, self._count(values, path)

    def keys(self, document: Object, path: str, allowed: tuple[str, ...]) -> Mapping[str, object]:
        """Return an object's values by the keys that are known."""
        values: dict[str, object] = {}
        for key, value in document.pairs:
            meant = key if key in allowed else self._similar_key(key, path, allowed)
            if meant in values:
                refuse(f"{path}.{meant}", "given twice")
            if meant is not None:
                values[meant] = value
        return values

    def report(self) -> Iterator[str]:
        yield from self.recased[:_MAX_WARNINGS]
        for path, key, keys in self.unknown[: max(0, _MAX_WARNINGS - len(self.recased))]:
            yield f"{path}: {describe_unknown(key, keys)} (ignored)"
        unreported = len(self.recased) + len(self.unknown) - _MAX_WARNINGS
        if unreported > 0:
            yield f"{self.name}: {unreported} more keys like these"

    def _interface(self, values: Mapping[str, object], path: str) -> InterfaceRequest:
        reserved, cap = (_rate(values[key], f"{path}.{key}") if key in values else 0 for key in _RATES)
        if 0 < cap < reserved:
            refuse(f"{path}.min_tx_rate", f"{reserved} is above max_tx_rate {cap}")
        enforce = choice(values.get(_ENFORCE, Enforce.AUTO.value), f"{path}.{_ENFORCE}", Enforce)
        options = read_options(values, path, self.keys)
        if enforce is Enforce.SOFTWARE and options.driver is VfDriver.VFIO_PCI:
            refuse(
                f"{path}.{_ENFORCE}", "software caps network devices, and with driver vfio-pci there is none"
            )
        return InterfaceRequest(
            min_tx_rate_mbps=reserved, max_tx_rate_mbps=cap, enforce=enforce, options=options
        )

    def _claim(self, interface: InterfaceRequest, path: str) -> None:
        for key in _UNIQUE:
            value = getattr(interface.options, key)
            if value and interface.options.per is not None:
                refuse(f"{path}.{key}", "is of one interface, and per stands for one for each GPU")
            if value and (owner := self.owners.setdefault((key, value), path)) != path:
                refuse(f"{path}.{key}", f"{value} is that of {owner}, too")

    def _count(self, values: Mapping[str, object], path: str) -> int:
        if _COUNT not in values:
            return 1
        count = whole(values[_COUNT], f"{path}.{_COUNT}", 1, MAX_INTERFACES, "a number of interfaces")
        for key in (*_UNIQUE, "per"):
            if key in values:
                refuse(f"{path}.{_COUNT}", f"asks for interfaces that are alike, and {key} is of one alone")
        return count

    def _similar_key(self, key: str, path: str, allowed: tuple[str, ...]) -> str | None:
        path = f"{path}.{shown(key)}"
        if self.strict:
            refuse(path, describe_unknown(key, allowed))
        if (folded := key.casefold()) in allowed:
            self.recased.append(f"{path}: unknown key; taken as {folded}")
            return folded
        self.unknown.append((path, key, allowed))
        return None


def _rate(value: object, path: str) -> int:
    if not isinstance(value, Number):
        refuse(path, f"is {kind(value)}; a rate is a whole number of Mb/s")
    text = value.text
    if text.startswith("-"):
        refuse(path, f"{shown(text)} is negative; a rate is a whole number of Mb/s")
    if not text.isdigit():
        refuse(path, f"{shown(text)} is not written as a whole number of Mb/s")
    # The length first: converting thousands of digits is slow, and the interpreter refuses it.
    if len(text) > len(str(MAX_RATE_MBPS)) or int(text) > MAX_RATE_MBPS:
        refuse(path, f"{shown(text)} is above {MAX_RATE_MBPS}, the largest rate in Mb/s")
    return int(text)
