"""Machine files: the kernel's reports about the network cards of a machine, as YAML that people read.

Recorded by `k8s-rdma gather`, or written by hand. Format: docs/gather.md, tests/machines/README.md. Every
scalar is text; `!link /devices/...` is a symbolic link, its target counted from the root of sysfs, and
`!refused EINVAL` a file or directory that the kernel refuses to read.

A block of `repeated` holds the sections of a machine with `$name` in the places in which functions differ:
`with` gives a name's replacements, `each` its value for the first function, counted up by one for every
further one.

Files for others have their addresses replaced; equal addresses get equal replacements. A MAC address and the
GUIDs and InfiniBand addresses that are made from it end with the same three octets, so these are replaced.
Vendors stay readable, and so does the relation between addresses. All zeros and all ones have a meaning of
their own, and stay.
"""

from __future__ import annotations

import errno
import itertools
import posixpath
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import yaml

from k8s_rdma.core.types import pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.yaml import UniqueKeys, yaml_words

_PCI = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ADDRESS = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2})+|[0-9a-f]{4}(:[0-9a-f]{4})+")
_NUMBER = re.compile(r"[0-9]+")

_WIDTH = 160
_LINK, _REFUSED = "!link", "!refused"
_MAP, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:str"

FORMAT = 1
"""The version of the document's format; it changes when this program cannot read the document."""

ErrorName = Annotated[str, msgspec.Meta(pattern=r"^E[A-Z0-9]+$")]
Index = Annotated[int, msgspec.Meta(ge=1)]
VfIndex = Annotated[int, msgspec.Meta(ge=0)]

_OCTETS = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5,}"
_GUID_PATTERN = r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}"
_IN_NAME = r"(?<=x)(?:[0-9a-f]{16}|[0-9a-f]{12})"
_ADDRESS_IN_TEXT = re.compile(
    rf"(?<![0-9a-f:])(?:{_OCTETS}|{_GUID_PATTERN})(?![0-9a-f:])|{_IN_NAME}(?![0-9a-f])", re.IGNORECASE
)
"""MAC addresses, GUIDs, and names made of them: `enx0c42a1000001`, `rocex0c42a10300000001`."""

_OPAQUE = frozenset({"phys_switch_id", "phys_port_id"})
"""Files with an address in an order of the driver's own; they serve to be compared."""

REPLACED = (
    "the last three octets of MAC addresses, GUIDs and InfiniBand addresses: equal ones are equal still",
    f"{' and '.join(sorted(_OPAQUE))}: equal ones are equal still",
)


class Repeated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block, its sections as in `wire.machine.Machine`, not decoded yet."""

    count: int
    each: dict[str, str]
    constants: dict[str, str] = msgspec.field(name="with", default_factory=dict)
    sysfs: dict[str, Any] = {}
    links: list[Any] = []
    vfs: dict[str, Any] = {}
    rdma_devices: list[Any] = []
    firmware: dict[str, str] = {}

    def filled(self, offset: int) -> dict[str, Any]:
        """Return the sections for the function of this number. MalformedError if a name has no value."""
        values = self.constants | {name: counted(first, offset) for name, first in self.each.items()}
        sections = {name: getattr(self, name) for name in _SECTIONS}
        return {name: _filled(section, values) for name, section in sections.items() if section}


_SECTIONS = Repeated.__struct_fields__[3:]


def expanded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its `repeated` blocks written out; MalformedError names the field."""
    result = {name: section for name, section in document.items() if name != "repeated"}
    blocks = document.get("repeated", [])
    if not isinstance(blocks, list):
        msg = f"repeated: expected a list of blocks, got {type(blocks).__name__}"
        raise MalformedError(msg)
    for number, raw in enumerate(blocks):
        path = f"repeated[{number}]"
        try:
            block = msgspec.convert(raw, Repeated, strict=False)
            for offset in range(block.count):
                result = merged(result, block.filled(offset))
        except (msgspec.ValidationError, MalformedError) as error:
            msg = f"{path}: {error}"
            raise MalformedError(msg) from error
    return result


def counted(first: str, offset: int) -> str:
    """Return a number, PCI address (bus, device and function as one number), MAC address or GUID, counted up.

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
    """Return the part with its names replaced, in keys too."""
    if isinstance(part, str):
        try:
            return string.Template(part).substitute(values)
        except (KeyError, ValueError) as error:
            msg = f"{part}: holds a name that is neither in `each` nor in `with`"
            raise MalformedError(msg) from error
    if isinstance(part, SymbolicLink):
        return SymbolicLink(_filled(part.target, values))
    if isinstance(part, RefusedAnswer):
        return part
    if isinstance(part, Mapping):
        return {_filled(key, values): _filled(value, values) for key, value in part.items()}
    return [_filled(item, values) for item in part]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key, and lists one after the other. MalformedError when both have a value."""
    result = dict(first)
    for key, value in second.items():
        previous = result.get(key)
        if previous is None:
            result[key] = value
        elif isinstance(previous, Mapping) and isinstance(value, Mapping):
            result[key] = merged(previous, value)
        elif isinstance(previous, list) and isinstance(value, list):
            result[key] = [*previous, *value]
        else:
            msg = f"{key}: is given already"
            raise MalformedError(msg)
    return result


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """target: a path from the root of sysfs, beginning with `/`."""

    target: str

    def __post_init__(self) -> None:
        """Refuse a target that depends on the link's place, or leaves sysfs."""
        if not self.target.startswith("/") or posixpath.normpath(self.target) != self.target:
            msg = f"!link: expected a path from the root of sysfs without `.` and `..`, got {self.target!r}"
            raise MalformedError(msg)


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """error: the name of the kernel's error (errno(3))."""

    error: str

    def __post_init__(self) -> None:
        """Refuse a name that is no error's."""
        if not (self.error.startswith("E") and hasattr(errno, self.error)):
            msg = f"!refused: expected the name of an error such as EINVAL, got {self.error!r}"
            raise MalformedError(msg)

    @property
    def number(self) -> int:
        """The error as a number of this machine."""
        return int(getattr(errno, self.error))


class FlowMapping(dict[str, Any]):
    """A mapping that is written in one line."""


class _Loader(UniqueKeys, yaml.BaseLoader):
    """Text only: `0x10`, `no` and `21:10` are text in sysfs, not numbers and booleans."""


class _Dumper(yaml.SafeDumper):
    """Writes the form that `_Loader` reads; texts of several lines as blocks, without references."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write repeated values in full."""
        return True


def _scalar(kind: type[SymbolicLink | RefusedAnswer]) -> Any:
    return lambda loader, node: kind(loader.construct_scalar(node))


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STR, text, style="|" if "\n" in text else None)


_Dumper.yaml_implicit_resolvers = {}
_Loader.add_constructor(_LINK, _scalar(SymbolicLink))
_Loader.add_constructor(_REFUSED, _scalar(RefusedAnswer))
_Dumper.add_representer(str, _text)
_Dumper.add_representer(int, lambda dumper, number: _text(dumper, str(number)))
_Dumper.add_representer(bool, lambda dumper, flag: _text(dumper, str(flag).lower()))
_Dumper.add_representer(type(None), lambda dumper, _: _text(dumper, "null"))
_Dumper.add_representer(
    FlowMapping, lambda dumper, flow: dumper.represent_mapping(_MAP, flow, flow_style=True)
)
_Dumper.add_representer(SymbolicLink, lambda dumper, link: dumper.represent_scalar(_LINK, link.target))
_Dumper.add_representer(
    RefusedAnswer, lambda dumper, refused: dumper.represent_scalar(_REFUSED, refused.error)
)


def load(text: str) -> Any:
    """Mappings, lists, text, `SymbolicLink`, `RefusedAnswer`. MalformedError names the line, or the tag."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it makes nothing but the five kinds of value
    except yaml.YAMLError as error:
        raise MalformedError(yaml_words(error)) from error


def dump(document: Any) -> str:
    """Return the text of such a value, keys in their order; numbers and flags as `load` gives them."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True))


Entry = str | SymbolicLink | RefusedAnswer | None
"""The entry at a path of sysfs: a file's text, a symbolic link or a refusal; None for an empty directory."""


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of the file.

    machine: in one line.
    source: the program that recorded it, or the documentation that it is made from.
    kernel: its release.
    replaced: the values that were replaced in the file.
    unreadable: the places that the recording could not read.
    """

    machine: str
    source: str
    kernel: str
    replaced: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A netdev, as `linux.netlink.rtnl.Link`; without its alias."""

    index: Index
    name: str
    mac: str = ""
    mtu: int = 1500
    is_up: bool = msgspec.field(default=False, name="up")
    carrier: bool = False
    kind: str = ""
    master: int = 0
    peer: int = 0
    peer_elsewhere: int | None = None
    type: int = 1
    device: str = ""


class VfEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A VF as its PF has it, as `linux.netlink.queries.VfInfo`."""

    index: VfIndex
    mac: str
    vlan: int = 0
    qos: int = 0
    vlan_proto: str = ""
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: str = "auto"
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    node_guid: str = ""
    port_guid: str = ""


class DevlinkRateEntry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A VF's rates in devlink, as `linux.netlink.queries.DevlinkRate`."""

    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    group: str = ""
    group_rated: bool = False


class PortEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A port of an RDMA device, as `linux.netlink.queries.RdmaPort`."""

    number: Index
    state: str
    netdev_index: int | None = None


class RdmaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An RDMA device, as `linux.netlink.queries.RdmaNetlinkDevice`."""

    index: int
    name: str
    node_guid: str = ""
    firmware: str = ""
    ports: tuple[PortEntry, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine.

    sysfs: `Entry` by path below its root, without `/` at either end; a tree in the file.
    vfs: by the PF's index.
    eswitch_modes: by PCI address.
    devlink_rates: by PCI address and VF.
    firmware: by netdev.
    refused: questions (of `Queries`) that are answered with an error, by name, and by argument if there is
        one: `firmware eth0`.
    """

    about: About
    sysfs: dict[str, Any] = {}
    links: tuple[LinkEntry, ...] = ()
    vfs: dict[Index, tuple[VfEntry, ...]] = {}
    default_route_links: tuple[Index, ...] = ()
    addressed_links: tuple[Index, ...] = ()
    rdma_devices: tuple[RdmaEntry, ...] = ()
    eswitch_modes: dict[str, str] = {}
    devlink_rates: dict[str, dict[VfIndex, DevlinkRateEntry]] = {}
    firmware: dict[str, str] = {}
    refused: dict[str, ErrorName] = {}


def decode_machine(text: str) -> Machine:
    """Return the machine that a document describes; MalformedError names the field."""
    try:
        raw = load(text)
        if not isinstance(raw, dict):
            msg = f"expected a mapping of sections, got {type(raw).__name__}"
            raise MalformedError(msg)
        document = expanded(raw)
        if (found := document.pop("format", None)) != str(FORMAT):
            msg = f"format: expected {FORMAT}, got {found}; this program cannot read it"
            raise MalformedError(msg)
        sysfs = _flat(document.pop("sysfs", {}))
        return msgspec.structs.replace(msgspec.convert(document, Machine, strict=False), sysfs=sysfs)
    except msgspec.ValidationError as error:
        raise MalformedError(str(error)) from error


def encode_machine(machine: Machine) -> str:
    """Encode as YAML: objects that are alike in one line each, sysfs as a tree."""
    document = _sections(machine)
    for section in ("links", "rdma_devices"):
        if section in document:
            document[section] = [FlowMapping(entry) for entry in document[section]]
    if "vfs" in document:
        document["vfs"] = {pf: [FlowMapping(vf) for vf in vfs] for pf, vfs in document["vfs"].items()}
    return dump(document)


def encode_machine_json(machine: Machine) -> bytes:
    """Encode as JSON, with an object of one key in place of a tag: `{"!link": "/devices/..."}`."""
    document = _sections(machine)
    document["sysfs"] = _with_tagged_objects(document["sysfs"])
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _sections(machine: Machine) -> dict[str, Any]:
    sections = msgspec.to_builtins(msgspec.structs.replace(machine, sysfs={}), str_keys=True)
    return {"format": FORMAT, **sections, "sysfs": _tree(machine.sysfs)}


_TAGS: dict[str, type[SymbolicLink | RefusedAnswer]] = {_LINK: SymbolicLink, _REFUSED: RefusedAnswer}


def _with_tagged_objects(node: Any) -> Any:
    match node:
        case SymbolicLink():
            return {_LINK: node.target}
        case RefusedAnswer():
            return {_REFUSED: node.error}
        case dict():
            return {name: _with_tagged_objects(child) for name, child in node.items()}
    return node


def _from_tagged_object(node: Any) -> Any:
    """Return the value of such an object; anything else as it is."""
    if not isinstance(node, dict) or len(node) != 1:
        return node
    [(tag, value)] = node.items()
    return _TAGS[tag](value) if tag in _TAGS and isinstance(value, str) else node


def _flat(tree: Any) -> dict[str, Entry]:
    """Flatten entries by path; MalformedError when a path occurs twice, or as a directory and otherwise."""
    leaves = sorted(_leaves(tree, ""), key=lambda leaf: leaf[0].split("/"))
    for (previous, _), (following, _) in itertools.pairwise(leaves):
        if following == previous or following.startswith(f"{previous}/"):
            msg = f"sysfs.{previous}: is given twice"
            raise MalformedError(msg)
    return dict(leaves)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Entry]]:
    """Yield every path below the node that is a leaf: a text, a link, a refusal or an empty directory."""
    node = _from_tagged_object(node)
    if isinstance(node, str | SymbolicLink | RefusedAnswer):
        yield path, node
        return
    if not isinstance(node, dict):
        msg = f"sysfs.{path}: expected a directory, a text, !link or !refused, got {type(node).__name__}"
        raise MalformedError(msg)
    if path and not node:
        yield path, None
    for name, child in node.items():
        if not name or any(part in {"", ".", ".."} for part in name.split("/")):
            msg = f"sysfs.{path}: expected names or paths below it, got {name!r}"
            raise MalformedError(msg)
        yield from _leaves(child, f"{path}/{name}" if path else name)


def _tree(sysfs: Mapping[str, Entry]) -> dict[str, Any]:
    """Return paths as nested directories; a directory with only one entry is written together with it."""
    root: dict[str, Any] = {}
    for path, entry in sorted(sysfs.items()):
        *parents, name = path.split("/")
        directory = root
        for parent in parents:
            directory = directory.setdefault(parent, {})
        directory[name] = {} if entry is None else entry
    return _joined(root)


def _joined(directory: dict[str, Any]) -> dict[str, Any]:
    return dict(_with_only_child(name, child) for name, child in directory.items())


def _with_only_child(name: str, child: Any) -> tuple[str, Any]:
    if not isinstance(child, dict):
        return name, child
    below = list(child.items())
    if len(below) == 1 and isinstance(below[0][1], dict):
        return _with_only_child(f"{name}/{below[0][0]}", below[0][1])
    return name, _joined(child)


def disguised(machine: Machine) -> Machine:
    """Return the machine with other addresses."""
    return _Disguise().machine(machine)


class _Disguise:
    """Replacements by their originals, counted up in the order in which they are met."""

    def __init__(self) -> None:
        self._tails: dict[str, str] = {"000000": "000000", "ffffff": "ffffff"}
        self._ids: dict[str, str] = {}

    def machine(self, machine: Machine) -> Machine:
        about, sysfs = machine.about, machine.sysfs
        sections = msgspec.to_builtins(msgspec.structs.replace(machine, sysfs={}))
        disguised = msgspec.convert(self._disguised(sections), type(machine))
        entries = {self._text(path): self._entry(path, entry) for path, entry in sysfs.items()}
        return msgspec.structs.replace(disguised, about=about, sysfs=entries)

    def _disguised(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._disguised(key): self._disguised(item) for key, item in value.items()}
        return [self._disguised(entry) for entry in value] if isinstance(value, list | tuple) else value

    def _entry(self, path: str, entry: Entry) -> Entry:
        if isinstance(entry, SymbolicLink):
            return SymbolicLink(self._text(entry.target))
        if not isinstance(entry, str):
            return entry
        if entry and posixpath.basename(path) in _OPAQUE:
            return self._ids.setdefault(entry, f"{len(self._ids) + 1:0{len(entry)}x}")
        return self._text(entry)

    def _text(self, text: str) -> str:
        return _ADDRESS_IN_TEXT.sub(lambda found: self._address(found[0]), text)

    def _address(self, address: str) -> str:
        """Return the address with the digits of its last three octets exchanged, wherever its colons are."""
        digits = address.replace(":", "")
        tail = digits[-6:].lower()
        new = digits[:-6] + self._tails.setdefault(tail, f"{len(self._tails) - 1:06x}")
        characters = iter(new)
        return "".join(character if character == ":" else next(characters) for character in address)
