"""Files of the node that tell which devices an attachment gave: device information, and CDI specifications.

Blocking. Both are written once the interfaces are the pod's, and removed while the receipt still is there:
what a crash leaves is removed when that receipt is ended.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.agent.plugins.host_files import below
from k8s_rdma.core.ids import pci_address
from k8s_rdma.errors import KernelError, MalformedError, Reason
from k8s_rdma.wire.cdi import (
    VENDOR,
    VF_CLASS,
    encode_specification,
    vf_file_name,
    vf_of_file_name,
    vfio_device,
)
from k8s_rdma.wire.device_info import device_info, encode_device_info
from k8s_rdma.wire.json import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt

DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo/cni"
"""Source: Device Information Specification 1.1.0, section 4.2."""

_MAX_NAME_BYTES = 255


def device_info_file(given: str) -> str:
    """The path that the runtime names by the capability `CNIDeviceInfoFile`, or empty for none.

    MalformedError when it is not that of a file right in `DEVICE_INFO_DIR`: the agent writes as root.
    """
    directory, _, name = given.rpartition("/")
    if not given:
        return ""
    if directory != DEVICE_INFO_DIR:
        _refuse(given, f"no file in {DEVICE_INFO_DIR}")
    if name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > _MAX_NAME_BYTES:
        _refuse(given, "its last part is no file's name")
    return given


class DeviceFiles:
    """The files of attachments on the node whose root file system is at `host_root`.

    cdi_dir: of the node. vfio_node: the device node of a function that vfio-pci has, as
        `linux.vf.vfio.vfio_group`.
    """

    def __init__(self, host_root: Path, cdi_dir: str, vfio_node: Callable[[PciAddress], str]) -> None:
        """Nothing is written yet."""
        self._root = host_root
        self._cdi_dir = PurePosixPath(cdi_dir)
        self._vfio_node = vfio_node

    def write(self, receipt: Receipt) -> None:
        """Write what tells of an attachment's interfaces; KernelError names the file that cannot be.

        The device-information file has room for one device: the first interface's. One that is there already
        stays: whoever made it knows of the device (section 5.1.2).
        """
        for interface in _functions(receipt):
            device = vfio_device(interface.pci, self._vfio_node(pci_address(interface.pci)))
            data = encode_specification([device], vendor=VENDOR, device_class=VF_CLASS)
            self._write(self._cdi_file(interface), data)
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            if not self._here(path).exists():
                self._write(path, _information(receipt))

    def remove(self, receipt: Receipt) -> None:
        """Remove them, as far as they are still ours; KernelError names those that cannot be."""
        files = [self._cdi_file(interface) for interface in _functions(receipt)]
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            if self._holds(path, _information(receipt)):
                files.append(path)
        self._remove(files)

    def remove_others(self, receipts: Iterable[Receipt]) -> None:
        """Remove the CDI specifications of ours that are of no receipt; KernelError as `remove`.

        To be called at start: there are some where the ledger was lost, or restored.
        """
        held = {interface.pci for receipt in receipts for interface in _functions(receipt)}
        try:
            found = sorted(path.name for path in self._here(self._cdi_dir).iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            msg = f"device files in {self._cdi_dir} cannot be looked at: {error.strerror}"
            raise KernelError(msg) from error
        vfs = {name: vf_of_file_name(name) for name in found}
        self._remove(self._cdi_dir / name for name, vf in vfs.items() if vf is not None and vf not in held)

    def _cdi_file(self, interface: AllocatedInterface) -> PurePosixPath:
        return self._cdi_dir / vf_file_name(interface.pci)

    def _here(self, path: PurePosixPath) -> Path:
        """Where a path of the node is for us; its last part is taken as it is, link or not."""
        return below(self._root, Path(path.parent)) / path.name

    def _write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there in one go, as its readers watch the directory; a reboot ends it anyway."""
        target = self._here(path)
        draft = target.with_name(f".{target.name[: _MAX_NAME_BYTES - 5]}.new")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.rename(target)
        except OSError as error:
            msg = f"device file {path}: cannot be written: {error.strerror}"
            raise KernelError(msg) from error

    def _holds(self, path: PurePosixPath, data: bytes) -> bool:
        target = self._here(path)
        try:
            return target.is_file() and not target.is_symlink() and target.read_bytes() == data
        except OSError:
            return False

    def _remove(self, paths: Iterable[PurePosixPath]) -> None:
        problems = []
        for path in paths:
            try:
                self._here(path).unlink(missing_ok=True)
            except NotADirectoryError:
                continue  # so it is not there
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            msg = f"device files cannot be removed: {'; '.join(problems)}"
            raise KernelError(msg)


def _functions(receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """The interfaces that are PCI functions for a program in the pod."""
    return tuple(interface for interface in receipt.interfaces if not interface.is_netdev)


def _information(receipt: Receipt) -> bytes:
    return encode_device_info(device_info(receipt.interfaces[0]))


def _refuse(given: str, why: str) -> NoReturn:
    msg = f"network configuration: runtimeConfig.CNIDeviceInfoFile: {shown(given)}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
