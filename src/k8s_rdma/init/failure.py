"""What can go wrong on a PF, said so that an operator knows what to do."""

from __future__ import annotations

import errno
import os

from k8s_rdma.errors import KernelError


class SetupError(KernelError):
    """A PF, or some of its VFs, could not be made ready.

    advice: what to do about it. lasting: whether trying again would end the same.
    """

    def __init__(self, message: str, *, advice: str, lasting: bool = False) -> None:
        """See the class."""
        super().__init__(message)
        self.advice = advice
        self.lasting = lasting


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
    errno.EBUSY: "somebody else changes its VFs, or a VM holds one: end that, and run init again",
    errno.ENOMEM: _ROOM,
    errno.ENOSPC: _ROOM,
    errno.EINVAL: _FIRMWARE,
    errno.EIO: _FIRMWARE,
    errno.EOPNOTSUPP: _FIRMWARE,
    errno.ENOSYS: _FIRMWARE,
}
"""By what writing `sriov_numvfs` fails with (Linux `drivers/pci/iov.c`, 6.1, and the drivers' own)."""

_LASTING = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ERANGE}


def refused_write(what: str, error: OSError) -> SetupError:
    """That the kernel did not take a value written to sysfs; `what` was to be done."""
    number = error.errno or errno.EIO
    return SetupError(
        f"{what}: {errno.errorcode.get(number, number)}: {os.strerror(number)}",
        advice=NUMVFS_ADVICE.get(number, _DRIVER),
        lasting=number in _LASTING,
    )


def refused_read(what: str, error: OSError) -> SetupError:
    """That something of sysfs could not be read, as when a driver leaves meanwhile."""
    return SetupError(f"{what}: {error}", advice="see why its driver left it, in dmesg")
