"""What many virtual functions of a machine file have in common, written once.

A block of `repeated` holds the sections of a machine with `$name` where functions differ: `with` says what a
name stands for, `each` its value for the first function, counted up by one for every further one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

import msgspec

from k8s_rdma.core.ids import pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.machine_yaml import Refused, SymbolicLink

_PCI = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ADDRESS = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2})+|[0-9a-f]{4}(:[0-9a-f]{4})+")
_NUMBER = re.compile(r"[0-9]+")


class Repeated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One block, its sections as in `wire.machine.Machine`, not yet read."""

    count: int
    each: dict[str, str]
    constants: dict[str, str] = msgspec.field(name="with", default_factory=dict)
    sysfs: dict[str, Any] = {}
    links: list[Any] = []
    vfs: dict[str, Any] = {}
    rdma_devices: list[Any] = []
    firmware: dict[str, str] = {}

    def filled(self, offset: int) -> dict[str, Any]:
        """The sections for the function of this number. MalformedError for a name that has no value."""
        values = self.constants | {name: counted(first, offset) for name, first in self.each.items()}
        sections = {name: getattr(self, name) for name in _SECTIONS}
        return {name: _filled(section, values) for name, section in sections.items() if section}


_SECTIONS = Repeated.__struct_fields__[3:]


def expanded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its `repeated` blocks written out; MalformedError names the field."""
    result = {name: section for name, section in document.items() if name != "repeated"}
    blocks = document.get("repeated", [])
    if not isinstance(blocks, list):
        msg = f"repeated: expected a list of blocks, got {type(blocks).__name__}"
        raise MalformedError(msg)
    for number, raw in enumerate(blocks):
        where = f"repeated[{number}]"
        try:
            block = msgspec.convert(raw, Repeated, strict=False)
            for offset in range(block.count):
                result = merged(result, block.filled(offset))
        except (msgspec.ValidationError, MalformedError) as error:
            msg = f"{where}: {error}"
            raise MalformedError(msg) from error
    return result


def counted(first: str, offset: int) -> str:
    """A number, a PCI address (bus, device and function as one number), a MAC address or GUID, counted up.

    Source of the first: SR-IOV's routing ids (PCI Express Base Specification, 9.2.1.2).
    """
    if _NUMBER.fullmatch(first):
        return str(int(first) + offset)
    if found := _PCI.fullmatch(first):
        domain, bus, device, function = (int(part, 16) for part in found.groups())
        routing = (bus << 8 | device << 3 | function) + offset
        return pci_address(f"{domain:04x}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}")
    if _ADDRESS.fullmatch(first):
        octets = bytes.fromhex(first.replace(":", ""))
        return (int.from_bytes(octets) + offset).to_bytes(len(octets)).hex(":", -first.index(":") // 2)
    msg = f"each: {first!r} is no number, PCI address, MAC address or GUID that could be counted up"
    raise MalformedError(msg)


def _filled(part: Any, values: Mapping[str, str]) -> Any:
    """The part with its names replaced, in keys too."""
    if isinstance(part, str):
        try:
            return string.Template(part).substitute(values)
        except (KeyError, ValueError) as error:
            msg = f"{part}: holds a name that is neither in `each` nor in `with`"
            raise MalformedError(msg) from error
    if isinstance(part, SymbolicLink):
        return SymbolicLink(_filled(part.target, values))
    if isinstance(part, Refused):
        return part
    if isinstance(part, Mapping):
        return {_filled(key, values): _filled(value, values) for key, value in part.items()}
    return [_filled(each, values) for each in part]


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both: mappings key by key, lists one after the other. MalformedError when both say something."""
    result = dict(one)
    for key, value in other.items():
        had = result.get(key)
        if had is None:
            result[key] = value
        elif isinstance(had, Mapping) and isinstance(value, Mapping):
            result[key] = merged(had, value)
        elif isinstance(had, list) and isinstance(value, list):
            result[key] = [*had, *value]
        else:
            msg = f"{key}: is given already"
            raise MalformedError(msg)
    return result
