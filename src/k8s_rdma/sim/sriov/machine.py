"""The kernel of a pretended machine: what writes to its files do, and what time brings.

The rules are those of Linux `drivers/pci/iov.c` (sriov_numvfs_store), `pci-driver.c` (pci_device_can_probe,
pci_match_device) and `drivers/base/bus.c` (bind_store, unbind_store), 6.1. Time passes only when somebody
waits for it.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from typing import TYPE_CHECKING

from k8s_rdma.core.options import LinkType
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.sim.sriov.card import Card, CardState, VfState
from k8s_rdma.sim.sriov.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from k8s_rdma.core.ids import PciAddress

ENUMERATED, RENAMED = 1, 4
"""NET_NAME_ENUM and NET_NAME_RENAMED (Linux `include/uapi/linux/netdevice.h`)."""

_NETWORK = {LinkType.ETHERNET: "0x020000", LinkType.INFINIBAND: "0x020700"}


class SriovMachine:
    """Cards, their state, and the files that show it. Every method may be called by any thread.

    written: what was written to which file, in order. loaded: drivers that functions can be bound to.
    tells_devices: whether netlink tells what a link is a netdev of, as Linux does since 5.14.
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
        """What the kernel does when somebody writes to a file of sysfs. OSError when it refuses."""
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
            self.cards[pf].up_at = self.now_s
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
        made = count if card.makes_at_most is None else min(count, card.makes_at_most)
        for index in range(made):
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
        """None takes it while they may not, and nobody is told."""
        driver = vf.override or state.card.vf_driver
        if (state.autoprobe or vf.override) and not vf.driver and driver in self.loaded:
            self._take(state, vf, driver)

    def _bind(self, state: CardState, vf: VfState, driver: str, path: str) -> None:
        if driver not in self.loaded:
            raise _error(errno.ENOENT, path)
        fits = driver == (vf.override or state.card.vf_driver)
        if vf.driver or not fits or not (state.autoprobe or vf.override):
            raise _error(errno.ENODEV, path)
        self._take(state, vf, driver)

    def _take(self, state: CardState, vf: VfState, driver: str) -> None:
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
        """With the address that the PF has for it, or a random one, as also where the PF has no link."""
        ethernet = state.card.link_type is LinkType.ETHERNET
        given = vf.mac if ethernet else vf.port_guid
        if not state.has_link(self.now_s) or not given.strip("0:"):
            given = b"\x02\x00".hex(":") + ":" + (os.urandom(4) if ethernet else os.urandom(6)).hex(":")
        vf.netdev_mac = given if ethernet else f"00:00:10:29:fe:80:00:00:00:00:00:00:{given}"
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

    def now(self) -> float:
        """Seconds since it started."""
        return self._machine.now_s

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._machine.pass_time(seconds)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
