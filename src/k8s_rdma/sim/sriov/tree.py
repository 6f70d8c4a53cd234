"""The files that sysfs shows of cards, in a directory.

Source: Linux `Documentation/ABI/testing/sysfs-bus-pci` and `sysfs-class-net`; `devices/`, `bus/` and `class/`
are linked with one another as there.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.ids import PciAddress

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
        """Without what it is linked by elsewhere but on the bus."""
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
