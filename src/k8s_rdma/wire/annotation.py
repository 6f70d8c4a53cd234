"""The pod annotation `rdma_interfaces_required`: a JSON list, one object an interface.

`[{"min_tx_rate": 15000, "max_tx_rate": 20000}, {"max_tx_rate": 500, "enforce": "hardware"}, {}]`; rates are
unsigned integers in Mb/s, either may be absent or 0; `enforce` is `auto` (as if absent) or `hardware`, see
`core.rates.Enforce`.

The text is read token by token rather than into a typed model, because what it says must be refused by
field and in its own words: `1.0` and `1e3` are numbers but no unsigned integers (the decoder of the system
that introduced the annotation refuses them too), and a key given twice has two meanings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import msgspec

from k8s_rdma.core.rates import MAX_RATE_MBPS, Enforce
from k8s_rdma.core.request import MAX_INTERFACES, InterfaceRequest, Request
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import describe_unknown, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

ANNOTATION = "rdma_interfaces_required"

_RATES = ("min_tx_rate", "max_tx_rate")
_ENFORCE = "enforce"
_KEYS = (*_RATES, _ENFORCE)
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
    elements = _elements(text)
    reader = _Reader(strict=strict)
    interfaces = tuple(
        reader.interface(element, f"{ANNOTATION}[{index}]") for index, element in enumerate(elements)
    )
    return ReadRequest(Request(interfaces), tuple(reader.report()))


def format_request(request: Request) -> str:
    """The annotation's text for a request; rates of 0 are left out, and what is `auto`."""
    interfaces = []
    for wanted in request.interfaces:
        rates = zip(_RATES, (wanted.min_tx_rate_mbps, wanted.max_tx_rate_mbps), strict=True)
        enforce = {} if wanted.enforce is Enforce.AUTO else {_ENFORCE: wanted.enforce.value}
        interfaces.append({key: rate for key, rate in rates if rate} | enforce)
    return msgspec.json.encode(interfaces).decode()


@dataclass(frozen=True, slots=True)
class _Number:
    """A JSON number as written."""

    text: str


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object as written: keys may repeat."""

    pairs: list[tuple[str, object]]


def _refuse(where: str, why: str) -> NoReturn:
    msg = f"{where}: {why}"
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def _refuse_constant(text: str) -> NoReturn:
    _refuse(ANNOTATION, f"not JSON: {text} is no JSON number")


_decoder = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
)


def _elements(text: str) -> list[object]:
    try:
        document = _decoder.decode(text)
    except json.JSONDecodeError as error:
        _refuse(ANNOTATION, f"not JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        _refuse(ANNOTATION, "nested too deeply; wanted a list of objects")
    if not isinstance(document, list):
        _refuse(ANNOTATION, f"is {_kind(document)}; wanted a list of objects, one an interface")
    if len(document) > MAX_INTERFACES:
        _refuse(ANNOTATION, f"asks for {len(document)} interfaces; at most {MAX_INTERFACES}")
    return document


@dataclass(slots=True)
class _Reader:
    """Reads interfaces and remembers what it passed over: `recased` keys and `unknown` ones by field."""

    strict: bool
    recased: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def interface(self, element: object, where: str) -> InterfaceRequest:
        if not isinstance(element, _Object):
            _refuse(where, f"is {_kind(element)}; wanted an object such as {{}}")
        values: dict[str, object] = {}
        for key, value in element.pairs:
            known = self._known(key, where)
            if known in values:
                _refuse(f"{where}.{known}", "given twice")
            if known is not None:
                values[known] = value
        reserved, cap = (_rate(values[key], f"{where}.{key}") if key in values else 0 for key in _RATES)
        if 0 < cap < reserved:
            _refuse(f"{where}.min_tx_rate", f"{reserved} is above max_tx_rate {cap}")
        enforce = _enforce(values.get(_ENFORCE, Enforce.AUTO.value), f"{where}.{_ENFORCE}")
        return InterfaceRequest(min_tx_rate_mbps=reserved, max_tx_rate_mbps=cap, enforce=enforce)

    def report(self) -> Iterator[str]:
        yield from self.recased[:_MAX_WARNINGS]
        for where, key in self.unknown[: max(0, _MAX_WARNINGS - len(self.recased))]:
            yield f"{where}: {describe_unknown(key, _KEYS)} (ignored)"
        unreported = len(self.recased) + len(self.unknown) - _MAX_WARNINGS
        if unreported > 0:
            yield f"{ANNOTATION}: {unreported} more keys like these"

    def _known(self, key: str, where: str) -> str | None:
        if key in _KEYS:
            return key
        where = f"{where}.{shown(key)}"
        if self.strict:
            _refuse(where, describe_unknown(key, _KEYS))
        if (folded := key.casefold()) in _KEYS:
            self.recased.append(f"{where}: unknown key; taken as {folded}")
            return folded
        self.unknown.append((where, key))
        return None


def _rate(value: object, where: str) -> int:
    if not isinstance(value, _Number):
        _refuse(where, f"is {_kind(value)}; a rate is a whole number of Mb/s")
    text = value.text
    if text.startswith("-"):
        _refuse(where, f"{shown(text)} is negative; a rate is a whole number of Mb/s")
    if not text.isdigit():
        _refuse(where, f"{shown(text)} is not written as a whole number of Mb/s")
    # The length first: converting thousands of digits is slow, and the interpreter refuses it.
    if len(text) > len(str(MAX_RATE_MBPS)) or int(text) > MAX_RATE_MBPS:
        _refuse(where, f"{shown(text)} is above {MAX_RATE_MBPS}, the largest rate in Mb/s")
    return int(text)


def _enforce(value: object, where: str) -> Enforce:
    known = ", ".join(each.value for each in Enforce)
    if not isinstance(value, str):
        _refuse(where, f"is {_kind(value)}; known are {known}")
    try:
        return Enforce(value)
    except ValueError:
        _refuse(where, f"{shown(value)} is unknown; known are {known}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case str():
            return "a string"
        case _Number():
            return "a number"
        case _Object():
            return "an object"
        case _:
            return "a list"
