"""Records a machine as a file that tests and bug reports can read again.

The recording covers what the observation reads while it reads it, whatever the configuration would select,
and a fixed list of files that help to understand a report. Links and refusals are recorded as such; what
was absent is left out. The file's form is `wire.machine`.
"""

from __future__ import annotations

import errno
import platform
import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from k8s_rdma import __version__
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import pci_address
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.sysfs import Sysfs, error_name, is_absent
from k8s_rdma.wire.machine import (
    REPLACED,
    About,
    DevlinkRateEntry,
    Entry,
    LinkEntry,
    Machine,
    RdmaEntry,
    RefusedAnswer,
    SymbolicLink,
    VfEntry,
    disguised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from k8s_rdma.linux.netlink.queries import DevlinkRate, Queries, RdmaNetlinkDevice, VfInfo
    from k8s_rdma.linux.netlink.rtnl import Link

T = TypeVar("T")

_PCI_FUNCTION = re.compile(r"(?:.*/)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_DEVICES = "bus/pci/devices/"

_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = "0x02"
_FUNCTION = ("class", "vendor", "device", "numa_node")
_PF = (
    *("revision", "subsystem_vendor", "subsystem_device", "modalias", "uevent"),
    *("sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe", "sriov_offset", "sriov_stride"),
    *("sriov_vf_device", "sriov_vf_total_msix"),
    *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
)
_NETDEV = (
    *("ifindex", "type", "address", "mtu", "flags", "operstate", "carrier", "speed", "duplex"),
    *("dev_id", "dev_port", "phys_port_name", "phys_switch_id", "phys_port_id"),
)
_RDMA = ("node_type", "node_guid", "sys_image_guid", "fw_ver", "hca_type", "board_id", "parent")
_RDMA_PORT = ("state", "phys_state", "rate", "link_layer")
_VIRTFN = re.compile(r"virtfn\d+")
_VETH = "veth"

OMITTED = (
    "host name, IP addresses, interface aliases, serial numbers and vital product data are not recorded",
    "the host's ends of pods' interfaces (veth) are left out",
)


class RecordingSysfs(Sysfs):
    """Wraps another sysfs and records every file read through it. Writes are refused (EROFS)."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__()
        self._sysfs = sysfs
        self._entries: dict[str, Entry] = {}
        self._places: dict[str, str] = {"": ""}

    def read(self, path: str) -> str:
        """Return a file's text, whole."""
        place = self._place(path)
        text = self._noting(place, lambda: self._sysfs.read(path))
        self._entries[place] = text.removesuffix("\n")
        return text

    def names(self, path: str) -> list[str]:
        """Return a directory's names; a PCI function's files are recorded only when read."""
        place = self._place(path)
        names = self._noting(place, lambda: self._sysfs.names(path))
        self._entries.setdefault(place, None)
        if not _PCI_FUNCTION.fullmatch(place):
            for name in names:
                self._note_child(place, name)
        return names

    def target(self, path: str) -> str:
        """Return the last part of a symbolic link's target."""
        self._place(path)
        return self._sysfs.target(path)

    def resolved(self, path: str) -> str:
        """Return the path without symbolic links."""
        self._entries.setdefault(self._place(path), None)
        return self._sysfs.resolved(path)

    def write(self, path: str, _text: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "only read while recording", path)

    def entries(self) -> dict[str, Entry]:
        """Return the recorded entries, without links to PCI devices that were not read."""
        inside = {place for path in self._entries for place in _above(path)}
        existing = inside | {path for path, entry in self._entries.items() if entry is not None}
        return {
            path: entry
            for path, entry in self._entries.items()
            if path
            and not (entry is None and path in inside)
            and not (
                isinstance(entry, SymbolicLink)
                and path.startswith(_PCI_DEVICES)
                and entry.target[1:] not in existing
            )
        }

    def _noting(self, place: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except OSError as error:
            if not is_absent(error):
                self._entries[place] = RefusedAnswer(error_name(error.errno or errno.EIO))
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
        """Resolve a path and record the symbolic links on the way."""
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
    """Wraps other `Queries` and records each answer; a refusal is recorded and answered as empty.

    The observation then goes on: one query that needs a privilege does not hide the others.
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
        """Return all netdevs."""
        found: Sequence[Link] = self._noting("links", self._queries.links, ())
        self.link_entries = tuple(msgspec.convert(link, LinkEntry, from_attributes=True) for link in found)
        return found

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Return the VFs of a PF's netdev."""
        query = partial(self._queries.vf_infos, index)
        found: Sequence[VfInfo] = self._noting(f"vf_infos {index}", query, ())
        self.vf_entries[index] = tuple(msgspec.convert(vf, VfEntry, from_attributes=True) for vf in found)
        return found

    def default_route_links(self) -> frozenset[int]:
        """Return the links of the default routes."""
        nowhere: frozenset[int] = frozenset()
        found = self._noting("default_route_links", self._queries.default_route_links, nowhere)
        self.default_routes = tuple(sorted(found))
        return found

    def addressed_links(self) -> frozenset[int]:
        """Return the links with an address."""
        nowhere: frozenset[int] = frozenset()
        found = self._noting("addressed_links", self._queries.addressed_links, nowhere)
        self.addressed = tuple(sorted(found))
        return found

    def rdma_devices(self) -> Sequence[RdmaNetlinkDevice]:
        """Return all RDMA devices."""
        query = self._queries.rdma_devices
        found: Sequence[RdmaNetlinkDevice] = self._noting("rdma_devices", query, ())
        self.rdma_entries = tuple(
            msgspec.convert(device, RdmaEntry, from_attributes=True) for device in found
        )
        return found

    def eswitch_modes(self) -> Mapping[str, str]:
        """Return the switch modes by PCI address."""
        found: Mapping[str, str] = self._noting("eswitch_modes", self._queries.eswitch_modes, {})
        self.modes = dict(found)
        return found

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """Return the devlink rates of VFs."""
        found: Mapping[str, Mapping[int, DevlinkRate]] = self._noting(
            "devlink_rates", self._queries.devlink_rates, {}
        )
        self.rates = msgspec.convert(found, dict[str, dict[int, DevlinkRateEntry]], from_attributes=True)
        return found

    def firmware(self, name: str) -> str:
        """Return a netdev's firmware version."""
        found = self._noting(f"firmware {name}", lambda: self._queries.firmware(name), "")
        if found:
            self.firmwares[name] = found
        return found

    def refused(self) -> dict[str, str]:
        """Return the refused queries, each with the name of its error."""
        return {
            question: error_name(getattr(error, "errno", errno.EIO))
            for question, error in sorted(self.refusals.items())
        }

    def _noting(self, question: str, query: Callable[[], T], nothing: T) -> T:
        try:
            answer = query()
        except KernelError as error:
            self.refusals[question] = error
            return nothing
        self.refusals.pop(question, None)
        return answer


def _above(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:end]) for end in range(1, len(parts))}


def gather(sysfs: Sysfs, queries: Queries) -> Machine:
    """Record this machine, anonymized (`wire.machine`); `about` lists files that could not be read."""
    read, queried = RecordingSysfs(sysfs), RecordingQueries(queries)
    gathering = _Gathering(sysfs, read, queried)
    gathering.observe()
    gathering.look_further()
    about = About(
        machine=gathering.summary(),
        source=f"recorded by k8s-rdma gather {__version__}",
        kernel=f"{platform.release()} {platform.machine()}",
        replaced=(*REPLACED, *OMITTED),
        unreadable=tuple(dict.fromkeys([*gathering.unreadable, *map(str, queried.refusals.values())])),
    )
    links = tuple(link for link in queried.link_entries if link.kind != _VETH)
    shown = {link.index for link in links}
    return disguised(
        Machine(
            about=about,
            sysfs=dict(sorted(read.entries().items())),
            links=links,
            vfs=dict(sorted(queried.vf_entries.items())),
            default_route_links=queried.default_routes,
            addressed_links=tuple(index for index in queried.addressed if index in shown),
            rdma_devices=queried.rdma_entries,
            eswitch_modes=queried.modes,
            devlink_rates=queried.rates,
            firmware=dict(sorted(queried.firmwares.items())),
            refused=queried.refused(),
        )
    )


class _Gathering:
    """A recording in progress, with the list of files that could not be read."""

    def __init__(self, unnoted: Sysfs, sysfs: RecordingSysfs, queries: RecordingQueries) -> None:
        self._unnoted, self._sysfs, self._queries = unnoted, sysfs, queries
        self.unreadable: list[str] = []

    def observe(self) -> None:
        """Observe the machine as the agent does, with every PF selected."""
        pcis = frozenset(pci_address(name) for name in self._names(_DEVICES))
        for selection in (Selection(), Selection(require_rdma=False, rules=(PfRule(pcis=pcis),))):
            try:
                Observer(self._sysfs, self._queries, selection).observe()
            except KernelError as error:
                self.unreadable.append(str(error))

    def look_further(self) -> None:
        """Record files that only people who diagnose a fault read."""
        drivers = set()
        for pci in sorted(self._names(_DEVICES)):
            function = f"{_DEVICES}/{pci}"
            if (self._unnoted.value_if_any(f"{function}/class") or "").startswith(_NETWORK_CLASS):
                self._function(function)
                drivers.add(self._target(f"{function}/driver"))
        for driver in sorted(drivers - {""}):
            self._text(f"module/{driver}/version")
        for name in self._names("class/infiniband"):
            self._rdma_device(f"class/infiniband/{name}")
        for name in self._names("class/infiniband_verbs"):
            self._texts(f"class/infiniband_verbs/{name}", ("ibdev", "dev"))
        for name in self._names("class/infiniband_mad"):
            self._texts(f"class/infiniband_mad/{name}", ("ibdev", "dev", "port"))
        self._text("class/misc/rdma_cm/dev")

    def summary(self) -> str:
        """Summary of PFs and VFs by driver."""
        pfs = [
            f"{self._target(f'{function}/driver') or 'no driver'} {name} with {count} VFs"
            for name in sorted(self._names(_DEVICES))
            if (count := self._text(f"{(function := f'{_DEVICES}/{name}')}/sriov_numvfs")) is not None
        ]
        return "; ".join(pfs) or "no device that can have VFs"

    def _function(self, path: str) -> None:
        self._texts(path, _FUNCTION)
        self._target(f"{path}/iommu_group")
        names = self._names(path)
        for name in names:
            if _VIRTFN.fullmatch(name) or name == "physfn":
                self._target(f"{path}/{name}")
        if "physfn" in names:  # 127 VFs of a port are alike in all the rest
            return
        self._texts(path, _PF)
        for netdev in self._names(f"{path}/net"):
            self._texts(f"{path}/net/{netdev}", _NETDEV)

    def _rdma_device(self, path: str) -> None:
        self._texts(path, _RDMA)
        for port in self._names(f"{path}/ports"):
            self._texts(f"{path}/ports/{port}", _RDMA_PORT)

    def _texts(self, directory: str, names: Iterable[str]) -> None:
        for name in names:
            self._text(f"{directory}/{name}")

    def _text(self, path: str) -> str | None:
        try:
            return self._sysfs.value_if_any(path)
        except OSError as error:
            self._cannot(path, error)
            return None

    def _names(self, path: str) -> list[str]:
        try:
            return self._sysfs.names(path)
        except OSError as error:
            self._cannot(path, error)
            return []

    def _target(self, path: str) -> str:
        try:
            return self._sysfs.target(path)
        except OSError as error:
            self._cannot(path, error)
            return ""

    def _cannot(self, path: str, error: OSError) -> None:
        if not is_absent(error):
            self.unreadable.append(f"{path}: {error.strerror}")
