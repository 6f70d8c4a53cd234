"""The result of an evaluation, and the file that keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of the measurement.

    commit: of the tree that was measured, and whether it had other changes. accelerator: `tcg` or `kvm`.
    load: the host's average of a minute before. repeated: how many measurements were made once more.
    """

    date: str
    product: str
    commit: str
    qemu: str
    accelerator: str
    kernel: str
    host_cores: int
    guest_cores: int
    load: float
    tcp_seconds: int
    verbs_seconds: int
    attempts: int
    repeated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pf:
    """reserved_mbps, taken_vfs: of all pods on it."""

    name: str
    driver: str
    link_mbps: int | None
    vfs: int
    taken_vfs: int
    reserved_mbps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node when all pods run."""

    name: str
    pfs: tuple[Pf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """An interface of a pod; rates in Mb/s, 0 if unset. enforced_*: as in `/v1/node`."""

    name: str
    address: str
    pf: str
    vf: int
    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    enforced_min: str | None
    enforced_max: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """wish: its annotation. node: empty for one that the scheduler refused, and refused says why."""

    name: str
    wish: str
    node: str = ""
    refused: str = ""
    interfaces: tuple[Interface, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """From the first interface of one pod to that of another. *_mbps: payload; path_mtu: of verbs, bytes."""

    source: str
    destination: str
    ping: bool
    rping: bool
    tcp_mbps: float
    tcp_mtu: int
    verbs_mbps: float
    verbs_message: int
    path_mtu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Calls of a CNI plugin, each in milliseconds from the spawn of its executable to its end."""

    plugin: str
    command: str
    milliseconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. vf: the PCI address of the VF of the timed calls."""

    conditions: Conditions
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    pairs: tuple[Pair, ...]
    vf: str
    timed: tuple[Timed, ...]


def save(result: Result, path: Path) -> None:
    """Write a result, to be rendered again."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(path: Path) -> Result:
    """Read a result as `save` wrote it; msgspec.ValidationError names the error in it."""
    return msgspec.json.decode(path.read_bytes(), type=Result)
