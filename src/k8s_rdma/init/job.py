"""The job of setting up one PF: its configuration, target, machine (sysfs, netlink, clock) and failures."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
from structlog.typing import FilteringBoundLogger

from k8s_rdma.config.files import AbsolutePath
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.inventory import PfRule
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma.linux.netlink.queries import Queries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.creation import SriovLinks, SriovPf

if TYPE_CHECKING:
    import threading

    from k8s_rdma.linux.netlink.rtnl import Link


POLL_S = 0.05
"""Poll interval for files without change events, as in sysfs; each poll is one small file or directory."""
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
"""By what writing `sriov_numvfs` fails with (Linux `drivers/pci/iov.c`, 6.1, and the drivers' own)."""
_LASTING = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ERANGE}
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class InitConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    hardware: which PFs, how many VFs each, whether those are trusted; the same section as the agent's.
    state_dir: where the agent keeps its ledger, which names the pods that hold VFs; only read here.
    sys_root: where sysfs is, writable.
    keep_used_vfs: whether a PF whose number of VFs cannot change, as pods use them, is a success: it keeps
        those it has. Else the process fails, and as an init container keeps the agent from starting,
        without which those pods cannot be ended.
    name_vfs: whether VF netdevs with a name of the kernel's own choice (`eth7`) get that of their PF and
        their index (`enp4s0f0v3`); names given by udev stay.
    tries: per PF. backoff_s: before the second try; doubled before each further one.
    driver_timeout_s: for the drivers of PFs, and their netdevs, to be there.
    rdma_timeout_s: after that, for the RDMA devices of PFs that are to have one.
    carrier_timeout_s: for a PF's link, before its VFs get their driver; without a link they get it then.
    vf_timeout_s, timeout_per_vf_s: for the netdevs of a PF's new VFs: the first, and the second for each VF.
    """

    hardware: HardwareConfig = HardwareConfig()
    state_dir: AbsolutePath = "/var/lib/k8s-rdma"
    sys_root: AbsolutePath = "/sys"
    keep_used_vfs: bool = False
    name_vfs: bool = True
    tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    backoff_s: Seconds = 5.0
    driver_timeout_s: Seconds = 60.0
    rdma_timeout_s: Seconds = 10.0
    carrier_timeout_s: Seconds = 10.0
    vf_timeout_s: Seconds = 30.0
    timeout_per_vf_s: Seconds = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A PF that was selected: the name of its netdev, its address, what it speaks, and the rule for it."""

    name: str
    pci: PciAddress
    link_type: LinkType
    rule: PfRule


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
        """The PF's netdev; SetupError when it is gone."""
        found = self.links.link(self.target.name)
        if found is None:
            msg = f"PF {self.target.name} ({self.target.pci}): its netdev is gone"
            raise SetupError(msg, advice="see why its driver left it, in dmesg")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """queries, links: open netlink for the thread that calls. boot_id: of `core.ledger.Receipt`."""

    sysfs: Sysfs
    queries: Callable[[], AbstractContextManager[Queries]]
    links: Callable[[], SriovLinks]
    clock: Clock
    boot_id: str


class SetupError(KernelError):
    """A PF, or some of its VFs, could not be made ready.

    advice: what to do about it. lasting: whether trying again would end the same.
    """

    def __init__(self, message: str, *, advice: str, lasting: bool = False) -> None:
        """See the class."""
        super().__init__(message)
        self.advice = advice
        self.lasting = lasting


def refused_write(subject: str, error: OSError) -> SetupError:
    """The error for a value that the kernel refused in sysfs; `subject` names the operation."""
    number = error.errno or errno.EIO
    return SetupError(
        f"{subject}: {errno.errorcode.get(number, number)}: {os.strerror(number)}",
        advice=NUMVFS_ADVICE.get(number, _DRIVER),
        lasting=number in _LASTING,
    )


def refused_read(subject: str, error: OSError) -> SetupError:
    """That something of sysfs could not be read, as when a driver leaves meanwhile."""
    return SetupError(f"{subject}: {error}", advice="see why its driver left it, in dmesg")


class StoppedError(K8sRdmaError):
    """The process must end, and leaves the machine in order."""


class Clock(Protocol):
    """Seconds of one monotonic clock."""

    def monotonic(self) -> float:
        """The time."""
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
