"""The machine of the netlink tests: its PFs, a simulated device, an RDMA device of software."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.hardware_lab import PFS
from contract.linux_lab import DEADLINE_S, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

SIMULATED = 77
"""The number of our device on the bus of netdevsim."""

_BUS = Path("/sys/bus/netdevsim")
_DEBUG = Path(f"/sys/kernel/debug/netdevsim/netdevsim{SIMULATED}")


def vf_netdev(pf: str, vf: int) -> str:
    """The name of a VF's netdev, waited for."""
    folder, deadline = Path(f"/sys/class/net/{pf}/device/virtfn{vf}/net"), time.monotonic() + DEADLINE_S
    while not (folder.is_dir() and (names := [each.name for each in folder.iterdir()])):
        assert time.monotonic() < deadline, f"VF {vf} of {pf} has no netdev"
        time.sleep(0.02)
    return names[0]


def pci(folder: str) -> str:
    return Path(f"/sys/class/net/{folder}").resolve().name


def pf_link(rtnl: Rtnl, name: str = "") -> Link:
    link = rtnl.link(name or PFS[0])
    assert link is not None
    return link


@contextmanager
def simulated_pf(vfs: int) -> Iterator[str]:
    """The netdev of a new netdevsim device with so many VFs."""
    if not (_BUS / "new_device").exists():
        pytest.skip("needs SR-IOV hardware: not even netdevsim is here (modprobe netdevsim)")
    (_BUS / "new_device").write_text(f"{SIMULATED} 1 1")
    try:
        device = _BUS / f"devices/netdevsim{SIMULATED}"
        with suppress(FileNotFoundError):  # without debugfs it has 4 VFs at most
            (_DEBUG / "max_vfs").write_text(str(vfs))
        (device / "sriov_numvfs").write_text(str(vfs))
        yield next((device / "net").iterdir()).name
    finally:
        (_BUS / "del_device").write_text(str(SIMULATED))


@contextmanager
def soft_rdma_device(netdev: str, name: str = "rxe_test") -> Iterator[str]:
    """An RDMA device of rdma_rxe on a netdev of the host."""
    if not Path("/sys/module/rdma_rxe").exists():
        pytest.skip("needs SR-IOV hardware: not even rdma_rxe is here (modprobe rdma_rxe)")
    run("rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
    try:
        yield name
    finally:
        run("rdma", "link", "delete", name)
