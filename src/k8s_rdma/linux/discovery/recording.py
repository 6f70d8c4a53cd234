"""Notes what is read of a machine and asked of its kernel, as `wire.machine` has it.

What was read can be read again of the note, links and refusals included; what was not there is not in it.
"""

from __future__ import annotations

import errno
import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.error_names import error_name
from k8s_rdma.linux.sysfs import Sysfs, is_gone
from k8s_rdma.wire.machine import DevlinkRateEntry, LinkEntry, RdmaEntry, VfEntry
from k8s_rdma.wire.machine_yaml import Refused, SymbolicLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from k8s_rdma.linux.discovery.queries import DevlinkRate, Queries, RdmaDevice, VfInfo
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.wire.machine import Entry

T = TypeVar("T")

_PCI_FUNCTION = re.compile(r"(?:.*/)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_DEVICES = "bus/pci/devices/"


class RecordingSysfs(Sysfs):
    """Another sysfs, noting what is read of it; nothing can be written through it (EROFS)."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__()
        self._sysfs = sysfs
        self._entries: dict[str, Entry] = {}
        self._places: dict[str, str] = {"": ""}

    def read(self, path: str) -> str:
        """A file's text, whole."""
        place = self._place(path)
        text = self._noting(place, lambda: self._sysfs.read(path))
        self._entries[place] = text.removesuffix("\n")
        return text

    def names(self, path: str) -> list[str]:
        """What a directory holds; of a PCI function's, only what is read of it itself is noted."""
        place = self._place(path)
        names = self._noting(place, lambda: self._sysfs.names(path))
        self._entries.setdefault(place, None)
        if not _PCI_FUNCTION.fullmatch(place):
            for name in names:
                self._note_child(place, name)
        return names

    def target(self, path: str) -> str:
        """The last part of where a symbolic link leads."""
        self._place(path)
        return self._sysfs.target(path)

    def resolved(self, path: str) -> str:
        """The path without symbolic links."""
        self._entries.setdefault(self._place(path), None)
        return self._sysfs.resolved(path)

    def write(self, path: str, _text: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "only read while recording", path)

    def entries(self) -> dict[str, Entry]:
        """What was noted; without PCI devices of which nothing was."""
        inside = {place for path in self._entries for place in _above(path)}
        known = inside | {path for path, entry in self._entries.items() if entry is not None}
        return {
            path: entry
            for path, entry in self._entries.items()
            if path
            and not (entry is None and path in inside)
            and not (
                isinstance(entry, SymbolicLink)
                and path.startswith(_PCI_DEVICES)
                and entry.target[1:] not in known
            )
        }

    def _noting(self, place: str, look: Callable[[], T]) -> T:
        try:
            return look()
        except OSError as error:
            if not is_gone(error):
                self._entries[place] = Refused(error_name(error.errno or errno.EIO))
            raise

    def _note_child(self, place: str, name: str) -> None:
        """Note links and directories; a file is noted when it is read."""
        path = f"{place}/{name}"
        if self._place(path) == path:
            try:
                self._sysfs.names(path)
            except OSError:
                return
            self._entries.setdefault(path, None)

    def _place(self, path: str) -> str:
        """Where a path leads without links, noting those that it leads through."""
        place = ""
        for part in filter(None, path.split("/")):
            below = f"{place}/{part}" if place else part
            if below not in self._places:
                self._places[below] = self._follow(below)
            place = self._places[below]
        return place

    def _follow(self, path: str) -> str:
        try:
            self._sysfs.target(path)
            place = self._sysfs.resolved(path)
        except OSError:
            return path
        self._entries[path] = SymbolicLink(f"/{place}")
        return place


class RecordingQueries:
    """Other `Queries`, noting each answer; a refusal is noted and answered with nothing.

    So whoever asks goes on: one question that needs a privilege leaves no hole where the others would be.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self.link_entries: tuple[LinkEntry, ...] = ()
        self.vf_entries: dict[int, tuple[VfEntry, ...]] = {}
        self.rdma_entries: tuple[RdmaEntry, ...] = ()
        self.default_routes: tuple[int, ...] = ()
        self.addressed: tuple[int, ...] = ()
        self.modes: dict[str, str] = {}
        self.rates: dict[str, dict[int, DevlinkRateEntry]] = {}
        self.firmwares: dict[str, str] = {}
        self.refusals: dict[str, KernelError] = {}

    def links(self) -> Sequence[Link]:
        """All netdevs."""
        found: Sequence[Link] = self._noting("links", self._queries.links, ())
        self.link_entries = tuple(msgspec.convert(link, LinkEntry, from_attributes=True) for link in found)
        return found

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """The VFs of a PF's netdev."""
        ask = partial(self._queries.vf_infos, index)
        found: Sequence[VfInfo] = self._noting(f"vf_infos {index}", ask, ())
        self.vf_entries[index] = tuple(msgspec.convert(vf, VfEntry, from_attributes=True) for vf in found)
        return found

    def default_route_links(self) -> frozenset[int]:
        """The links that default routes lead through."""
        nowhere: frozenset[int] = frozenset()
        found = self._noting("default_route_links", self._queries.default_route_links, nowhere)
        self.default_routes = tuple(sorted(found))
        return found

    def addressed_links(self) -> frozenset[int]:
        """The links with an address."""
        nowhere: frozenset[int] = frozenset()
        found = self._noting("addressed_links", self._queries.addressed_links, nowhere)
        self.addressed = tuple(sorted(found))
        return found

    def rdma_devices(self) -> Sequence[RdmaDevice]:
        """All RDMA devices."""
        ask = self._queries.rdma_devices
        found: Sequence[RdmaDevice] = self._noting("rdma_devices", ask, ())
        self.rdma_entries = tuple(msgspec.convert(each, RdmaEntry, from_attributes=True) for each in found)
        return found

    def eswitch_modes(self) -> Mapping[str, str]:
        """Switch modes by PCI address."""
        found: Mapping[str, str] = self._noting("eswitch_modes", self._queries.eswitch_modes, {})
        self.modes = dict(found)
        return found

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """What devlink was told of VFs' rates."""
        found: Mapping[str, Mapping[int, DevlinkRate]] = self._noting(
            "devlink_rates", self._queries.devlink_rates, {}
        )
        self.rates = msgspec.convert(found, dict[str, dict[int, DevlinkRateEntry]], from_attributes=True)
        return found

    def firmware(self, name: str) -> str:
        """A netdev's firmware version."""
        found = self._noting(f"firmware {name}", lambda: self._queries.firmware(name), "")
        if found:
            self.firmwares[name] = found
        return found

    def refused(self) -> dict[str, str]:
        """Questions by the name of the error that was the answer."""
        return {
            question: error_name(getattr(error, "errno", errno.EIO))
            for question, error in sorted(self.refusals.items())
        }

    def _noting(self, question: str, ask: Callable[[], T], nothing: T) -> T:
        try:
            answer = ask()
        except KernelError as error:
            self.refusals[question] = error
            return nothing
        self.refusals.pop(question, None)
        return answer


def _above(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:end]) for end in range(1, len(parts))}
