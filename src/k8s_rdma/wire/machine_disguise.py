"""A machine without what tells whose it is: addresses replaced, the same wherever they are the same.

A MAC address and the GUIDs and InfiniBand addresses that are made from it end with the same three octets, so
these are what is replaced: vendors stay readable, and so does which belong together. All zeros and all ones
mean none and everybody, and stay.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.wire.machine_yaml import SymbolicLink

if TYPE_CHECKING:
    from k8s_rdma.wire.machine import Entry, Machine

_OCTETS = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5,}"
_WORDS = r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}"
_IN_NAME = r"(?<=x)(?:[0-9a-f]{16}|[0-9a-f]{12})"
_ADDRESS = re.compile(
    rf"(?<![0-9a-f:])(?:{_OCTETS}|{_WORDS})(?![0-9a-f:])|{_IN_NAME}(?![0-9a-f])", re.IGNORECASE
)
"""MAC addresses, GUIDs, and names made of them: `enx0c42a1000001`, `rocex0c42a10300000001`."""

_OPAQUE = frozenset({"phys_switch_id", "phys_port_id"})
"""Files with an address in an order of the driver's own; they serve to be compared."""

REPLACED = (
    "the last three octets of MAC addresses, GUIDs and InfiniBand addresses: equal ones are equal still",
    f"{' and '.join(sorted(_OPAQUE))}: equal ones are equal still",
)


def disguised(machine: Machine) -> Machine:
    """The same machine with other addresses."""
    return _Disguise().machine(machine)


class _Disguise:
    """Replacements by what they stand for, counted up in the order in which they are met."""

    def __init__(self) -> None:
        self._tails: dict[str, str] = {"000000": "000000", "ffffff": "ffffff"}
        self._ids: dict[str, str] = {}

    def machine(self, machine: Machine) -> Machine:
        about, sysfs = machine.about, machine.sysfs
        others = msgspec.to_builtins(msgspec.structs.replace(machine, sysfs={}))
        made = msgspec.convert(self._any(others), type(machine))
        entries = {self._text(path): self._entry(path, entry) for path, entry in sysfs.items()}
        return msgspec.structs.replace(made, about=about, sysfs=entries)

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._any(key): self._any(each) for key, each in value.items()}
        return [self._any(each) for each in value] if isinstance(value, list | tuple) else value

    def _entry(self, path: str, entry: Entry) -> Entry:
        if isinstance(entry, SymbolicLink):
            return SymbolicLink(self._text(entry.target))
        if not isinstance(entry, str):
            return entry
        if entry and posixpath.basename(path) in _OPAQUE:
            return self._ids.setdefault(entry, f"{len(self._ids) + 1:0{len(entry)}x}")
        return self._text(entry)

    def _text(self, text: str) -> str:
        return _ADDRESS.sub(lambda found: self._address(found[0]), text)

    def _address(self, address: str) -> str:
        """The address with the digits of its last three octets exchanged, wherever its colons are."""
        digits = address.replace(":", "")
        tail = digits[-6:].lower()
        new = digits[:-6] + self._tails.setdefault(tail, f"{len(self._tails) - 1:06x}")
        each = iter(new)
        return "".join(character if character == ":" else next(each) for character in address)
