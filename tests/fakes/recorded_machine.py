"""A machine from a file (`wire.machine`), read as a real one is: its sysfs, and its kernel's replies.

The sysfs is served from memory: directories, symbolic links, and files that the kernel refuses to read;
every failure is an OSError with the kernel's errno. Kernel rules hold: VFs are listed by the index of their
PF only, absent devices are not reported, and a driver may unbind from its device between two reads.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.errors import MalformedError
from k8s_rdma.linux.netlink.queries import DevlinkRate, RdmaNetlinkDevice, RdmaPort, VfInfo
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.machine import Entry, Machine, RdmaEntry, RefusedAnswer, SymbolicLink, decode_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from k8s_rdma.core.types import PciAddress
    from k8s_rdma.linux.netlink.dcb import DcbState

_MOST_LINKS = 40
"""Symbolic links that a path may lead through (Linux `include/linux/namei.h`, MAXSYMLINKS)."""

_DIRECTORY = None


class RecordedTree:
    """Entries by path; directories are those that have something below them, and the empty ones recorded.

    As in sysfs, links lead to an entry: to an empty directory if their target is not recorded.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._nodes: dict[str, Entry] = {"": _DIRECTORY}
        self._names: dict[str, set[str]] = {"": set()}
        for path, entry in entries.items():
            self._enter(path, entry)
        for entry in entries.values():
            if isinstance(entry, SymbolicLink) and entry.target[1:] not in self._nodes:
                self._enter(entry.target[1:], _DIRECTORY)

    def _enter(self, path: str, entry: Entry) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._names:
            self._enter(parent, _DIRECTORY)
        self._names[parent].add(name)
        self._nodes[path] = entry
        if entry is _DIRECTORY:
            self._names.setdefault(path, set())

    def read(self, path: str) -> str:
        """A file's text; one that is not empty ends with a newline."""
        node = self._nodes[self.resolved(path)]
        if isinstance(node, RefusedAnswer):
            raise _error(node.number, path)
        if not isinstance(node, str):
            raise _error(errno.EISDIR, path)
        return f"{node}\n" if node else ""

    def names(self, path: str) -> list[str]:
        """Return a directory's entries."""
        found = self.resolved(path)
        node = self._nodes[found]
        if isinstance(node, RefusedAnswer):
            raise _error(node.number, path)
        if node is not _DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        return sorted(self._names[found])

    def target(self, path: str) -> str:
        """Return the last part of a link's target."""
        parent, _, name = path.rstrip("/").rpartition("/")
        directory = self.resolved(parent)
        node = self._node(directory, f"{directory}/{name}" if directory else name, path)
        if not isinstance(node, SymbolicLink):
            raise _error(errno.EINVAL, path)
        return node.target.rpartition("/")[2]

    def resolved(self, path: str) -> str:
        """Return the path without symbolic links."""
        steps, links, found = path.split("/")[::-1], 0, ""
        while steps:
            step = steps.pop()
            if step in {"", "."}:
                continue
            if step == "..":
                found = found.rpartition("/")[0]
                continue
            below = f"{found}/{step}" if found else step
            node = self._node(found, below, path)
            if not isinstance(node, SymbolicLink):
                found = below
                continue
            links += 1
            if links > _MOST_LINKS:
                raise _error(errno.ELOOP, path)
            found = ""
            steps += node.target.split("/")[::-1]
        return found

    def _node(self, directory: str, below: str, path: str) -> Entry:
        if self._nodes[directory] is not _DIRECTORY:
            node = self._nodes[directory]
            raise _error(node.number if isinstance(node, RefusedAnswer) else errno.ENOTDIR, path)
        if below not in self._nodes:
            raise _error(errno.ENOENT, path)
        return self._nodes[below]

    def set_text(self, path: str, text: str) -> None:
        """Give the file at a resolved path another text, if the file exists."""
        if path in self._nodes:
            self._nodes[path] = text

    def remove(self, path: str) -> None:
        """Take away a resolved path, all below it, and the links that lead there."""
        links = {
            location: node.target[1:]
            for location, node in self._nodes.items()
            if isinstance(node, SymbolicLink)
        }
        for removed in (path, *(at for at, target in links.items() if f"{target}/".startswith(f"{path}/"))):
            self._cut(removed)

    def _cut(self, path: str) -> None:
        if path not in self._nodes:
            return
        for name in list(self._names.get(path, ())):
            self._cut(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        self._names[parent].discard(name)
        self._names.pop(path, None)
        del self._nodes[path]


class RecordedSysfs(Sysfs):
    """The sysfs of a recorded machine; all writes fail (EROFS)."""

    def __init__(self, tree: RecordedTree, before_read: Callable[[], None]) -> None:
        """`before_read` is called before each read."""
        super().__init__()
        self._tree, self._before_read = tree, before_read

    def read(self, path: str) -> str:
        """A file's text, whole."""
        self._before_read()
        return self._tree.read(path)

    def names(self, path: str) -> list[str]:
        """Return a directory's entries."""
        self._before_read()
        return self._tree.names(path)

    def target(self, path: str) -> str:
        """Return the last part of a symbolic link's target."""
        self._before_read()
        return self._tree.target(path)

    def resolved(self, path: str) -> str:
        """The path without symbolic links."""
        self._before_read()
        return self._tree.resolved(path)

    def write(self, path: str, _text: str) -> None:
        """Refuse."""
        raise _error(errno.EROFS, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), f"/{path.strip('/')}")


class RecordedMachine:
    """One machine; `reads` counts reads and queries.

    sysfs, queries: as `linux.sysfs.Sysfs` and `linux.netlink.queries.Queries` of a real one.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tree = RecordedTree(machine.sysfs)
        self.sysfs = RecordedSysfs(self.tree, self.count_read)
        self.queries = RecordedQueries(self)
        self.reads = 0
        self._leaving: tuple[PciAddress, int] | None = None

    def unbind_driver_after(self, pci: PciAddress, reads: int) -> None:
        """Unbind the driver from a device after so many further reads."""
        self._leaving = (pci, self.reads + reads)

    def count_read(self) -> None:
        """Count a read or query; it comes before each of them."""
        if self._leaving is not None and self.reads >= self._leaving[1]:
            pci, self._leaving = self._leaving[0], None
            self._unbind(pci)
        self.reads += 1

    def _unbind(self, pci: PciAddress) -> None:
        """As drivers of NICs do it: the VFs end with the driver of their PF, and all interfaces of them."""
        device = self.tree.resolved(f"bus/pci/devices/{pci}")
        functions = [f"{device}/{name}" for name in self.tree.names(device) if name.startswith("virtfn")]
        netdevs = {
            name
            for function in (device, *functions)
            if "net" in self.tree.names(function)
            for name in self.tree.names(f"{function}/net")
        }
        addresses = {self.tree.resolved(function).rpartition("/")[2] for function in functions} | {pci}
        for function in functions:
            self.tree.remove(self.tree.resolved(function))
        for name in {"driver", "net", "infiniband", "infiniband_verbs", "sriov"} & set(
            self.tree.names(device)
        ):
            self.tree.remove(f"{device}/{name}")
        self.tree.set_text(f"{device}/sriov_numvfs", "0")
        self._forget(netdevs, addresses)

    def _forget(self, netdevs: set[str], addresses: set[str]) -> None:
        """Answer questions without these from now on; soft RDMA devices end with their netdev."""
        links = tuple(link for link in self.machine.links if link.name not in netdevs)
        indexes = {link.index for link in self.machine.links} - {link.index for link in links}
        self.machine = msgspec.structs.replace(
            self.machine,
            links=links,
            vfs={index: vfs for index, vfs in self.machine.vfs.items() if index not in indexes},
            default_route_links=tuple(set(self.machine.default_route_links) - indexes),
            addressed_links=tuple(set(self.machine.addressed_links) - indexes),
            rdma_devices=tuple(
                device
                for device in self.machine.rdma_devices
                if not indexes & {port.netdev_index for port in device.ports}
            ),
            eswitch_modes={
                pci: mode for pci, mode in self.machine.eswitch_modes.items() if pci not in addresses
            },
            devlink_rates={
                pci: rates for pci, rates in self.machine.devlink_rates.items() if pci not in addresses
            },
        )


class RecordedQueries:
    """`linux.netlink.queries.Queries` of a recorded machine."""

    def __init__(self, machine: RecordedMachine) -> None:
        self._machine = machine

    def links(self) -> Sequence[Link]:
        """Those recorded, without aliases."""
        entries = self._query("links").links
        return [Link(**msgspec.structs.asdict(entry), alias="") for entry in entries]

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Those of the link of this index; empty if it is no PF, ENODEV if there is no such link."""
        machine = self._query(f"vf_infos {index}")
        if not any(link.index == index for link in machine.links):
            operation = f"VFs of link #{index}"
            raise NetlinkError(operation, errno.ENODEV)
        return [VfInfo(**msgspec.structs.asdict(entry)) for entry in machine.vfs.get(index, ())]

    def default_route_links(self) -> frozenset[int]:
        """As recorded."""
        return frozenset(self._query("default_route_links").default_route_links)

    def addressed_links(self) -> frozenset[int]:
        """As recorded."""
        return frozenset(self._query("addressed_links").addressed_links)

    def rdma_devices(self) -> Sequence[RdmaNetlinkDevice]:
        """As recorded."""
        return [_rdma_device(entry) for entry in self._query("rdma_devices").rdma_devices]

    def netns_mode(self) -> NetnsMode | None:
        """The kernel's default if there are RDMA devices; it is not recorded."""
        return NetnsMode.SHARED if self._query("netns_mode").rdma_devices else None

    def dcb(self, name: str) -> DcbState | None:
        """Unset, because it is not recorded, like the next two."""
        self._query(f"dcb {name}")
        return None

    def pauses(self, name: str) -> bool | None:
        """Unset."""
        self._query(f"pauses {name}")
        return None

    def devlink_flags(self, name: str) -> Mapping[str, bool]:
        """Empty."""
        self._query(f"devlink_flags {name}")
        return {}

    def eswitch_modes(self) -> Mapping[str, str]:
        """As recorded."""
        return self._query("eswitch_modes").eswitch_modes

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """As recorded."""
        return {
            pci: {vf: DevlinkRate(**msgspec.structs.asdict(entry)) for vf, entry in rates.items()}
            for pci, rates in self._query("devlink_rates").devlink_rates.items()
        }

    def firmware(self, name: str) -> str:
        """As recorded, empty without a record; ENODEV if there is no such link."""
        machine = self._query(f"firmware {name}")
        if not any(link.name == name for link in machine.links):
            operation = f"firmware of {name}"
            raise NetlinkError(operation, errno.ENODEV)
        return machine.firmware.get(name, "")

    def _query(self, question: str) -> Machine:
        self._machine.count_read()
        machine = self._machine.machine
        if refusal := machine.refused.get(question):
            raise NetlinkError(question, getattr(errno, refusal))
        return machine


def _rdma_device(entry: RdmaEntry) -> RdmaNetlinkDevice:
    ports = tuple(RdmaPort(**msgspec.structs.asdict(port)) for port in entry.ports)
    return RdmaNetlinkDevice(**msgspec.structs.asdict(entry) | {"ports": ports})


def read_machine(path: Path) -> Machine:
    """The machine of a file; MalformedError names file and field."""
    try:
        return decode_machine(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MalformedError) as error:
        msg = f"{path}: {error}"
        raise MalformedError(msg) from error
