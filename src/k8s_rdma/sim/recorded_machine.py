"""A machine from a file (`wire.machine`), read as a real one is: its sysfs, and what its kernel answers.

It obeys the kernel's rules: VFs are told by the index of their PF alone, nobody is told of what is not
there, and a driver may leave its device between two looks.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.linux.discovery.queries import DevlinkRate, RdmaDevice, RdmaPort, VfInfo
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.sim.recorded_sysfs import RecordedSysfs, RecordedTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.linux.netlink.dcb import DcbState
    from k8s_rdma.wire.machine import Machine, RdmaEntry


class RecordedMachine:
    """One machine; `looks` counts what was read of it and asked.

    sysfs, queries: what `linux.sysfs.Sysfs` and `linux.discovery.queries.Queries` are of a real one.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tree = RecordedTree(machine.sysfs)
        self.sysfs = RecordedSysfs(self.tree, self.look)
        self.queries = RecordedQueries(self)
        self.looks = 0
        self._leaving: tuple[PciAddress, int] | None = None

    def driver_leaves(self, pci: PciAddress, looks: int) -> None:
        """Let the driver leave a device after so many looks more."""
        self._leaving = (pci, self.looks + looks)

    def look(self) -> None:
        """Count one; whatever is read or asked comes here first."""
        if self._leaving is not None and self.looks >= self._leaving[1]:
            pci, self._leaving = self._leaving[0], None
            self._unbind(pci)
        self.looks += 1

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
        gone = {link.index for link in self.machine.links} - {link.index for link in links}
        self.machine = msgspec.structs.replace(
            self.machine,
            links=links,
            vfs={index: vfs for index, vfs in self.machine.vfs.items() if index not in gone},
            default_route_links=tuple(set(self.machine.default_route_links) - gone),
            addressed_links=tuple(set(self.machine.addressed_links) - gone),
            rdma_devices=tuple(
                device
                for device in self.machine.rdma_devices
                if not gone & {port.netdev_index for port in device.ports}
            ),
            eswitch_modes={
                pci: mode for pci, mode in self.machine.eswitch_modes.items() if pci not in addresses
            },
            devlink_rates={
                pci: rates for pci, rates in self.machine.devlink_rates.items() if pci not in addresses
            },
        )


class RecordedQueries:
    """`linux.discovery.queries.Queries` of a recorded machine."""

    def __init__(self, machine: RecordedMachine) -> None:
        self._machine = machine

    def links(self) -> Sequence[Link]:
        """Those recorded, without aliases."""
        entries = self._asked("links").links
        return [Link(**msgspec.structs.asdict(entry), alias="") for entry in entries]

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Those of the link of this index; none when it is no PF, ENODEV when there is none."""
        machine = self._asked(f"vf_infos {index}")
        if not any(link.index == index for link in machine.links):
            what = f"VFs of link #{index}"
            raise NetlinkError(what, errno.ENODEV)
        return [VfInfo(**msgspec.structs.asdict(entry)) for entry in machine.vfs.get(index, ())]

    def default_route_links(self) -> frozenset[int]:
        """As recorded."""
        return frozenset(self._asked("default_route_links").default_route_links)

    def addressed_links(self) -> frozenset[int]:
        """As recorded."""
        return frozenset(self._asked("addressed_links").addressed_links)

    def rdma_devices(self) -> Sequence[RdmaDevice]:
        """As recorded."""
        return [_rdma_device(entry) for entry in self._asked("rdma_devices").rdma_devices]

    def netns_mode(self) -> NetnsMode | None:
        """The kernel's default where there are RDMA devices; recordings do not tell it."""
        return NetnsMode.SHARED if self._asked("netns_mode").rdma_devices else None

    def dcb(self, name: str) -> DcbState | None:
        """None: recordings do not tell it, nor the next two."""
        self._asked(f"dcb {name}")
        return None

    def pauses(self, name: str) -> bool | None:
        """None."""
        self._asked(f"pauses {name}")
        return None

    def devlink_flags(self, name: str) -> Mapping[str, bool]:
        """None of them."""
        self._asked(f"devlink_flags {name}")
        return {}

    def eswitch_modes(self) -> Mapping[str, str]:
        """As recorded."""
        return self._asked("eswitch_modes").eswitch_modes

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """As recorded."""
        return {
            pci: {vf: DevlinkRate(**msgspec.structs.asdict(entry)) for vf, entry in rates.items()}
            for pci, rates in self._asked("devlink_rates").devlink_rates.items()
        }

    def firmware(self, name: str) -> str:
        """As recorded, nothing where it is not; ENODEV when there is no such link."""
        machine = self._asked(f"firmware {name}")
        if not any(link.name == name for link in machine.links):
            what = f"firmware of {name}"
            raise NetlinkError(what, errno.ENODEV)
        return machine.firmware.get(name, "")

    def _asked(self, question: str) -> Machine:
        self._machine.look()
        machine = self._machine.machine
        if refusal := machine.refused.get(question):
            raise NetlinkError(question, getattr(errno, refusal))
        return machine


def _rdma_device(entry: RdmaEntry) -> RdmaDevice:
    ports = tuple(RdmaPort(**msgspec.structs.asdict(port)) for port in entry.ports)
    return RdmaDevice(**msgspec.structs.asdict(entry) | {"ports": ports})
