"""The job of setting up one PF: its configuration, target, machine (sysfs, netlink, clock) and failures."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from structlog.typing import FilteringBoundLogger

from k8s_rdma.config.init import InitConfig
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma.linux.netlink.queries import Queries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.creation import SriovPf
from k8s_rdma.linux.vf.sriov_links import SriovLinks

if TYPE_CHECKING:
    import threading

    from k8s_rdma.linux.netlink.rtnl import Link


POLL_S = 0.05
"""Poll interval for files without change events, as in sysfs; each poll reads one small file or directory."""
_DRIVER = "see the PF driver's lines in dmesg"
_ROOM = (
    "the firmware left no room for the VFs' memory or bus numbers: enable SR-IOV, ARI and Above 4G Decoding "
    "in the BIOS, or boot with pci=realloc (pci=assign-busses for bus numbers); " + _DRIVER
)
_FIRMWARE = (
    "enable SR-IOV in the BIOS and in the NIC's firmware (Mellanox: mlxconfig SRIOV_EN=1 NUM_OF_VFS=...), "
    "then reboot; " + _DRIVER
)
_PRIVILEGE = "run init as root in a privileged container"

NUMVFS_ADVICE = {
    errno.EROFS: "sysfs is mounted read-only: mount /sys writable, or run the container privileged",
    errno.EACCES: _PRIVILEGE,
    errno.EPERM: _PRIVILEGE,
    errno.ENOENT: "its driver makes no VFs by sysfs: use one that does, or its module's parameter",
    errno.ERANGE: "set numVfs to the PF's sriov_totalvfs or less",
    errno.EBUSY: "another program changes its VFs, or a VM holds one: stop it, and run init again",
    errno.ENOMEM: _ROOM,
    errno.ENOSPC: _ROOM,
    errno.EINVAL: _FIRMWARE,
    errno.EIO: _FIRMWARE,
    errno.EOPNOTSUPP: _FIRMWARE,
    errno.ENOSYS: _FIRMWARE,
}
"""The advice for each error of a write to `sriov_numvfs` (Linux `drivers/pci/iov.c`, 6.1, and the drivers'
own)."""
_LASTING = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ERANGE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A PF that was selected: the name of its netdev, its PCI address, its link type, and the rule for it.

    conflict: why no addresses of VFs can be made from its own; empty if they can.
    """

    name: str
    pci: PciAddress
    link_type: LinkType
    rule: PfRule
    conflict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A target and the means; used by one thread."""

    target: Target
    sysfs: Sysfs
    sriov: SriovPf
    links: SriovLinks
    clock: Clock
    config: InitConfig
    log: FilteringBoundLogger

    def link(self) -> Link:
        """Return the PF's netdev; SetupError if it is gone."""
        found = self.links.link(self.target.name)
        if found is None:
            msg = f"PF {self.target.name} ({self.target.pci}): its netdev is gone"
            raise SetupError(msg, advice="see why its driver left it, in dmesg")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInterfaces:
    """The machine's interfaces.

    queries, links: open netlink for the calling thread.
    boot_id: of `core.ledger.Receipt`.
    """

    sysfs: Sysfs
    queries: Callable[[], AbstractContextManager[Queries]]
    links: Callable[[], SriovLinks]
    clock: Clock
    boot_id: str


class SetupError(KernelError):
    """A PF, or some of its VFs, could not be made ready.

    advice: the remedy.
    lasting: whether another attempt would end the same.
    """

    def __init__(self, message: str, *, advice: str, lasting: bool = False) -> None:
        """Make the error with its advice."""
        super().__init__(message)
        self.advice = advice
        self.lasting = lasting


def refused_write(subject: str, error: OSError) -> SetupError:
    """Return the error for a value that the kernel refused in sysfs; `subject` names the operation."""
    number = error.errno or errno.EIO
    return SetupError(
        f"{subject}: {errno.errorcode.get(number, number)}: {os.strerror(number)}",
        advice=NUMVFS_ADVICE.get(number, _DRIVER),
        lasting=number in _LASTING,
    )


def refused_read(subject: str, error: OSError) -> SetupError:
    """Make the error for a failed read of sysfs, such as after a driver was unbound."""
    return SetupError(f"{subject}: {error}", advice="see why its driver left it, in dmesg")


class StoppedError(K8sRdmaError):
    """The process must end, and leaves the machine in order."""


class Clock(Protocol):
    """Seconds of one monotonic clock."""

    def monotonic(self) -> float:
        """Return the time."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait; StoppedError when the process must end."""
        ...


class StoppableClock:
    """The machine's clock."""

    def __init__(self, stop: threading.Event) -> None:
        """stop: set when the process is to end."""
        self._stop = stop

    def monotonic(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait; StoppedError when the process must end."""
        if self._stop.wait(seconds):
            msg = "stopped by a signal"
            raise StoppedError(msg)


def wait_until(clock: Clock, timeout_s: float, holds: Callable[[], bool], every_s: float = POLL_S) -> bool:
    """Wait for something to hold, at most so long; whether it does."""
    end = clock.monotonic() + timeout_s
    while not holds():
        if clock.monotonic() >= end:
            return False
        clock.wait(every_s)
    return True
