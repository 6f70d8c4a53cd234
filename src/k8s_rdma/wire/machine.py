"""Machine files: what the kernel of a machine says about its network cards, as YAML that people read.

Recorded by `k8s-rdma gather`, or written from documentation; `sim.recorded_machine` answers from one. Format:
docs/gather.md.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.machine_ranges import expanded
from k8s_rdma.wire.machine_yaml import Flow, Refused, SymbolicLink, dump, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FORMAT = 1
"""Of the document; one that this program cannot read has another."""

Entry = str | SymbolicLink | Refused | None
"""What is at a path of sysfs: a file's text, or one of the two others; None for an empty directory."""

ErrorName = Annotated[str, msgspec.Meta(pattern=r"^E[A-Z0-9]+$")]
Index = Annotated[int, msgspec.Meta(ge=1)]
VfIndex = Annotated[int, msgspec.Meta(ge=0)]


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file is.

    machine: in one line. source: what recorded it, or the documentation that it is made from.
    kernel: its release. replaced: what does not stand in the file as it was. unreadable: what the recording
    could not look at.
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
    up: bool = False
    carrier: bool = False
    kind: str = ""
    master: int = 0
    peer: int = 0
    peer_elsewhere: int | None = None
    type: int = 1
    device: str = ""


class VfEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A VF as its PF has it, as `linux.discovery.queries.VfInfo`."""

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
    """What devlink was told of a VF's rates, as `linux.discovery.queries.DevlinkRate`."""

    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    group: str = ""
    group_rated: bool = False


class PortEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A port of an RDMA device, as `linux.discovery.queries.RdmaPort`."""

    number: Index
    state: str
    netdev_index: int | None = None


class RdmaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An RDMA device, as `linux.discovery.queries.RdmaDevice`."""

    index: int
    name: str
    node_guid: str = ""
    firmware: str = ""
    ports: tuple[PortEntry, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine.

    sysfs: `Entry` by path below its root, without `/` at either end; a tree in the file.
    vfs: by the PF's index. eswitch_modes: by PCI address. devlink_rates: by PCI address and VF.
    firmware: by netdev.
    refused: questions (of `Queries`) that are answered with an error, by name, and argument
        where there is one: `firmware eth0`.
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


def read_machine(path: Path) -> Machine:
    """The machine of a file; MalformedError names file and field."""
    try:
        return decode_machine(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MalformedError) as error:
        msg = f"{path}: {error}"
        raise MalformedError(msg) from error


def decode_machine(text: str) -> Machine:
    """The machine that a document describes; MalformedError names the field."""
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
    """The document: what is alike in one line each, sysfs as a tree."""
    sections = msgspec.to_builtins(msgspec.structs.replace(machine, sysfs={}), str_keys=True)
    document = {"format": FORMAT, **sections, "sysfs": _tree(machine.sysfs)}
    for section in ("links", "rdma_devices"):
        if section in document:
            document[section] = [Flow(each) for each in document[section]]
    if "vfs" in document:
        document["vfs"] = {pf: [Flow(vf) for vf in vfs] for pf, vfs in document["vfs"].items()}
    return dump(document)


def _flat(tree: Any) -> dict[str, Entry]:
    """By path; MalformedError when a path is given twice, or as a directory and as something else."""
    leaves = sorted(_leaves(tree, ""), key=lambda leaf: leaf[0].split("/"))
    for (one, _), (other, _) in itertools.pairwise(leaves):
        if other == one or other.startswith(f"{one}/"):
            msg = f"sysfs.{one}: is given twice"
            raise MalformedError(msg)
    return dict(leaves)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Entry]]:
    """Every path below the node that is no directory with something in it."""
    if isinstance(node, str | SymbolicLink | Refused):
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
    """Paths as nested directories; those that hold nothing but one other are written with it as one."""
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
