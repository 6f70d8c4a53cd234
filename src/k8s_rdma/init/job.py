"""The job of setting up one PF: its configuration, target, machine (sysfs, netlink, clock) and failures.

VFs in use are left alone: those of pods by the agent's ledger, and those of other holders.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from structlog.typing import FilteringBoundLogger

from k8s_rdma.config.init import InitConfig
from k8s_rdma.core.inventory import PfRule
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.errors import K8sRdmaError, KernelError, LedgerError
from k8s_rdma.linux.netlink.queries import Queries
from k8s_rdma.linux.netlink.routes import below, carriers
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, Sysfs
from k8s_rdma.linux.vf.creation import SriovPf, VfFunction
from k8s_rdma.linux.vf.sriov_links import NetdevsOf, SriovLinks

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from k8s_rdma.core.ledger import Ledger
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
class Machine:
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


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods that hold VFs.

    holders: in words.
    unknown: why the ledger could not be read; any VF with a driver may then be a pod's.
    """

    holders: Mapping[VfRef, str] = field(default_factory=dict)
    unknown: str = ""


@contextmanager
def ledger_held(path: Path, boot_id: str) -> Iterator[Pods]:
    """Read the agent's ledger; until it is closed, no agent can start and allocate VFs that will change.

    The ledger is not changed, and not created if it does not exist: no agent ran on this node yet. Receipts
    of another boot hold no VFs any more.
    """
    if not path.exists():
        yield Pods()
        return
    with ExitStack() as opened:
        try:
            receipts = opened.enter_context(closing(Receipts(path)))
            pods = Pods(_holders(receipts.load(), boot_id))
        except LedgerError as error:
            pods = Pods(unknown=str(error))
        yield pods


def _holders(ledger: Ledger, boot_id: str) -> dict[VfRef, str]:
    return {
        interface.vf: f"pod {receipt.pod.namespace}/{receipt.pod.name}"
        for receipt in ledger.receipts.values()
        if receipt.boot_id == boot_id
        for interface in receipt.interfaces
    }


def used_vfs(pf: PciAddress, vfs: Sequence[VfFunction], pods: Pods, links: SriovLinks) -> Mapping[int, str]:
    """Return the user of each used VF of a PF."""
    host = _Host(links)
    found = {vf.index: pods.holders.get(VfRef(pf, vf.index)) or host.user(vf) for vf in vfs}
    if pods.unknown:
        found |= {vf.index: found[vf.index] or "perhaps a pod" for vf in vfs if vf.driver}
    return {index: user for index, user in found.items() if user}


class _Host:
    """Uses by anything but our pods."""

    def __init__(self, links: SriovLinks) -> None:
        found = links.links()
        self._netdevs = NetdevsOf(found)
        self._by_name = {link.name: link for link in found}
        self._untold = not any(link.device for link in found)
        self._carriers = carriers(found)
        self._addressed = below(found, links.addressed_links())

    def user(self, vf: VfFunction) -> str | None:
        if vf.driver is None:
            reserved = vf.driver_override in USERSPACE_DRIVERS
            return f"driver_override {vf.driver_override}" if reserved else None
        if vf.driver in USERSPACE_DRIVERS:
            return f"driver {vf.driver}"
        if vf.netdevs is None:
            return None
        if not vf.netdevs:
            return "another network namespace"
        return next((use for link in self._netdevs_of(vf) if (use := self._use_of(link))), None)

    def _netdevs_of(self, vf: VfFunction) -> Sequence[Link]:
        """Return a VF's netdevs; by names in sysfs if netlink has no link's device (Linux before 5.14)."""
        if not self._untold:
            return self._netdevs.netdevs_of(vf)
        return [self._by_name[name] for name in vf.netdevs or () if name in self._by_name]

    def _use_of(self, link: Link) -> str | None:
        if link.master:
            return f"netdev {link.name} in a bond or bridge"
        if link.index in self._carriers:
            return f"netdev {link.name} with a VLAN, macvlan or macvtap on it"
        return f"netdev {link.name} with an IP address" if link.index in self._addressed else None
