"""A machine in memory: PFs, their VFs, and network namespaces that obey the kernel's rules.

VFs are physical: when its namespace ends, a netdev returns to the host's namespace under its last name or,
if that is taken, as `dev<n>`, without alternative names that are taken (Linux `net/core/dev.c`,
`default_device_exit_net`). A netdev that moves goes
down and loses addresses, routes and queueing discipline (`__dev_change_net_namespace`). A VF has a netdev
only while the kernel's own driver drives it, and a new one each time that driver binds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import NameTakenError, PauseFrames, Unreadable, VfCounters
from k8s_rdma.core.netdev_attributes import XDP
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility
from k8s_rdma.core.step import NetnsRef, Route, VfRef, Vlan
from k8s_rdma.core.types import Enforce, LinkState, LinkType, PciAddress, Setting
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.core.step import Step


HOST = 0
"""The place of everything in the host's namespace."""

NO_MAC = "00:00:00:00:00:00"
"""A PF's MAC entry for a VF that chooses its MAC itself."""

ATTRIBUTES = {XDP: "", "alias": "", "ring sizes": "512", "txqueuelen": "1000"}
"""Those of a new netdev. The ring sizes are the driver's, which the kernels here do not set."""

VF_DRIVER = "fakevf"
"""The kernel's own driver of every VF here: it makes the netdev."""

_OF_INFINIBAND = frozenset({Setting.GUID, Setting.LINK_STATE, Setting.MTU, Setting.TRUST, Setting.VFIO_PCI})
_SUPPORTED = {
    LinkType.ETHERNET: frozenset(Setting) - {Setting.GUID, Setting.PKEY, Setting.SOFTWARE_CAPS},
    LinkType.INFINIBAND: _OF_INFINIBAND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePf:
    """A PF to pretend: VF i is netdev `<name>v<i>`, and with `rdma` RDMA device `<name>r<i>`.

    rates, enforce: the rates that it takes, and the demanded way to enforce them.
    settings: those that VFs support besides rates; unset: all that make sense on its type of link.
    """

    name: str
    pci: PciAddress
    vfs: int
    link_mbps: int | None = 100_000
    driver: str = "fake"
    rdma: bool = False
    link_type: LinkType = LinkType.ETHERNET
    mtu: int = 1500
    rates: RateAbility = EVERY_RATE
    enforce: Enforce = Enforce.AUTO
    settings: frozenset[Setting] | None = None
    mac: str = "0a:ff:00:00:00:01"
    numa_node: int | None = None
    pcie_path: tuple[PciAddress, ...] = ()

    def supported_settings(self) -> frozenset[Setting]:
        """The settings that VFs support besides rates."""
        return _SUPPORTED[self.link_type] if self.settings is None else self.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A netdev as `ip link`, `ip address` and `ip route` would show it."""

    mac: str
    mtu: int
    is_up: bool
    addresses: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(slots=True, kw_only=True)
class Device:
    """A netdev; `place` is its namespace's inode. duplicates: its addresses that others had already.

    max_tx_rate_mbps: of its queueing discipline; 0: without a limit.
    altnames: alternative names, which move along. attributes: others that do; see `ATTRIBUTES`.
    held_program: whether its XDP program cannot be detached by netlink. links_above: links made on it.
    """

    name: str
    mac: str
    mtu: int = 1500
    place: int = HOST
    is_up: bool = False
    addresses: tuple[str, ...] = ()
    duplicates: frozenset[str] = frozenset()
    routes: tuple[Route, ...] = ()
    max_tx_rate_mbps: int = 0
    altnames: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=lambda: dict(ATTRIBUTES))
    held_program: bool = False
    links_above: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Settings:
    """A PF's settings for a VF besides its rates. guid: of the port; both are empty on Ethernet."""

    mac: str
    guid: str = ""
    node_guid: str = ""
    vlan: Vlan = field(default_factory=lambda: Vlan(0))
    trust: bool = False
    spoof_check: bool = True
    link_state: LinkState = LinkState.AUTO


@dataclass(slots=True, kw_only=True)
class Function:
    """A VF: its driver, its netdev and RDMA device if it has them, and its PF's settings for it.

    driver: empty: no driver. override: only this driver may have it (`driver_override`); empty: any.
    device: of no meaning while another driver than `VF_DRIVER` has it.
    verbs: number of its RDMA device's character device, if it has one.
    """

    pci: PciAddress
    device: Device
    rdma_device: str | None
    settings: Settings
    driver: str = VF_DRIVER
    override: str = ""
    rdma_place: int = HOST
    verbs: int | None = None
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0

    @property
    def is_netdev(self) -> bool:
        """Report whether the kernel's own driver is bound to it."""
        return self.driver == VF_DRIVER

    def own_mac(self) -> str:
        """The hardware address that its netdev comes up with."""
        if self.settings.guid:
            return _ipoib_address(self.settings.guid)
        return self.device.mac if self.settings.mac == NO_MAC else self.settings.mac


def function_of(pf: FakePf, number: int, index: int) -> Function:
    """VF `index` of the machine's PF `number`, at home and without settings."""
    guid = f"00:02:fa:00:{number:02x}:00:{index >> 8:02x}:{index & 255:02x}"
    mac = f"02:fa:00:{number:02x}:{index >> 8:02x}:{index & 255:02x}"
    infiniband = pf.link_type is LinkType.INFINIBAND
    return Function(
        pci=_vf_pci(pf.pci, index),
        device=Device(name=f"{pf.name}v{index}", mac=_ipoib_address(guid) if infiniband else mac),
        rdma_device=f"{pf.name}r{index}" if pf.rdma else None,
        settings=Settings(mac=NO_MAC, guid=guid, node_guid=guid) if infiniband else Settings(mac=mac),
    )


def _ipoib_address(guid: str) -> str:
    """Queue pair, subnet prefix, port GUID (RFC 4391, section 9.1.1)."""
    return f"00:00:10:49:fe:80:00:00:00:00:00:00:{guid}"


def _vf_pci(pf: PciAddress, index: int) -> PciAddress:
    """The PF's bus plus one and onwards, eight VFs a device, 32 devices a bus."""
    domain, bus, slot = pf.split(":")
    number = (int(bus, 16) + 1 + 16 * int(slot[-1])) * 256 + index
    return PciAddress(f"{domain}:{number >> 8 & 255:02x}:{number >> 3 & 31:02x}.{number & 7}")


FIRST_INODE = 4026532000
"""The kernel's own numbers for namespaces begin about here (`include/linux/proc_ns.h`)."""


class FakeMachine:
    """It outlives a `FakeKernel`, as a machine outlives its agent. Safe to use from several threads.

    pfs, links, functions: the hardware; links in Mb/s, unset while down.
    counters: the traffic of each VF.
    unreadable: the parts that observations shall report as such. hidden: PFs that they do not find then. Both
        for `unreadable_observations` observations more; unset: without end.
    silent: why no question about the hardware is answered; empty while they are.
    token_bucket: whether its kernel can limit the traffic that netdevs send.
    sick: VFs that cannot be given, each with the kinds of steps that fail on it and the kernel's answer.
    """

    def __init__(self, *pfs: FakePf) -> None:
        """Start with these PFs, their VFs at home and without rates."""
        self.others_addresses: set[str] = set()  # those of stations elsewhere in the VFs' networks
        self.announced: list[tuple[str, str]] = []  # interface and address
        self.lock = threading.RLock()
        self.pfs = {pf.pci: pf for pf in sorted(pfs, key=lambda pf: pf.pci)}
        self.links = {pf.pci: pf.link_mbps for pf in pfs}
        self.unreadable: tuple[Unreadable, ...] = ()
        self.hidden: frozenset[PciAddress] = frozenset()
        self.unreadable_observations: int | None = None
        self.silent = ""
        self.token_bucket = True
        self.sick: dict[VfRef, tuple[tuple[type[Step], ...], str]] = {}
        self.functions = {
            VfRef(pf.pci, index): function_of(pf, number, index)
            for number, pf in enumerate(self.pfs.values())
            for index in range(pf.vfs)
        }
        for function in self.functions.values():
            function.verbs = self._free_verbs(function)
        self.counters = {
            vf: VfCounters(vf=vf, tx_bytes=0, rx_bytes=0, tx_packets=0, rx_packets=0) for vf in self.functions
        }
        self.pause_frames: dict[str, dict[int, PauseFrames]] = {}
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
            for device in [candidate for candidate in self._devices if candidate.place == netns.inode]:
                if id(device) not in physical:
                    self._devices.remove(device)
                    continue
                is_taken = self.find(device.name, HOST) is not None
                device.altnames = tuple(name for name in device.altnames if not self.find(name, HOST))
                self.move(device, HOST, self._free_name("dev") if is_taken else device.name)
            for function in self.functions.values():
                if function.rdma_place == netns.inode:
                    self.move_rdma(function, HOST)
            del self._namespaces[netns.inode]
        self.changed()

    def alive(self, netns: NetnsRef) -> bool:
        """Report whether that very namespace, path and inode, exists."""
        return self._namespaces.get(netns.inode) == netns.path

    def add_interface(self, name: str, netns: NetnsRef | None = None) -> None:
        """Let someone else make an interface, in the host's namespace by default."""
        with self.lock:
            self._devices.append(Device(name=name, mac="02:ff:ff:ff:ff:ff", place=_place(netns)))
        self.changed()

    def remove_interface(self, name: str) -> None:
        """Let someone else take an interface of theirs away from the host's namespace."""
        with self.lock:
            device = self.device(None, name)
            self._devices = [candidate for candidate in self._devices if candidate is not device]
        self.changed()

    def alter_interface(
        self, ifname: str, netns: NetnsRef | None, *, name: str | None = None, mac: str = "", mtu: int = 0
    ) -> None:
        """Let a pod, or the host if no namespace is given, rename an interface or change its MAC or MTU."""
        with self.lock:
            device = self.device(netns, ifname)
            device.mac, device.mtu = mac or device.mac, mtu or device.mtu
            self.move(device, device.place, name or device.name)

    def add_altname(self, ifname: str, netns: NetnsRef | None, altname: str) -> None:
        """Let a pod, or the host if no namespace is given, give an interface an alternative name."""
        with self.lock:
            self.device(netns, ifname).altnames += (altname,)
        self.changed()

    def tune_interface(
        self, ifname: str, netns: NetnsRef | None, *, held_program: bool = False, **attributes: str
    ) -> None:
        """Let a pod, or the host if no namespace is given, set attributes of an interface."""
        with self.lock:
            device = self.device(netns, ifname)
            device.attributes |= attributes
            device.held_program = held_program
        self.changed()

    def use_interface(self, ifname: str, netns: NetnsRef | None = None, *addresses: str) -> None:
        """Let whoever has an interface bring it up with these addresses."""
        with self.lock:
            device = self.device(netns, ifname)
            device.is_up, device.addresses = True, addresses
        self.changed()

    def count(self, ifname: str, netns: NetnsRef | None, *, tx_packets: int = 0, tx_bytes: int = 0) -> None:
        """Let the owner of a VF's interface send, without a receiver."""
        with self.lock:
            device = self.device(netns, ifname)
            vf = next(vf for vf, function in self.functions.items() if function.device is device)
            counters = self.counters[vf]
            self.counters[vf] = replace(
                counters, tx_packets=counters.tx_packets + tx_packets, tx_bytes=counters.tx_bytes + tx_bytes
            )

    def interface(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        """Observe an interface from within a namespace, if it is there."""
        with self.lock:
            device = self.find(ifname, _place(netns))
            if device is None:
                return None
            return Interface(
                mac=device.mac,
                mtu=device.mtu,
                is_up=device.is_up,
                addresses=device.addresses,
                routes=device.routes,
            )

    def duplicates(self, device: Device) -> frozenset[str]:
        """The IPv6 addresses of a netdev that another station has now, too."""
        neighbours = (item for item in self._devices if item.is_up and item is not device)
        foreign = self.others_addresses.union(*(each.addresses for each in neighbours))
        return frozenset(each for each in device.addresses if ":" in each and each in foreign)

    def make_sick(self, vf: VfRef, *steps: type[Step], why: str = "EBUSY: Device or resource busy") -> None:
        """Let steps of these kinds fail on a VF, whatever they ask for."""
        self.sick[vf] = (steps, why)

    def set_link(self, pci: PciAddress, link_mbps: int | None) -> None:
        """Let a link change its speed; unset: it is down."""
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
        for vf in [function for function in self.functions if function.pf == pci and function.index >= but]:
            self.take_netdev(self.functions.pop(vf))
            del self.counters[vf]
        self.changed()

    def set_unreadable(
        self, *unreadable: Unreadable, hidden: Iterable[PciAddress] = (), observations: int | None = None
    ) -> None:
        """Let observations report these as unreadable, and omit the hidden PFs.

        observations: how many observations; all that follow by default.
        """
        self.unreadable, self.hidden, self.unreadable_observations = (
            unreadable,
            frozenset(hidden),
            observations,
        )
        self.changed()

    def count_observation(self) -> None:
        """Note that an observation begins; after so many of them, unreadable parts can be read again."""
        if self.unreadable_observations is None:
            return
        self.unreadable_observations -= 1
        if self.unreadable_observations < 0:
            self.unreadable, self.hidden, self.unreadable_observations = (), frozenset(), None

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the thread that makes a change; return a function that ends this."""
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
        """The netdev of that name, or alternative name, in a namespace."""
        found = (device for device in self._devices if device.place == place)
        return next((device for device in found if name in (device.name, *device.altnames)), None)

    def devices_in(self, place: int) -> tuple[Device, ...]:
        """All netdevs of a namespace."""
        return tuple(device for device in self._devices if device.place == place)

    def device(self, netns: NetnsRef | None, ifname: str) -> Device:
        """The netdev of that name in a namespace. KernelError when either is not there."""
        place = self.inode(netns) if netns else HOST
        device = self.find(ifname, place)
        if device is None:
            msg = f"interface {ifname}: not in {self.describe_place(place)}"
            raise KernelError(msg)
        return device

    def function(self, vf: VfRef) -> Function:
        """Return the VF; raise KernelError if it does not exist."""
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
            msg = f"namespace {netns.path} (inode {netns.inode}): no longer exists"
            raise KernelError(msg)
        return netns.inode

    def move(self, device: Device, place: int, name: str) -> None:
        """Move, rename, or both. If the name is taken there, raise NameTakenError without a change."""
        for wanted in (name, *device.altnames):
            holder = self.find(wanted, place)
            if (holder is not None and holder is not device) or (wanted == name and name in device.altnames):
                place_text = self.describe_place(place)
                msg = f"interface {device.name}: cannot become {wanted} in {place_text}: that name is taken"
                raise NameTakenError(msg)
        if device.place != place:
            device.is_up, device.addresses, device.routes = False, (), ()
            device.max_tx_rate_mbps = 0
        device.place, device.name = place, name

    def move_rdma(self, function: Function, place: int) -> None:
        """Put a VF's RDMA device into a namespace; its character device gets a number that was free."""
        function.rdma_place = place
        function.verbs = self._free_verbs(function)

    def _free_verbs(self, function: Function) -> int | None:
        """The lowest; the kernel may give it the one that it had, too, which would show less."""
        used = {other_function.verbs for other_function in self.functions.values()}
        return next(number for number in count() if number not in used) if function.rdma_device else None

    def take_netdev(self, function: Function) -> None:
        """Let a VF have no netdev, as when its driver leaves; nor an RDMA device."""
        self._devices = [
            device
            for device in self._devices
            if device is not function.device and device.name not in function.device.links_above
        ]
        function.rdma_place, function.verbs = HOST, None

    def make_netdev(self, function: Function) -> None:
        """Let the kernel's driver make a VF's netdev, as when it begins to drive it.

        It bears the MAC that the PF has for the VF, or a new one if the PF has no MAC for it.
        """
        mac = function.own_mac()
        function.device = Device(name=self._free_name("eth"), mac=mac)
        self._devices.append(function.device)
        function.verbs = self._free_verbs(function)

    def describe_place(self, place: int) -> str:
        """Describe a namespace."""
        return f"namespace {self._namespaces[place]}" if place else "the host's namespace"

    def _free_name(self, prefix: str) -> str:
        number = 0
        while self.find(f"{prefix}{number}", HOST):
            number += 1
        return f"{prefix}{number}"


def _place(netns: NetnsRef | None) -> int:
    return netns.inode if netns else HOST
