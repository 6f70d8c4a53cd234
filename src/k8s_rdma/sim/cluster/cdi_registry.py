"""A container runtime's view of CDI specifications: what a container that asks for a device is given.

Source: CNCF Container Device Interface, SPEC.md, and its library's `pkg/cdi`: files are read strictly, of two
directories the later one counts, of one directory no device that two files have.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_VERSIONS = frozenset(
    {"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"}
)
_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whatever a specification has: a key that nobody knows makes it unreadable."""


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node. type: empty: whatever the host has at that path."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part, frozen=True, kw_only=True):
    """A file or directory of the host."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Edits(_Part, frozen=True, kw_only=True):
    """What is done to a container. hooks and the like: not run here."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Any, ...] = ()
    net_devices: tuple[Any, ...] = ()
    intel_rdt: Any = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")


class _Device(_Part, frozen=True, kw_only=True):
    name: str
    annotations: dict[str, str] = {}
    container_edits: Edits


class _Specification(_Part, frozen=True, kw_only=True):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...]
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()


class UnresolvableError(Exception):
    """No specification, or two, have these devices."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")


def edits_for(names: Sequence[str], directories: Sequence[Path]) -> list[Edits]:
    """The edits for devices by their qualified names, as the files are now; UnresolvableError."""
    known: dict[str, tuple[_Specification, _Device]] = {}
    for directory in directories:
        known |= _devices_in(directory)
    if missing := [name for name in names if name not in known]:
        raise UnresolvableError(missing)
    edits: list[Edits] = []
    for specification, device in (known[name] for name in names):
        if specification.container_edits not in edits:
            edits.append(specification.container_edits)
        edits.append(device.container_edits)
    return edits


def _devices_in(directory: Path) -> dict[str, tuple[_Specification, _Device]]:
    found = [
        (f"{specification.kind}={device.name}", (specification, device))
        for specification in _specifications(directory)
        for device in specification.devices
    ]
    times = Counter(name for name, _ in found)
    return {name: device for name, device in found if times[name] == 1}


def _specifications(directory: Path) -> Iterator[_Specification]:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.suffix not in _SUFFIXES:
            continue
        try:
            read = msgspec.convert(yaml.safe_load(path.read_bytes()), _Specification)
        except (FileNotFoundError, msgspec.ValidationError, yaml.YAMLError):
            continue
        if read.cdi_version in _VERSIONS:
            yield read
