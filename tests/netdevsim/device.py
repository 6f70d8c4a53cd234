"""A device of netdevsim: a card that a kernel module pretends, behind the netlink of the kernel itself.

Source: Linux `drivers/net/netdevsim/{bus,dev,netdev}.c`, 6.1. It keeps settings of a VF, rates in 16 bits,
and reports them again; no device has a PCI address, no VF a netdev in legacy mode, and no frame is slowed.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.linux_lab import may_make_namespaces, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

LARGEST_KEPT_MBPS = 0xFFFF
"""Of a larger rate the device keeps the lower 16 bits (`struct nsim_vf_config`)."""

_BUS = Path("/sys/bus/netdevsim")
_DEBUG = Path("/sys/kernel/debug")
_NUMBERS = itertools.count(7700)

needs_netdevsim = pytest.mark.skipif(
    not (_BUS / "new_device").exists() or not may_make_namespaces(),
    reason="needs root and netdevsim (modprobe netdevsim), as in the lab's guest",
)


@dataclass(frozen=True, slots=True)
class Device:
    """One with a single port; `name` is its own on the bus netdevsim."""

    name: str

    @property
    def devlink(self) -> str:
        """The device's name in devlink(8)."""
        return f"netdevsim/{self.name}"

    @property
    def num_vfs(self) -> Path:
        """The file with the number of its VFs."""
        return _BUS / "devices" / self.name / "sriov_numvfs"

    def link(self, rtnl: Rtnl) -> Link:
        """Its port's netdev, which is the first that it makes."""
        return min((each for each in rtnl.links() if each.device == self.name), key=lambda each: each.index)

    def become(self, mode: str) -> None:
        """`legacy` or `switchdev`."""
        run("devlink", "dev", "eswitch", "set", self.devlink, "mode", mode)

    def port_of_vf(self, vf: int) -> str:
        """The name of a VF's port in devlink(8) (NSIM_DEV_VF_PORT_INDEX_BASE), there in switchdev mode."""
        return f"{self.devlink}/{128 + vf}"

    def rate_by_devlink(self, vf: int, *words: str) -> None:
        """Set a VF's rates, or its group, as somebody does who has devlink(8)."""
        run("devlink", "port", "function", "rate", "set", self.port_of_vf(vf), *words)


@contextmanager
def device(vfs: int) -> Iterator[Device]:
    """A new one in the calling thread's network namespace."""
    number = next(_NUMBERS)
    made = Device(f"netdevsim{number}")
    (_BUS / "new_device").write_text(f"{number} 1 1")
    try:
        (_DEBUG / "netdevsim" / made.name / "max_vfs").write_text(str(vfs))
        made.num_vfs.write_text(str(vfs))
        yield made
    finally:
        (_BUS / "del_device").write_text(str(number))


@contextmanager
def debugfs() -> Iterator[None]:
    """Where a device's largest number of VFs is set."""
    if (_DEBUG / "netdevsim").is_dir():
        yield
        return
    run("mount", "-t", "debugfs", "debugfs", str(_DEBUG))
    try:
        yield
    finally:
        run("umount", str(_DEBUG))
