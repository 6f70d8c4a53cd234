"""The pod annotation `rdma_interfaces_required`: a JSON list, one object an interface.

`[{"min_tx_rate": 15000, "max_tx_rate": 20000}, {"max_tx_rate": 500, "enforce": "hardware"}, {}]`; rates are
unsigned integers in Mb/s, either may be absent or 0; `enforce` is `auto` (as if absent), `hardware` or
`software`, see `core.rates.Enforce`; `count` stands for as many interfaces that are alike; the other keys are
those of `core.options.InterfaceOptions`. `docs/annotation.md` is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.options import VfDriver
from k8s_rdma.core.rates import MAX_RATE_MBPS, Enforce
from k8s_rdma.core.request import MAX_INTERFACES, InterfaceRequest, Request
from k8s_rdma.wire.annotation_options import OPTION_KEYS, format_options, read_options
from k8s_rdma.wire.annotation_values import ANNOTATION, Number, Object, choice, kind, refuse, tokens, whole
from k8s_rdma.wire.json import describe_unknown, shown
from k8s_rdma.wire.policy_annotation import POLICY_ANNOTATION, read_policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ANNOTATION",
    "KEYS",
    "ReadRequest",
    "format_request",
    "parse_request",
    "read_pod",
    "read_request",
    "request_texts",
]

_RATES = ("min_tx_rate", "max_tx_rate")
_ENFORCE = "enforce"
_COUNT = "count"
KEYS = (*_RATES, _ENFORCE, _COUNT, *OPTION_KEYS)
"""All of an interface's object."""
_UNIQUE = ("name", "mac", "guid")
"""Of which no two interfaces of a pod can have the same."""
_MAX_WARNINGS = 10
"""Each costs a search for the nearest key, and whoever writes the annotation decides how many there are."""
_SPACE = " \t\n\r"
"""RFC 8259, section 2."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request, and one sentence for each key that was not taken at its word."""

    request: Request
    warnings: tuple[str, ...] = ()


def parse_request(text: str | None) -> Request:
    """The request that the annotation's text makes; none at all for no text or `[]`.

    MalformedError (`MALFORMED_ANNOTATION`) names the field and what is wrong with it.
    """
    return read_request(text, strict=True).request


def read_request(text: str | None, *, strict: bool) -> ReadRequest:
    """As `parse_request`, but for `strict=False` unknown keys are warnings instead of errors.

    A key that differs from a known one in letter case alone is then taken as that one, as the original
    system did: ignoring it would silently drop a reservation.
    """
    if text is None or not text.strip(_SPACE):
        return ReadRequest(Request())
    reader = _Reader(strict=strict)
    interfaces: list[InterfaceRequest] = []
    for index, element in enumerate(_elements(text)):
        wanted, count = reader.element(element, f"{ANNOTATION}[{index}]")
        interfaces += [wanted] * count
        if len(interfaces) > MAX_INTERFACES:
            refuse(ANNOTATION, f"asks for {len(interfaces)} interfaces or more; at most {MAX_INTERFACES}")
    return ReadRequest(Request(tuple(interfaces)), tuple(reader.report()))


def read_pod(annotations: Mapping[str, str], *, strict: bool) -> ReadRequest:
    """What a pod with these annotations asks for: `read_request`, and its policy.

    The policy of a pod that asks for no interface is not looked at. MalformedError as for both.
    """
    found = read_request(annotations.get(ANNOTATION), strict=strict)
    if not found.request or POLICY_ANNOTATION not in annotations:
        return found
    policy = read_policy(annotations[POLICY_ANNOTATION])
    return replace(found, request=replace(found.request, policy=policy))


def request_texts(annotations: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The annotations that `read_pod` reads: a pod with equal ones asks for the same."""
    return annotations.get(ANNOTATION), annotations.get(POLICY_ANNOTATION)


def format_request(request: Request) -> str:
    """The annotation's text for a request, without its policy; no rates of 0, nor what is `auto`."""
    interfaces = []
    for wanted in request.interfaces:
        rates = zip(_RATES, (wanted.min_tx_rate_mbps, wanted.max_tx_rate_mbps), strict=True)
        told: dict[str, object] = {key: rate for key, rate in rates if rate}
        if wanted.enforce is not Enforce.AUTO:
            told[_ENFORCE] = wanted.enforce.value
        interfaces.append(told | format_options(wanted.options))
    return msgspec.json.encode(interfaces).decode()


def _elements(text: str) -> list[object]:
    document = tokens(text)
    if not isinstance(document, list):
        refuse(ANNOTATION, f"is {kind(document)}; wanted a list of objects, one an interface")
    if len(document) > MAX_INTERFACES:
        refuse(ANNOTATION, f"asks for {len(document)} interfaces; at most {MAX_INTERFACES}")
    return document


@dataclass(slots=True)
class _Reader:
    """Reads interfaces and remembers what it passed over: `recased` keys and `unknown` ones by field.

    owners: where what no two interfaces may share was first asked for.
    """

    strict: bool
    recased: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)

    def element(self, element: object, where: str) -> tuple[InterfaceRequest, int]:
        """An interface, and how many of it."""
        if not isinstance(element, Object):
            refuse(where, f"is {kind(element)}; wanted an object such as {{}}")
        values = self.keys(element, where, KEYS)
        wanted = self._interface(values, where)
        self._claim(wanted, where)
        return wanted, self._count(values, where)

    def keys(self, given: Object, where: str, known: tuple[str, ...]) -> Mapping[str, object]:
        """An object's values by the keys that are known."""
        values: dict[str, object] = {}
        for key, value in given.pairs:
            meant = key if key in known else self._meant(key, where, known)
            if meant in values:
                refuse(f"{where}.{meant}", "given twice")
            if meant is not None:
                values[meant] = value
        return values

    def report(self) -> Iterator[str]:
        yield from self.recased[:_MAX_WARNINGS]
        for where, key, known in self.unknown[: max(0, _MAX_WARNINGS - len(self.recased))]:
            yield f"{where}: {describe_unknown(key, known)} (ignored)"
        unreported = len(self.recased) + len(self.unknown) - _MAX_WARNINGS
        if unreported > 0:
            yield f"{ANNOTATION}: {unreported} more keys like these"

    def _interface(self, values: Mapping[str, object], where: str) -> InterfaceRequest:
        reserved, cap = (_rate(values[key], f"{where}.{key}") if key in values else 0 for key in _RATES)
        if 0 < cap < reserved:
            refuse(f"{where}.min_tx_rate", f"{reserved} is above max_tx_rate {cap}")
        enforce = choice(values.get(_ENFORCE, Enforce.AUTO.value), f"{where}.{_ENFORCE}", Enforce)
        options = read_options(values, where, self.keys)
        if enforce is Enforce.SOFTWARE and options.driver is VfDriver.VFIO_PCI:
            refuse(
                f"{where}.{_ENFORCE}", "software caps network devices, and with driver vfio-pci there is none"
            )
        return InterfaceRequest(
            min_tx_rate_mbps=reserved, max_tx_rate_mbps=cap, enforce=enforce, options=options
        )

    def _claim(self, wanted: InterfaceRequest, where: str) -> None:
        for key in _UNIQUE:
            value = getattr(wanted.options, key)
            if value and (owner := self.owners.setdefault((key, value), where)) != where:
                refuse(f"{where}.{key}", f"{value} is that of {owner}, too")

    def _count(self, values: Mapping[str, object], where: str) -> int:
        if _COUNT not in values:
            return 1
        count = whole(values[_COUNT], f"{where}.{_COUNT}", 1, MAX_INTERFACES, "a number of interfaces")
        for key in _UNIQUE:
            if key in values:
                refuse(f"{where}.{_COUNT}", f"asks for interfaces that are alike, and {key} is of one alone")
        return count

    def _meant(self, key: str, where: str, known: tuple[str, ...]) -> str | None:
        where = f"{where}.{shown(key)}"
        if self.strict:
            refuse(where, describe_unknown(key, known))
        if (folded := key.casefold()) in known:
            self.recased.append(f"{where}: unknown key; taken as {folded}")
            return folded
        self.unknown.append((where, key, known))
        return None


def _rate(value: object, where: str) -> int:
    if not isinstance(value, Number):
        refuse(where, f"is {kind(value)}; a rate is a whole number of Mb/s")
    text = value.text
    if text.startswith("-"):
        refuse(where, f"{shown(text)} is negative; a rate is a whole number of Mb/s")
    if not text.isdigit():
        refuse(where, f"{shown(text)} is not written as a whole number of Mb/s")
    # The length first: converting thousands of digits is slow, and the interpreter refuses it.
    if len(text) > len(str(MAX_RATE_MBPS)) or int(text) > MAX_RATE_MBPS:
        refuse(where, f"{shown(text)} is above {MAX_RATE_MBPS}, the largest rate in Mb/s")
    return int(text)
