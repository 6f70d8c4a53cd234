"""Files of the node that tell which devices an attachment gave: device information, and CDI specifications.

Blocking. They are written once the interfaces are the pod's, and removed while the receipt still is there:
what a crash leaves is removed when that receipt is ended.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.agent.node_files import MAX_NAME_BYTES
from k8s_rdma.agent.slot_files import SlotFiles
from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.ledger import Phase
from k8s_rdma.errors import KernelError, MalformedError, Reason
from k8s_rdma.wire.cdi import (
    VF_CLASS,
    ContainerEdits,
    device_of_file_name,
    encode_own,
    file_name,
    vfio_nodes,
)
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.network_status import device_info, encode_device_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.agent.node_files import NodeFiles
    from k8s_rdma.agent.slot_files import DeviceNodes
    from k8s_rdma.core.devices.pod_devices import SlotHeld
    from k8s_rdma.core.ids import ContainerId
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Receipt

DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo/cni"
"""Source: Device Information Specification 1.1.0, section 4.2."""


def device_info_file(given: str) -> str:
    """The path that the runtime names by the capability `CNIDeviceInfoFile`, or empty for none.

    MalformedError when it is not that of a file right in `DEVICE_INFO_DIR`: the agent writes as root.
    """
    directory, _, name = given.rpartition("/")
    if not given:
        return ""
    if directory != DEVICE_INFO_DIR:
        _refuse(given, f"no file in {DEVICE_INFO_DIR}")
    if name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        _refuse(given, "its last part is no file's name")
    return given


class DeviceFiles:
    """The files of attachments on the node whose root file system is at `host_root`.

    cdi_dir: of the node, where container runtimes look. ledger, in every method: of the moment.
    """

    def __init__(self, files: NodeFiles, cdi_dir: str, nodes: DeviceNodes) -> None:
        """Nothing is written yet."""
        self._files = files
        self._cdi_dir = PurePosixPath(cdi_dir)
        self._nodes = nodes
        self._slots = SlotFiles(files, self._cdi_dir, nodes)

    def clear(self, slots: Iterable[SlotHeld], container: ContainerId, ledger: Ledger) -> None:
        """Remove what tells of slots that a sandbox is going to claim, and that may have been another's.

        KernelError as `remove`. Before the claim: until then the other's receipt sees to it.
        """
        own = {slot for receipt in ledger.of_container(container) for slot in receipt.slots}
        if new := [slot.device for slot in slots if slot not in own]:
            self._slots.remove(new)

    def write(self, receipt: Receipt, ledger: Ledger) -> None:
        """Write what tells of an attachment's interfaces; KernelError names the file that cannot be.

        The device-information file has room for one device: the first interface's. One that is there already
        stays: whoever made it knows of the device (section 5.1.2).
        """
        for interface in _functions(receipt):
            self._write_function(interface)
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            if not self._files.exists(path):
                self._files.write(path, _information(receipt))
        if problems := self._slots.update(_slots(receipt, ledger), ledger):
            raise KernelError("; ".join(problems))

    def remove(self, receipt: Receipt, ledger: Ledger) -> None:
        """Remove them, as far as they are still ours; KernelError names those that cannot be.

        What other attachments of the sandbox have stays told by its slots, if it can be looked up.
        """
        files = [self._cdi_file(interface) for interface in _functions(receipt)]
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            if self._files.holds(path, _information(receipt)):
                files.append(path)
        if files:
            self._files.remove(files)
        self._slots.update(_slots(receipt, ledger), ledger)

    def wrong(self, receipt: Receipt, ledger: Ledger) -> tuple[str, ...]:
        """What runtimes are told wrongly of an attachment's slots, a clause each."""
        return tuple(self._slots.wrong(_slots(receipt, ledger), ledger))

    def restore(self, ledger: Ledger) -> None:
        """Have the CDI specifications of ours be those of the ledger, whatever became of them meanwhile.

        Everything is tried; one KernelError tells of all that failed.
        """
        problems: list[str] = []
        attached = [each for each in ledger.receipts.values() if each.phase is Phase.ATTACHED]
        for interface in (each for receipt in attached for each in _functions(receipt)):
            with _noting(problems):
                self._write_function(interface)
        with _noting(problems):
            problems += self._slots.update({slot.device for slot in ledger.slots()}, ledger)
        with _noting(problems):
            self._files.remove([*self._functions_of_others(ledger), *self._slots.others(ledger)])
        if problems:
            raise KernelError("; ".join(problems))

    def _write_function(self, interface: AllocatedInterface) -> None:
        nodes = vfio_nodes(self._nodes.vfio_group(pci_address(interface.pci)))
        path, edits = self._cdi_file(interface), ContainerEdits(device_nodes=nodes)
        data = encode_own(VF_CLASS, interface.pci, edits)
        if not self._files.holds(path, data):
            self._files.write(path, data)

    def _functions_of_others(self, ledger: Ledger) -> Iterator[PurePosixPath]:
        """Specifications of VFs that are of no receipt: where the ledger was lost, or restored."""
        held = {each.pci for receipt in ledger.receipts.values() for each in _functions(receipt)}
        for name in self._files.names(self._cdi_dir):
            pci = device_of_file_name(VF_CLASS, name)
            if pci is not None and pci not in held:
                yield self._cdi_dir / name

    def _cdi_file(self, interface: AllocatedInterface) -> PurePosixPath:
        return self._cdi_dir / file_name(VF_CLASS, interface.pci)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        problems.append(error.message)


def _slots(receipt: Receipt, ledger: Ledger) -> frozenset[str]:
    """Those that the attachment has now; another pod's may have got some since the receipt was read."""
    now = ledger.receipts.get(receipt.attachment)
    return frozenset(slot.device for slot in now.slots) if now else frozenset()


def _functions(receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """The interfaces that are PCI functions for a program in the pod."""
    return tuple(interface for interface in receipt.interfaces if not interface.is_netdev)


def _information(receipt: Receipt) -> bytes:
    return encode_device_info(device_info(receipt.interfaces[0]))


def _refuse(given: str, why: str) -> NoReturn:
    msg = f"network configuration: runtimeConfig.CNIDeviceInfoFile: {shown(given)}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
