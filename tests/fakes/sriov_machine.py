"""SR-IOV cards of a machine in memory: their state, their sysfs files, and the effects of writes and of time.

Time passes only when a caller waits for it.

Source: Linux 6.1 `drivers/pci/iov.c` (sriov_numvfs_store), `pci-driver.c` (pci_device_can_probe,
pci_match_device) and `drivers/base/bus.c` (bind_store, unbind_store);
`Documentation/ABI/testing/sysfs-bus-pci` and `sysfs-class-net`.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.types import LinkType, PciAddress, pci_address
from k8s_rdma.linux.netlink.rtnl import Address
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A PF.

    name: of its netdev. mac: of the PF, 20 octets for InfiniBand. drivers: the PF's and the VFs'.
    settings: kinds (of `linux.vf.creation`) that its driver takes for VFs.
    driver_after_s, rdma_after_s: since the machine started. link_after_s: since the PF is up.
    vf_netdev_after_s: since the VF got its driver. has_cable: whether the port ever has a link.
    max_created_vfs: VFs, whatever is asked. max_mtu: of the PF and its VFs. altnames: of the PF's netdev.
    """

    name: str
    pci: PciAddress
    mac: str
    total_vfs: int = 7
    driver: str = "igb"
    vf_driver: str = "igbvf"
    vendor: str = "0x8086"
    device: str = "0x10c9"
    link_type: LinkType = LinkType.ETHERNET
    has_rdma: bool = False
    has_cable: bool = True
    settings: frozenset[str] = frozenset({"MAC", "GUID", "link state", "trust"})
    driver_after_s: float = 0.0
    rdma_after_s: float = 0.0
    link_after_s: float = 1.0
    vf_netdev_after_s: float = 0.0
    max_created_vfs: int | None = None
    max_mtu: int = 9216
    altnames: tuple[str, ...] = ()

    def vf_pci(self, index: int) -> PciAddress:
        """Return the address of VF `index`: from function 16 on (`sriov_offset`)."""
        domain_bus, _, _ = self.pci.rpartition(":")
        domain, bus = domain_bus.split(":")
        routing = int(bus, 16) << 8 | (16 + index)
        return pci_address(f"{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}")


@dataclass(slots=True, kw_only=True)
class VfState:
    """A VF as its PF has it, and its netdev as its driver made it.

    override: the driver that alone may have it; empty for any that fits.
    netdev_at: when its driver makes the netdev; unset without such a driver. away: whether that is in another
    namespace. has_vlan: whether there is a VLAN on it.
    """

    pci: PciAddress
    mac: str = "00:00:00:00:00:00"
    trust: bool = False
    link_state: str = "auto"
    node_guid: str = "00:00:00:00:00:00:00:00"
    port_guid: str = "00:00:00:00:00:00:00:00"
    driver: str | None = None
    override: str = ""
    netdev_at: float | None = None
    netdev: str = ""
    netdev_mac: str = ""
    netdev_index: int = 0
    mtu: int = 1500
    away: bool = False
    master: int = 0
    has_vlan: bool = False
    addresses: tuple[Address, ...] = ()


@dataclass(slots=True, kw_only=True)
class CardState:
    """A card as it is now.

    up_since: since when its netdev is up; unset while it is down. carrier: the link's state in its file.
    bond: the name of the bond that it is a port of; empty without one.
    """

    card: Card
    index: int
    autoprobe: bool = True
    has_driver: bool = False
    rdma_device: str = ""
    up_since: float | None = None
    carrier: bool | None = None
    mtu: int = 1500
    bond: str = ""
    vfs: dict[int, VfState] = field(default_factory=dict)

    def has_link(self, now: float) -> bool:
        """Report whether its port has a link."""
        return (
            self.card.has_cable
            and self.up_since is not None
            and now >= self.up_since + self.card.link_after_s
        )


_HOST_BRIDGE = "devices/pci0000:00"


class Tree:
    """Functions, drivers and netdevs as directories and links."""

    def __init__(self, root: Path) -> None:
        """An empty machine."""
        self.root = root
        for path in ("bus/pci/devices", "bus/pci/drivers", "class/net", "class/infiniband", _HOST_BRIDGE):
            (root / path).mkdir(parents=True)
        (root / "bus/pci/drivers_probe").touch()

    def device(self, pci: PciAddress) -> Path:
        """A function's directory."""
        return self.root / _HOST_BRIDGE / pci

    def add_function(self, pci: PciAddress, files: dict[str, str]) -> None:
        """A PCI function with these files."""
        self.device(pci).mkdir()
        _link(self.root / "bus/pci/devices" / pci, self.device(pci))
        for name, value in files.items():
            self.write(pci, name, value)

    def remove_function(self, pci: PciAddress) -> None:
        """Remove its directory and its link on the bus, but no link elsewhere."""
        (self.root / "bus/pci/devices" / pci).unlink()
        shutil.rmtree(self.device(pci))

    def write(self, pci: PciAddress, name: str, value: str) -> None:
        """Show a value."""
        (self.device(pci) / name).write_text(f"{value}\n")

    def link_vf(self, pf: PciAddress, index: int, vf: PciAddress) -> None:
        """`virtfn<index>` and `physfn`."""
        _link(self.device(pf) / f"virtfn{index}", self.device(vf))
        _link(self.device(vf) / "physfn", self.device(pf))

    def unlink_vf(self, pf: PciAddress, index: int) -> None:
        """Without `virtfn<index>`."""
        (self.device(pf) / f"virtfn{index}").unlink()

    def bind(self, pci: PciAddress, driver: str) -> None:
        """A function's driver."""
        home = self.root / "bus/pci/drivers" / driver
        home.mkdir(exist_ok=True)
        (home / "unbind").touch()
        _link(self.device(pci) / "driver", home)

    def unbind(self, pci: PciAddress) -> None:
        """Without a driver."""
        (self.device(pci) / "driver").unlink(missing_ok=True)

    def add_netdev(self, pci: PciAddress, name: str, name_assign_type: int) -> None:
        """A function's netdev."""
        home = self.device(pci) / "net" / name
        home.mkdir(parents=True)
        (home / "name_assign_type").write_text(f"{name_assign_type}\n")
        _link(self.root / "class/net" / name, home)

    def move_netdev_away(self, pci: PciAddress, name: str) -> None:
        """Out of sight; the directory that it was in stays for as long as it is somewhere."""
        (self.root / "class/net" / name).unlink()
        shutil.rmtree(self.device(pci) / "net" / name)

    def remove_netdev(self, pci: PciAddress, name: str) -> None:
        """Gone."""
        (self.root / "class/net" / name).unlink(missing_ok=True)
        shutil.rmtree(self.device(pci) / "net", ignore_errors=True)

    def set_carrier(self, name: str, carrier: bool) -> None:
        """A netdev's link."""
        (self.root / "class/net" / name / "carrier").write_text(f"{int(carrier)}\n")

    def add_rdma_device(self, pci: PciAddress, name: str) -> None:
        """A function's RDMA device."""
        home = self.device(pci) / "infiniband" / name
        home.mkdir(parents=True)
        _link(self.root / "class/infiniband" / name, home)


def _link(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


ENUMERATED, RENAMED = 1, 4
"""NET_NAME_ENUM and NET_NAME_RENAMED (Linux `include/uapi/linux/netdevice.h`)."""

_NETWORK = {LinkType.ETHERNET: "0x020000", LinkType.INFINIBAND: "0x020700"}


class SriovMachine:
    """Cards, their state, and the files that show it. Every method may be called by any thread.

    written: files and the texts written to them, in order. loaded: drivers that functions can be bound to.
    tells_devices: whether netlink reports the device of a netdev, as Linux does since 5.14.
    """

    def __init__(self, root: Path, cards: Iterable[Card]) -> None:
        """Make the files below `root`, which is empty."""
        self.lock = threading.RLock()
        self.tree = Tree(root)
        self.now_s = 0.0
        self.read_only = False
        self.tells_devices = True
        self.written: list[tuple[str, str]] = []
        self._refusals: dict[tuple[str, str], list[int]] = {}
        self._indexes = itertools.count(2)
        self.cards = {card.pci: CardState(card=card, index=next(self._indexes)) for card in cards}
        self.loaded = {state.card.vf_driver for state in self.cards.values()}
        for state in self.cards.values():
            self._add_card(state)
        self.pass_time(0)

    def pass_time(self, seconds: float) -> None:
        """Later, drivers and links are there that were on their way."""
        with self.lock:
            self.now_s += seconds
            for state in self.cards.values():
                self._progress(state)

    def write(self, path: str, text: str) -> None:
        """Write to a file of sysfs, with the kernel's effects. OSError when it refuses."""
        with self.lock:
            if self.read_only:
                raise _error(errno.EROFS, path)
            self.written.append((path, text))
            *_, device, name = path.split("/")
            if refusals := self._refusals.get((name, text)):
                raise _error(refusals.pop(), path)
            if name == "sriov_numvfs":
                self._set_count(self._state(device), int(text), path)
            elif name == "sriov_drivers_autoprobe":
                self._set_autoprobe(self._state(device), text != "0")
            elif name == "drivers_probe":
                self._probe(*self._vf(text.strip()))
            elif name == "unbind":
                self._unbind(self._vf(text.strip())[1], path)
            elif name == "driver_override":
                self._set_override(self._vf(device)[1], text.strip())
            elif name == "bind":
                self._bind(*self._vf(text.strip()), device, path)
            else:
                raise _error(errno.EACCES, path)
            self.pass_time(0)

    def refuse(self, name: str, text: str, number: int, times: int = 1) -> None:
        """Answer the next so many writes of that text to a file of that name with this errno."""
        self._refusals[name, text] = [number] * times

    def move_away(self, pf: PciAddress, index: int) -> None:
        """A VF's netdev into another network namespace."""
        with self.lock:
            vf = self.cards[pf].vfs[index]
            vf.away = True
            self.tree.move_netdev_away(vf.pci, vf.netdev)

    def bring_up(self, pf: PciAddress) -> None:
        """A PF's netdev up."""
        with self.lock:
            self.cards[pf].up_since = self.now_s
            self.pass_time(0)

    def rename(self, vf: VfState, name: str) -> None:
        """A VF's netdev."""
        with self.lock:
            self.tree.remove_netdev(vf.pci, vf.netdev)
            vf.netdev = name
            self.tree.add_netdev(vf.pci, name, RENAMED)

    def _state(self, pci: str) -> CardState:
        return next(state for address, state in self.cards.items() if address == pci)

    def _vf(self, pci: str) -> tuple[CardState, VfState]:
        for state in self.cards.values():
            for vf in state.vfs.values():
                if vf.pci == pci:
                    return state, vf
        raise _error(errno.ENODEV, pci)

    def _add_card(self, state: CardState) -> None:
        card = state.card
        files = {
            "vendor": card.vendor,
            "device": card.device,
            "class": _NETWORK[card.link_type],
            "sriov_totalvfs": str(card.total_vfs),
        }
        self.tree.add_function(card.pci, files)
        self._show(state)

    def _show(self, state: CardState) -> None:
        self.tree.write(state.card.pci, "sriov_numvfs", str(len(state.vfs)))
        self.tree.write(state.card.pci, "sriov_drivers_autoprobe", str(int(state.autoprobe)))

    def _progress(self, state: CardState) -> None:
        card = state.card
        if not state.has_driver and self.now_s >= card.driver_after_s:
            state.has_driver = True
            self.tree.bind(card.pci, card.driver)
            self.tree.add_netdev(card.pci, card.name, RENAMED)
        if card.has_rdma and not state.rdma_device and self.now_s >= card.rdma_after_s:
            state.rdma_device = f"rdma_{card.name}"
            self.tree.add_rdma_device(card.pci, state.rdma_device)
        if state.has_driver and state.carrier is not state.has_link(self.now_s):
            state.carrier = state.has_link(self.now_s)
            self.tree.set_carrier(card.name, state.carrier)
        for vf in state.vfs.values():
            if vf.netdev_at is not None and not vf.netdev and self.now_s >= vf.netdev_at:
                self._make_netdev(state, vf)

    def _set_count(self, state: CardState, count: int, path: str) -> None:
        card = state.card
        if count > card.total_vfs:
            raise _error(errno.ERANGE, path)
        if count == len(state.vfs):
            return
        if not state.has_driver:
            raise _error(errno.ENOENT, path)
        if count and state.vfs:
            raise _error(errno.EBUSY, path)
        for index in list(state.vfs):
            self._remove_vf(state, index)
        created = count if card.max_created_vfs is None else min(count, card.max_created_vfs)
        for index in range(created):
            self._add_vf(state, index)
        self._show(state)

    def _add_vf(self, state: CardState, index: int) -> None:
        is_ethernet = state.card.link_type is LinkType.ETHERNET
        vf = VfState(pci=state.card.vf_pci(index), link_state="auto" if is_ethernet else "disable")
        state.vfs[index] = vf
        files = {
            "vendor": state.card.vendor,
            "device": state.card.device,
            "class": _NETWORK[state.card.link_type],
            "modalias": f"pci:{state.card.vf_driver}",
            "driver_override": "(null)",
        }
        self.tree.add_function(vf.pci, files)
        self.tree.link_vf(state.card.pci, index, vf.pci)
        self._probe(state, vf)

    def _remove_vf(self, state: CardState, index: int) -> None:
        vf = state.vfs.pop(index)
        self._take_netdev(vf)
        self.tree.unlink_vf(state.card.pci, index)
        self.tree.remove_function(vf.pci)

    def _set_autoprobe(self, state: CardState, autoprobe: bool) -> None:
        state.autoprobe = autoprobe
        self._show(state)

    def _set_override(self, vf: VfState, driver: str) -> None:
        vf.override = driver
        self.tree.write(vf.pci, "driver_override", driver or "(null)")

    def _probe(self, state: CardState, vf: VfState) -> None:
        """Bind the driver unless autoprobe is off; a VF without a loaded driver stays unbound."""
        driver = vf.override or state.card.vf_driver
        if (state.autoprobe or vf.override) and not vf.driver and driver in self.loaded:
            self._set_driver(state, vf, driver)

    def _bind(self, state: CardState, vf: VfState, driver: str, path: str) -> None:
        if driver not in self.loaded:
            raise _error(errno.ENOENT, path)
        fits = driver == (vf.override or state.card.vf_driver)
        if vf.driver or not fits or not (state.autoprobe or vf.override):
            raise _error(errno.ENODEV, path)
        self._set_driver(state, vf, driver)

    def _set_driver(self, state: CardState, vf: VfState, driver: str) -> None:
        vf.driver = driver
        self.tree.bind(vf.pci, driver)
        if driver == state.card.vf_driver:
            vf.netdev_at = self.now_s + state.card.vf_netdev_after_s

    def _unbind(self, vf: VfState, path: str) -> None:
        if vf.driver is None:
            raise _error(errno.ENOENT, path)
        self._take_netdev(vf)
        vf.driver = None
        self.tree.unbind(vf.pci)

    def _make_netdev(self, state: CardState, vf: VfState) -> None:
        """With the PF's address for it; with a random one if that is unset or the PF has no link."""
        ethernet = state.card.link_type is LinkType.ETHERNET
        mac = vf.mac if ethernet else vf.port_guid
        if not state.has_link(self.now_s) or not mac.strip("0:"):
            mac = b"\x02\x00".hex(":") + ":" + (os.urandom(4) if ethernet else os.urandom(6)).hex(":")
        vf.netdev_mac = mac if ethernet else f"00:00:10:29:fe:80:00:00:00:00:00:00:{mac}"
        vf.netdev = self._free_name("eth" if ethernet else "ib")
        vf.netdev_index = next(self._indexes)
        self.tree.add_netdev(vf.pci, vf.netdev, ENUMERATED)

    def _free_name(self, prefix: str) -> str:
        """The lowest (Linux `net/core/dev.c`, __dev_alloc_name): one that was given up is another's soon."""
        names = set(os.listdir(self.tree.root / "class/net"))  # noqa: PTH208 - names are all that is wanted
        return next(name for number in itertools.count() if (name := f"{prefix}{number}") not in names)

    def _take_netdev(self, vf: VfState) -> None:
        if vf.netdev:
            self.tree.remove_netdev(vf.pci, vf.netdev)
        vf.netdev, vf.netdev_at, vf.away = "", None, False


class MachineSysfs(Sysfs):
    """The files of a pretended machine, which answers writes."""

    def __init__(self, machine: SriovMachine) -> None:
        """Of this machine."""
        super().__init__(machine.tree.root)
        self._machine = machine

    def write(self, path: str, text: str) -> None:
        """As `SriovMachine.write`."""
        self._machine.write(path, text)


class MachineClock:
    """The time of a pretended machine: who waits lets it pass, and waits no longer than that takes."""

    def __init__(self, machine: SriovMachine) -> None:
        """Of this machine."""
        self._machine = machine

    def monotonic(self) -> float:
        """Seconds since it started."""
        return self._machine.now_s

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._machine.pass_time(seconds)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
