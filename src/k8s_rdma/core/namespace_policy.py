"""Namespace policies: the settings that pods may request if the operator allows them, and by default.

A pod's annotation is its author's. Settings that reach other pods, networks or the node (for example
another's MAC, a VLAN, a trusted VF, a PCI function) are the operator's to allow, by namespace.
`docs/namespace-policies.md` is the reference, with the reason for each default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from k8s_rdma.core.devices.pod_devices import format_memlock
from k8s_rdma.core.options import (
    NO_OPTIONS,
    OPTIONS,
    InterfaceOptions,
    Permission,
    keys_with,
    requested_values,
)
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import PfSelector
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.core.placement import PlacedInterface

T = TypeVar("T")


BY_DEFAULT = frozenset(keys_with(lambda row: row.permission is Permission.UNLESS_DENIED))
"""The keys that every pod may use unless a policy denies them."""


class Span(NamedTuple):
    """Numbers from the first to the last, and the operator's text for them."""

    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """The settings that pods may request; a range that is None allows everything of an allowed key.

    name: for messages.
    namespaces, networks: names, in which `*` stands for any characters.
    pfs: the PFs that interfaces may be on, whether the pod selects PFs or not.
    max_reserved_mbps, max_cap_mbps: of an interface; with a greatest cap, an interface without a cap is
        refused.
    max_interfaces: of a pod.
    max_memlock: the bytes that a container with a slot may lock.
    live_rates: whether rates of running pods may change.
    """

    name: str
    namespaces: tuple[str, ...] = ()
    allowed: frozenset[str] = BY_DEFAULT
    vlans: tuple[Span, ...] | None = None
    macs: tuple[Span, ...] | None = None
    guids: tuple[Span, ...] | None = None
    networks: tuple[str, ...] | None = None
    pfs: PfSelector | None = None
    max_reserved_mbps: int | None = None
    max_cap_mbps: int | None = None
    max_interfaces: int | None = None
    max_memlock: int | None = None
    live_rates: bool = True

    def narrowed(self, options: InterfaceOptions) -> InterfaceOptions:
        """Return the options with the PFs that the policy leaves of those that they select."""
        if self.pfs is None:
            return options
        return replace(options, pf=intersection(self.pfs, options.pf) or self.pfs)

    def bounded(self, interfaces: Iterable[PlacedInterface]) -> tuple[PlacedInterface, ...]:
        """Bound an unsigned placement by the policy.

        Reservations are cut to the greatest one; interfaces beyond the greatest number are left out, and
        addresses that are not allowed. The rest counts: it may have been given before the policy changed.
        """
        limit = self.max_interfaces
        return tuple(
            self._bounded(interface)
            for index, interface in enumerate(interfaces)
            if limit is None or interface.entry_at(index) < limit
        )

    def _bounded(self, interface: PlacedInterface) -> PlacedInterface:
        limit, options = self.max_reserved_mbps, interface.options
        if limit is not None and interface.min_tx_rate_mbps > limit:
            interface = replace(interface, min_tx_rate_mbps=limit)
        if options.mac or options.guid:
            mac = self._allowed_address("mac", options.mac, self.macs)
            guid = self._allowed_address("guid", options.guid, self.guids)
            interface = replace(interface, options=replace(options, mac=mac, guid=guid))
        return interface

    def _allowed_address(self, key: str, address: str | None, spans: tuple[Span, ...] | None) -> str | None:
        if address is None or key not in self.allowed:
            return None
        return address if spans is None or _within(address_number(address), spans) else None

    def refusals(self, interface: InterfaceRequest) -> Iterator[tuple[str, str]]:
        """Find the settings of an interface that are not allowed: key and value, and the allowed values."""
        options = interface.options
        if options is not NO_OPTIONS:
            for key, value in _decided(options):
                if key not in self.allowed:
                    yield f"{key} {value}".strip(), ""
            yield from self._beyond_ranges(options)
        limit, mbps = self.max_reserved_mbps, interface.min_tx_rate_mbps
        if limit is not None and mbps > limit:
            yield f"min_tx_rate {mbps}", f"at most {limit} Mb/s for an interface"
        limit, mbps = self.max_cap_mbps, interface.max_tx_rate_mbps
        if limit is not None and not 0 < mbps <= limit:
            yield f"max_tx_rate {mbps or '0 (no cap)'}", f"caps of at most {limit} Mb/s"

    def _beyond_ranges(self, options: InterfaceOptions) -> Iterator[tuple[str, str]]:
        numbers = (
            ("vlan", options.vlan, self.vlans),
            ("mac", _number(options.mac), self.macs),
            ("guid", _number(options.guid), self.guids),
        )
        for key, number, spans in numbers:
            beyond = number is not None and spans is not None and not _within(number, spans)
            if spans is not None and beyond and key in self.allowed:
                value = getattr(options, key)
                yield f"{key} {value}", ", ".join(span.text for span in spans) or f"no {key}"
        if options.network and self.networks is not None and not _named(options.network, self.networks):
            yield f"network {options.network}", f"networks {', '.join(self.networks)}"
        if self.pfs is not None and intersection(self.pfs, options.pf) is None:
            yield "pf", "other PFs alone"


DEFAULT = NamespacePolicy(name="")
"""The policy of a namespace without one: it allows no setting that reaches others."""


@dataclass(frozen=True)
class NamespacePolicies:
    """The operator's policies in their order; the first one that is for a namespace decides."""

    policies: tuple[NamespacePolicy, ...] = field(default=())

    @cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], NamespacePolicy], ...]:
        return tuple((_pattern(policy.namespaces), policy) for policy in self.policies)

    def policy_for(self, namespace: str) -> NamespacePolicy:
        """Return the policy for a namespace."""
        return next((policy for names, policy in self._patterns if names.fullmatch(namespace)), DEFAULT)

    def permit(self, namespace: str, request: Request) -> Request:
        """Return the request of a pod, on the PFs that its namespace may use.

        MalformedError (`NOT_ALLOWED`) names the key, the namespace and the policy.
        """
        if not request:
            return request
        self.permit_number(namespace, len(request.interfaces))
        policy = self.policy_for(namespace)
        limit, amount = policy.max_memlock, request.memlock or 0
        if limit is not None and amount > limit:
            _refuse(namespace, policy, f"memlock {format_memlock(amount)}", f"at most {limit} bytes")
        alike: dict[int, int] = {}  # many interfaces of a pod are one object
        for index, interface in enumerate(request.interfaces):
            if alike.setdefault(id(interface), index) == index:
                for setting, allowed in policy.refusals(interface):
                    _refuse(namespace, policy, f"{setting} (interface {index})", allowed)
        if policy.pfs is None:
            return request
        narrowed = {
            id(original): replace(original, options=policy.narrowed(original.options))
            for original in request.interfaces
        }
        return replace(
            request,
            interfaces=tuple(narrowed[id(interface)] for interface in request.interfaces),
        )

    def permit_number(self, namespace: str, number: int) -> None:
        """Refuse a number of interfaces that a pod may not have, counted over all its ways; as `permit`."""
        policy = self.policy_for(namespace)
        if policy.max_interfaces is not None and number > policy.max_interfaces:
            _refuse(namespace, policy, f"{number} interfaces", f"at most {policy.max_interfaces} for a pod")

    def permit_caps(self, namespace: str, caps: Mapping[str, int]) -> None:
        """Refuse other caps of a running pod, by interface, that its namespace may not have; as `permit`."""
        policy = self.policy_for(namespace)
        if caps and not policy.live_rates:
            msg = "rates of running pods do not change here (liveRates)"
            raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
        for name, cap in caps.items():
            for setting, allowed in policy.refusals(InterfaceRequest(max_tx_rate_mbps=cap)):
                _refuse(namespace, policy, f"{setting} (interface {name})", allowed)


NO_POLICIES = NamespacePolicies()


def satisfies(promised: Request, request: Request) -> bool:
    """Report whether a placement's interfaces are the requested ones; a policy may leave fewer PFs."""
    return len(promised.interfaces) == len(request.interfaces) and all(
        offered == requested or _anywhere(offered) == _anywhere(requested)
        for offered, requested in zip(promised.interfaces, request.interfaces, strict=True)
    )


def _anywhere(interface: InterfaceRequest) -> InterfaceRequest:
    return replace(interface, options=replace(interface.options, pf=None))


def intersection(first: PfSelector, second: PfSelector | None) -> PfSelector | None:
    """Return the PFs that both select, if there can be such PFs."""
    if second is None:
        return first
    sets = (
        _intersect(first.names, second.names),
        _intersect(first.pcis, second.pcis),
        _intersect_vendors(first.vendors, second.vendors),
        _intersect(first.drivers, second.drivers),
    )
    names, pcis, vendors, drivers = sets
    if names is None or pcis is None or vendors is None or drivers is None:
        return None
    return PfSelector(names=names, pcis=pcis, vendors=vendors, drivers=drivers)


def address_number(address: str) -> int:
    """Return a MAC or GUID with colons, as a number."""
    return int(address.replace(":", ""), 16)


def _number(address: str | None) -> int | None:
    return None if address is None else address_number(address)


def _intersect(first: frozenset[T], second: frozenset[T]) -> frozenset[T] | None:
    """Return the values that both sets select, if there are any; an empty set selects everything."""
    if not (first and second):
        return first or second
    return (first & second) or None


def _intersect_vendors(first: frozenset[str], second: frozenset[str]) -> frozenset[str] | None:
    """Intersect vendors: of `15b3` and `15b3:1017` the second stays."""
    if not (first and second):
        return first or second
    common = {
        vendor for vendor in first for wider in second if vendor == wider or vendor.startswith(f"{wider}:")
    }
    common |= {narrower for vendor in first for narrower in second if narrower.startswith(f"{vendor}:")}
    return frozenset(common) or None


def _decided(options: InterfaceOptions) -> Iterator[tuple[str, object]]:
    """Yield the requested keys that need a permission, with their values; not `trust: false` and the like."""
    for key, value in requested_values(options).items():
        row = OPTIONS[key]
        if row.permission is not Permission.ALWAYS and value != row.harmless:
            yield key, _shown(value)


def _shown(value: object) -> object:
    """Return the value in a refusal; a selector may be long and is left out."""
    if isinstance(value, PfSelector):
        return ""
    return str(value).lower() if isinstance(value, bool) else value


def _within(number: int, spans: Iterable[Span]) -> bool:
    return any(span.first <= number <= span.last for span in spans)


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return _pattern(patterns).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Names in which `*` stands for any characters."""
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names) or "(?!)")


def _refuse(namespace: str, policy: NamespacePolicy, setting: str, allowed: str) -> NoReturn:
    why = "no policy is for it" if policy is DEFAULT else f"policy {policy.name} does not allow that"
    if allowed:
        why = f"policy {policy.name} allows {allowed}"
    msg = f"namespace {namespace} may not have {setting}: {why}"
    raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
