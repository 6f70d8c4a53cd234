"""A machine in memory: PFs, their VFs, and network namespaces that obey the kernel's rules.

Its VFs are physical ones: a netdev whose namespace dies comes back to the host's namespace by itself,
under its last name or, if that is taken, as `dev<n>` (Linux `net/core/dev.c`, `default_device_exit_net`).
A netdev that moves goes down and loses addresses and routes (`__dev_change_net_namespace`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.kernel import VfCounters
from k8s_rdma.core.step import NetnsRef, Route, VfRef
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.core.kernel import Unreadable

HOST = 0
"""The place of everything in the host's namespace."""

FIRST_INODE = 4026532000
"""Where the kernel's own numbers for namespaces begin, about (`include/linux/proc_ns.h`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePf:
    """A PF to pretend: VF i is netdev `<name>v<i>`, and with `rdma` RDMA device `<name>r<i>`."""

    name: str
    pci: PciAddress
    vfs: int
    link_mbps: int | None = 100_000
    driver: str = "fake"
    rdma: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A netdev as `ip link`, `ip address` and `ip route` would show it."""

    mac: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(slots=True, kw_only=True)
class Device:
    """A netdev; `place` is its namespace's inode."""

    name: str
    mac: str
    mtu: int = 1500
    place: int = HOST
    up: bool = False
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()


@dataclass(slots=True, kw_only=True)
class Function:
    """A VF: its netdev, its RDMA device if it has one, and what is programmed on its PF for it."""

    pci: PciAddress
    device: Device
    rdma_device: str | None
    rdma_place: int = HOST
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    vlan: int = 0


class FakeMachine:
    """What outlives a `FakeKernel`, as a machine outlives its agent. Safe to use from several threads.

    pfs, links, functions: the hardware; links in Mb/s, None while down.
    counters: the traffic of each VF.
    unreadable: what observations shall report as such. hidden: PFs that they do not find then.
    silent: why no question about the hardware is answered; empty while they are.
    """

    def __init__(self, *pfs: FakePf) -> None:
        """Start with these PFs, their VFs at home and without rates."""
        self.lock = threading.RLock()
        self.pfs = {pf.pci: pf for pf in sorted(pfs, key=lambda pf: pf.pci)}
        self.links = {pf.pci: pf.link_mbps for pf in pfs}
        self.unreadable: tuple[Unreadable, ...] = ()
        self.hidden: frozenset[PciAddress] = frozenset()
        self.silent = ""
        self.functions = {
            VfRef(pf.pci, index): _function(pf, number, index)
            for number, pf in enumerate(self.pfs.values())
            for index in range(pf.vfs)
        }
        self.counters = {
            vf: VfCounters(vf=vf, tx_bytes=0, rx_bytes=0, tx_packets=0, rx_packets=0) for vf in self.functions
        }
        self._devices = [function.device for function in self.functions.values()]
        self._namespaces: dict[int, str] = {}
        self._next_inode = FIRST_INODE
        self._watchers: list[Callable[[], None]] = []

    def create_namespace(self, path: str | None = None) -> NetnsRef:
        """A new, empty network namespace."""
        with self.lock:
            netns = NetnsRef(path or f"/run/netns/fake-{self._next_inode}", self._next_inode)
            self._next_inode += 1
            self._namespaces[netns.inode] = netns.path
            return netns

    def destroy_namespace(self, netns: NetnsRef) -> None:
        """End a namespace: VFs in it come back to the host's, other interfaces are gone."""
        with self.lock:
            physical = {id(function.device) for function in self.functions.values()}
            for device in [each for each in self._devices if each.place == netns.inode]:
                if id(device) not in physical:
                    self._devices.remove(device)
                    continue
                taken = self.find(device.name, HOST) is not None
                self.move(device, HOST, self._free_name() if taken else device.name)
            for function in self.functions.values():
                if function.rdma_place == netns.inode:
                    function.rdma_place = HOST
            del self._namespaces[netns.inode]
        self.changed()

    def alive(self, netns: NetnsRef) -> bool:
        """Whether that very namespace, path and inode, exists."""
        return self._namespaces.get(netns.inode) == netns.path

    def add_interface(self, name: str, netns: NetnsRef | None = None) -> None:
        """Let someone else make an interface, in the host's namespace by default."""
        with self.lock:
            self._devices.append(Device(name=name, mac="02:ff:ff:ff:ff:ff", place=_place(netns)))
        self.changed()

    def alter_interface(
        self, ifname: str, netns: NetnsRef, *, name: str | None = None, mac: str = "", mtu: int = 0
    ) -> None:
        """Let a pod rename its interface or change what it is."""
        with self.lock:
            device = self.device(netns, ifname)
            device.mac, device.mtu = mac or device.mac, mtu or device.mtu
            self.move(device, device.place, name or device.name)

    def use_interface(self, ifname: str, netns: NetnsRef | None = None, *addresses: str) -> None:
        """Let whoever has an interface bring it up with these addresses."""
        with self.lock:
            device = self.device(netns, ifname)
            device.up, device.addresses = True, addresses
        self.changed()

    def count(self, ifname: str, netns: NetnsRef | None, *, tx_packets: int = 0, tx_bytes: int = 0) -> None:
        """Let whoever has a VF's interface send; nobody receives it."""
        with self.lock:
            device = self.device(netns, ifname)
            vf = next(vf for vf, function in self.functions.items() if function.device is device)
            was = self.counters[vf]
            self.counters[vf] = replace(
                was, tx_packets=was.tx_packets + tx_packets, tx_bytes=was.tx_bytes + tx_bytes
            )

    def interface(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        """What is seen of an interface from within a namespace; None when it is not there."""
        with self.lock:
            device = self.find(ifname, _place(netns))
            if device is None:
                return None
            return Interface(
                mac=device.mac,
                mtu=device.mtu,
                up=device.up,
                addresses=device.addresses,
                routes=device.routes,
            )

    def set_link(self, pci: PciAddress, link_mbps: int | None) -> None:
        """Let a link change its speed; None when it is down."""
        self.links[pci] = link_mbps
        self.changed()

    def remove_pf(self, pci: PciAddress) -> None:
        """Let a PF vanish with its VFs, wherever they are."""
        self.remove_vfs(pci, but=0)
        del self.pfs[pci]
        self.changed()

    def remove_vfs(self, pci: PciAddress, *, but: int) -> None:
        """Let a PF have only so many VFs; the others vanish, wherever they are."""
        self.pfs[pci] = replace(self.pfs[pci], vfs=but)
        for vf in [each for each in self.functions if each.pf == pci and each.index >= but]:
            self._devices.remove(self.functions.pop(vf).device)
            del self.counters[vf]
        self.changed()

    def set_unreadable(self, *unreadable: Unreadable, hidden: Iterable[PciAddress] = ()) -> None:
        """Let observations report that these could not be looked at, and not find the hidden PFs."""
        self.unreadable, self.hidden = unreadable, frozenset(hidden)
        self.changed()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the thread that makes a change; returns what ends that."""
        self._watchers.append(changed)

        def end() -> None:
            if changed in self._watchers:
                self._watchers.remove(changed)

        return end

    def changed(self) -> None:
        """Tell the watchers."""
        for changed in tuple(self._watchers):
            changed()

    def find(self, name: str, place: int) -> Device | None:
        """The netdev of that name in a namespace."""
        return next((each for each in self._devices if each.name == name and each.place == place), None)

    def device(self, netns: NetnsRef | None, ifname: str) -> Device:
        """The netdev of that name in a namespace. KernelError when either is not there."""
        place = self.inode(netns) if netns else HOST
        device = self.find(ifname, place)
        if device is None:
            msg = f"interface {ifname}: not in {self.where(place)}"
            raise KernelError(msg)
        return device

    def function(self, vf: VfRef) -> Function:
        """A VF. KernelError when there is none such."""
        function = self.functions.get(vf)
        if function is None:
            pf = self.pfs.get(vf.pf)
            found = f"{pf.name} has {pf.vfs} VFs" if pf else "there is no such PF"
            msg = f"VF {vf.index} of PF {vf.pf}: unknown: {found}"
            raise KernelError(msg)
        return function

    def inode(self, netns: NetnsRef) -> int:
        """The number of a namespace that exists. KernelError for one that does not."""
        if not self.alive(netns):
            msg = f"namespace {netns.path} (inode {netns.inode}): gone"
            raise KernelError(msg)
        return netns.inode

    def move(self, device: Device, place: int, name: str) -> None:
        """Move, rename, or both. KernelError when the name is taken there; nothing has changed then."""
        there = self.find(name, place)
        if there is not None and there is not device:
            msg = f"interface {device.name}: cannot become {name} in {self.where(place)}: that name is taken"
            raise KernelError(msg)
        if device.place != place:
            device.up, device.addresses, device.routes = False, (), ()
        device.place, device.name = place, name

    def where(self, place: int) -> str:
        """A namespace in words."""
        return f"namespace {self._namespaces[place]}" if place else "the host's namespace"

    def _free_name(self) -> str:
        number = 0
        while self.find(f"dev{number}", HOST):
            number += 1
        return f"dev{number}"


def _function(pf: FakePf, number: int, index: int) -> Function:
    return Function(
        pci=_vf_pci(pf.pci, index),
        device=Device(
            name=f"{pf.name}v{index}", mac=f"02:fa:00:{number:02x}:{index >> 8:02x}:{index & 255:02x}"
        ),
        rdma_device=f"{pf.name}r{index}" if pf.rdma else None,
    )


def _vf_pci(pf: PciAddress, index: int) -> PciAddress:
    """The PF's bus plus one and onwards, eight VFs a device, 32 devices a bus."""
    domain, bus, rest = pf.split(":")
    number = (int(bus, 16) + 1 + 16 * int(rest[-1])) * 256 + index
    return PciAddress(f"{domain}:{number >> 8 & 255:02x}:{number >> 3 & 31:02x}.{number & 7}")


def _place(netns: NetnsRef | None) -> int:
    return netns.inode if netns else HOST
