"""Values of the request annotation, token by token, each refused in its own words.

Read so rather than into a typed model, because `1.0` and `1e3` are numbers but no whole ones (the decoder of
the system that introduced the annotation refuses them too), and a key given twice has two meanings.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.nesting import NestingError, require_shallow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.options import Choices

ANNOTATION = "rdma_interfaces_required"
ANNOTATION_ALIAS = "k8s-rdma.io/interfaces"
"""An alias of the annotation with a domain, which linters of manifests require."""

E = TypeVar("E", bound=StrEnum)

_OCTETS = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2})+")
_MULTICAST = 0x01
"""The I/G bit of the first octet (IEEE 802, 8.2.2)."""


MAX_CHARACTERS = 128 * 1024
"""The limit of the annotation: half of the API server's limit for all annotations of a pod, because a
placement repeats the request. It is refused by its length because reading it takes so long."""


class Number(NamedTuple):
    """A JSON number as written."""

    text: str


class Object(NamedTuple):
    """A JSON object as written: keys may repeat."""

    pairs: list[tuple[str, object]]


def refuse(path: str, why: str) -> NoReturn:
    """MalformedError (`MALFORMED_ANNOTATION`) that names the field."""
    msg = f"{path}: {why}"
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def require_own_network(host_network: bool | None, pod: str = "") -> None:
    """Require a network of its own of a pod with interfaces, by annotation or by claim.

    The container runtime calls no plugin for a pod in its node's network (`hostNetwork`).
    pod: its name, if readers do not know it.
    MalformedError as `refuse`.
    """
    if host_network:
        path = f"pod {pod}: spec.hostNetwork" if pod else "spec.hostNetwork"
        refuse(path, "a pod in its node's network gets no interfaces")


def require_schedulable(host_network: bool | None, node_name: str | None) -> None:
    """Require of a pod in a manifest that it can be given interfaces, by either way.

    No scheduler places a pod that names its node, so that it has no reservation and its claims are never
    allocated.
    MalformedError as `refuse`.
    """
    require_own_network(host_network)
    if node_name:
        refuse("spec.nodeName", "a pod that names its node is not placed; use nodeSelector")


def _refuse_constant(text: str) -> NoReturn:
    msg = f"{text} is no JSON number"
    raise ValueError(msg)


_decoder = json.JSONDecoder(
    object_pairs_hook=Object, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)


def tokens(text: str, path: str = ANNOTATION) -> object:
    """Return the document: lists, `Object`, `Number`, text, truth values, null; path: its name in errors."""
    if len(text) > MAX_CHARACTERS:
        refuse(path, f"is {len(text)} characters long; at most {MAX_CHARACTERS}")
    try:
        require_shallow(text)
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        refuse(path, f"not JSON: {error.msg} at character {error.pos + 1}")
    except NestingError as error:
        refuse(path, f"{error}; wanted a list of objects")
    except ValueError as error:
        refuse(path, f"not JSON: {error}")


def kind(value: object) -> str:
    """Return the JSON type of a value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case str():
            return "a string"
        case Number():
            return "a number"
        case Object():
            return "an object"
        case _:
            return "a list"


def whole(value: object, path: str, least: int, largest: int, subject: str) -> int:
    """Return a whole number, of `subject`, from `least` (0 or more) to `largest`."""
    if not isinstance(value, Number):
        refuse(path, f"is {kind(value)}; {subject} is a whole number from {least} to {largest}")
    text = value.text
    # The length first: converting thousands of digits is slow, and the interpreter refuses it.
    if not text.isdigit() or len(text) > len(str(largest)) or not least <= int(text) <= largest:
        refuse(path, f"{shown(text)} is no whole number from {least} to {largest}, as {subject} is")
    return int(text)


def text(value: object, path: str, subject: str) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str):
        refuse(path, f"is {kind(value)}; wanted {subject}")
    if not value:
        refuse(path, f"is empty; wanted {subject}")
    return value


def choice(value: object, path: str, choices: type[E]) -> E:
    """Read a member of an enumeration by its value."""
    return _of_words(value, path, {choice.value: choice for choice in choices})


def word(value: object, path: str, choices: Choices) -> StrEnum:
    """Read a member of an enumeration by one of its words."""
    if choices.any_case and isinstance(value, str):
        value = next((found for found in choices.by_word if found.lower() == value.lower()), value)
    return _of_words(value, path, choices.by_word)


def _of_words(value: object, path: str, by_word: Mapping[str, E]) -> E:
    if not isinstance(value, str):
        refuse(path, f"is {kind(value)}; known are {', '.join(by_word)}")
    if value not in by_word:
        refuse(path, f"{shown(value)} is unknown; known are {', '.join(by_word)}")
    return by_word[value]


def flag(value: object, path: str) -> bool:
    """Return a truth value, or `on` and `off`, as configurations of other SR-IOV plugins have them."""
    if isinstance(value, bool):
        return value
    found = {"on": True, "off": False}.get(value) if isinstance(value, str) else None
    if found is None:
        description = shown(value) if isinstance(value, str) else kind(value)
        refuse(path, f'is {description}; wanted true, false, "on" or "off"')
    return found


def mac(value: object, path: str) -> str:
    """Return a MAC that an interface can have, lower case with colons."""
    address = _octets(value, path, 6, "a MAC such as 02:00:00:00:00:01")
    if int(address[:2], 16) & _MULTICAST:
        refuse(path, f"{address} is that of a group; an interface has one with an even first octet")
    return address


def guid(value: object, path: str) -> str:
    """Return a GUID (EUI-64) that a port can have, lower case with colons."""
    address = _octets(value, path, 8, "a GUID such as 02:00:00:ff:fe:00:00:01")
    if not address.strip("f:"):
        refuse(path, f"{address} is reserved")
    return address


def _octets(value: object, path: str, number: int, subject: str) -> str:
    address = text(value, path, subject).lower().replace("-", ":")
    if len(address) != 3 * number - 1 or not _OCTETS.fullmatch(address):
        refuse(path, f"{shown(str(value))} is not {subject}")
    if not address.strip("0:"):
        refuse(path, f"{address} stands for none; leave the key out to have the VF's own")
    return address


def pkey(value: object, path: str) -> int:
    """Return a partition key: 0x0001 to 0xffff as text, or its number; the base, without bit 15, is never 0.

    Source: InfiniBand Architecture Specification 1.4, section 10.9.2.
    """
    expectation = 'wanted a partition key such as "0x8001"'
    if isinstance(value, str):
        if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,4}", value):
            refuse(path, f"{shown(value)} is not hexadecimal with up to four digits; {expectation}")
        number = int(value, 16)
    elif isinstance(value, Number):
        number = whole(value, path, 0, 0xFFFF, "a partition key")
    else:
        refuse(path, f"is {kind(value)}; {expectation}")
    if not number & 0x7FFF:
        refuse(path, f"{number:#06x} is no partition, as its lower 15 bits are 0; {expectation}")
    return number
