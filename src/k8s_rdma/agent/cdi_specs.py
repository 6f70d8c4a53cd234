"""CDI specifications and device-information files of attachments, slots and shared resources.

Blocking. Files of an attachment are written once the interfaces are the pod's, and removed while the
receipt still is there: what a crash leaves is removed when that receipt is ended. A slot's specification
follows the ledger, with the device nodes of now: a device that moves into a pod's namespace gets others.
Those of shared resources are there for as long as the device plugin declares them; each lists the character
devices of RDMA devices that are looked up by name, and nothing that a declaration says.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from k8s_rdma.agent.node import Node
from k8s_rdma.agent.plugins.host_files import below
from k8s_rdma.agent.worker import Worker
from k8s_rdma.core.devices.pod_devices import shared_device
from k8s_rdma.core.devices.rdma_devices import RDMA_CM, NamedDevice, device_variables
from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.ledger import Phase
from k8s_rdma.errors import K8sRdmaError, KernelError, MalformedError, Reason
from k8s_rdma.wire.cdi import (
    SHARED_CLASS,
    SLOT_CLASS,
    VF_CLASS,
    ContainerEdits,
    character_node,
    device_of_file_name,
    encode_own,
    file_name,
    vfio_nodes,
)
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.network_status import device_info, encode_device_info
from k8s_rdma.wire.shared_devices import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from k8s_rdma.core.devices.pod_devices import SlotInUse
    from k8s_rdma.core.devices.rdma_devices import CharacterDevice
    from k8s_rdma.core.ids import ContainerId, PciAddress
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Receipt
    from k8s_rdma.wire.cdi import DeviceNode
    from k8s_rdma.wire.shared_devices import Declared


_log = structlog.get_logger()

MARK = "K8S_RDMA_SLOT"
"""A variable for a slot without anything: a specification that edits nothing is none."""

MAX_NAME_BYTES = 255
"""`NAME_MAX` of Linux' file systems."""

DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo/cni"
"""Source: Device Information Specification 1.1.0, section 4.2."""

DECLARED_SOON_S = 30.0
"""An agent that is started anew leaves what the one before published for so long: the device plugin connects
again within a second or so, and containers may be made meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpecs:
    """Those of attachments and those that the device plugin declares; files are the worker's.

    alone: whether all files of ours in the directory are this agent's. What cannot be written or removed is
    logged: nobody must go without interfaces for it.
    """

    node: Node
    worker: Worker
    devices: AttachmentSpecs
    shared: SharedResourceSpecs
    alone: bool

    async def restore(self) -> None:
        """Have all be as they should be, with the device nodes of now."""
        if self.alone:
            await self._logged(lambda: self.devices.restore(self.node.ledger))
        await self._logged(self.shared.restore)

    async def run(self) -> None:
        """Once a plugin has had time to declare what it shares, remove what nobody declares."""
        await asyncio.sleep(DECLARED_SOON_S)
        if self.alone:
            await self._logged(self.shared.remove_undeclared)

    async def _logged(self, work: Callable[[], None]) -> None:
        try:
            await self.worker.run(work)
        except KernelError as error:
            _log.warning("device_files_not_restored", error=error.message)


class SharedResourceSpecs:
    """The specifications in a directory of the node."""

    def __init__(self, files: HostFiles, cdi_dir: PurePosixPath, nodes: DeviceNodes) -> None:
        """Nothing is declared; what is there of an agent before stays, until `remove_undeclared`."""
        self._files = files
        self._cdi_dir = cdi_dir
        self._nodes = nodes
        # By resource: its devices by who declares them, a device plugin's connection; the last one counts.
        self._declared: dict[str, dict[object, tuple[str, ...]]] = {}

    def declare(self, owner: object, declared: Declared) -> Written:
        """Have all that a plugin declares be told, and nothing of what it declared before."""
        now = declared.resources
        failed = self._withdraw(owner, self._resources_of(owner) - now.keys())
        for name, devices in now.items():
            others = self._declared.setdefault(name, {})
            others.pop(owner, None)
            others[owner] = devices
        failed |= self._write(now)
        return Written(resources=tuple(name for name in now if name not in failed), failed=failed)

    def end(self, owner: object) -> None:
        """Remove what a plugin declared; what another one declares, too, is as that one has it.

        KernelError names what is not as it should be.
        """
        if failed := self._withdraw(owner, self._resources_of(owner)):
            raise KernelError("; ".join(failed.values()))

    def restore(self) -> None:
        """Have them tell the nodes of now; KernelError names those that cannot be written."""
        if failed := self._write(self._declared):
            raise KernelError("; ".join(failed.values()))

    def remove_undeclared(self) -> None:
        """Remove those of ours that no plugin declares; KernelError names those that cannot be."""
        declared = set(map(shared_device, self._declared))
        devices = {name: device_of_file_name(SHARED_CLASS, name) for name in self._files.names(self._cdi_dir)}
        self._files.remove(
            self._cdi_dir / name for name, device in devices.items() if device and device not in declared
        )

    def _resources_of(self, owner: object) -> set[str]:
        return {name for name, declared in self._declared.items() if owner in declared}

    def _withdraw(self, owner: object, resources: Iterable[str]) -> dict[str, str]:
        """Why some stay, or cannot be told any more, by resource."""
        failed: dict[str, str] = {}
        for name in sorted(resources):
            del self._declared[name][owner]
            if self._declared[name]:
                failed |= self._write([name])
                continue
            del self._declared[name]
            failed |= self._remove(name)
        return failed

    def _write(self, resources: Collection[str]) -> dict[str, str]:
        """Why some cannot be written, by resource; of these there is none."""
        failed = {}
        for name in resources:
            try:
                path, data = self._path(name), self._specification(name)
                if not self._files.holds(path, data):
                    self._files.write(path, data)
            except K8sRdmaError as error:
                failed[name] = error.message
                failed |= self._remove(name)
        return failed

    def _remove(self, resource: str) -> dict[str, str]:
        try:
            self._files.remove([self._path(resource)])
        except KernelError as error:
            return {resource: error.message}
        return {}

    def _specification(self, resource: str) -> bytes:
        *_, devices = self._declared[resource].values()
        found = self._nodes.of_devices(devices)
        nodes = [character_node(each.path, each.major, each.minor) for each in found]
        if not nodes:
            msg = f"{resource}: none of its devices has a character device"
            raise KernelError(msg)
        if numbers := self._nodes.rdma_cm():
            nodes.append(character_node(RDMA_CM, *numbers))
        edits = ContainerEdits(device_nodes=tuple(nodes))
        return encode_own(SHARED_CLASS, shared_device(resource), edits)

    def _path(self, resource: str) -> PurePosixPath:
        return self._cdi_dir / file_name(SHARED_CLASS, shared_device(resource))


class DeviceNodes(Protocol):
    """The device nodes of now. KernelError when they cannot be looked up."""

    def vfio_group(self, pci: PciAddress) -> str:
        """Of the group of a function that vfio-pci has."""
        ...

    def of_vf(self, pci: PciAddress, rdma_device: str) -> tuple[CharacterDevice, ...]:
        """Of a VF's RDMA device, in whichever namespace it is; none where it has none.

        rdma_device: by name, for a soft one, which has no PCI function.
        """
        ...

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """Of RDMA devices by name, in whichever namespace they are."""
        ...

    def rdma_cm(self) -> tuple[int, int] | None:
        """Major and minor number of the connection manager's; None where there is none."""
        ...


class SlotSpecs:
    """The specifications in a directory of the node."""

    def __init__(self, files: HostFiles, cdi_dir: PurePosixPath, nodes: DeviceNodes) -> None:
        """Nothing is written yet."""
        self._files = files
        self._cdi_dir = cdi_dir
        self._nodes = nodes

    def update(self, devices: Collection[str], ledger: Ledger) -> tuple[str, ...]:
        """Have the specifications of some slots be what the ledger says; none of a slot that is nothing.

        Nor of one that cannot be looked up or written, as it may be another's tomorrow what an old one tells:
        why is returned, a sentence each. KernelError names those that are still there and should not be.
        """
        problems, to_go = [], set(devices)
        for slot, interfaces in ledger.slots().items():
            if slot.device in devices and interfaces:
                try:
                    self._log_written(slot, interfaces)
                    to_go.discard(slot.device)
                except KernelError as error:
                    problems.append(error.message)
        if to_go:
            self.remove(to_go)
        return tuple(problems)

    def remove(self, devices: Collection[str]) -> None:
        """Remove the specifications of some slots; KernelError names those that cannot be."""
        self._files.remove(map(self._path, sorted(devices)))

    def wrong(self, devices: Collection[str], ledger: Ledger) -> Iterator[str]:
        """Of some slots, whose specification is not what it should be; a clause each."""
        for slot, interfaces in ledger.slots().items():
            if slot.device in devices and interfaces:
                path = self._path(slot.device)
                if not self._files.holds(path, self._specification(slot, interfaces)):
                    yield f"{path} does not tell the devices of slot {slot.device}"

    def stale_paths(self, ledger: Ledger) -> Iterable[PurePosixPath]:
        """Specifications of ours that are of no slot in the ledger."""
        held = {slot.device for slot in ledger.slots()}
        for name in self._files.names(self._cdi_dir):
            device = device_of_file_name(SLOT_CLASS, name)
            if device is not None and device not in held:
                yield self._cdi_dir / name

    def _log_written(self, slot: SlotInUse, interfaces: Sequence[AllocatedInterface]) -> None:
        path, data = self._path(slot.device), self._specification(slot, interfaces)
        if not self._files.holds(path, data):
            self._files.write(path, data)

    def _path(self, device: str) -> PurePosixPath:
        return self._cdi_dir / file_name(SLOT_CLASS, device)

    def _specification(self, slot: SlotInUse, interfaces: Sequence[AllocatedInterface]) -> bytes:
        nodes = {node.path: node for interface in interfaces for node in self._nodes_of(interface)}
        if numbers := self._nodes.rdma_cm():
            nodes[RDMA_CM] = character_node(RDMA_CM, *numbers)
        env = _variables(slot, interfaces)
        if not nodes and not env:
            env = (f"{MARK}={slot.device}",)
        return encode_own(
            SLOT_CLASS, slot.device, ContainerEdits(env=env, device_nodes=tuple(nodes.values()))
        )

    def _nodes_of(self, interface: AllocatedInterface) -> tuple[DeviceNode, ...]:
        pci = pci_address(interface.pci)
        if not interface.is_netdev:
            return vfio_nodes(self._nodes.vfio_group(pci))
        found = self._nodes.of_vf(pci, interface.rdma_device)
        return tuple(character_node(each.path, each.major, each.minor) for each in found)


def _variables(slot: SlotInUse, interfaces: Iterable[AllocatedInterface]) -> tuple[str, ...]:
    """None of a slot that is one device: the device plugin has told of all of them together."""
    if slot.one_device:
        return ()
    devices = [
        NamedDevice(rdma=interface.rdma_device if interface.is_netdev else "", pci=interface.pci)
        for interface in interfaces
    ]
    found = device_variables(slot.resource, devices, hints=slot.hints)
    return tuple(f"{name}={value}" for name, value in found.items())


class HostFiles:
    """By their paths on the node, whose root file system is at `host_root`.

    The last part of a path is taken as it is: no link there is followed.
    """

    def __init__(self, host_root: Path) -> None:
        """Nothing is looked at yet."""
        self._root = host_root

    def exists(self, path: PurePosixPath) -> bool:
        """Whether there is anything."""
        return self._own_path(path).exists()

    def holds(self, path: PurePosixPath, data: bytes) -> bool:
        """Whether it is a file with just this in it."""
        target = self._own_path(path)
        try:
            return target.is_file() and not target.is_symlink() and target.read_bytes() == data
        except OSError:
            return False

    def names(self, directory: PurePosixPath) -> list[str]:
        """What a directory holds, in order; nothing where there is none. KernelError when it is not known."""
        try:
            return sorted(path.name for path in self._own_path(directory).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            msg = f"device files in {directory} cannot be looked at: {error.strerror}"
            raise KernelError(msg) from error

    def write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there in one go, as its readers watch the directory; a reboot ends it anyway.

        KernelError names the file that cannot be written.
        """
        target = self._own_path(path)
        draft = target.with_name(f".{target.name[: MAX_NAME_BYTES - 5]}.new")
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

    def remove(self, paths: Iterable[PurePosixPath]) -> None:
        """Remove those that are there; all are tried, and one KernelError names those that cannot be."""
        problems = []
        for path in paths:
            try:
                self._own_path(path).unlink(missing_ok=True)
            except NotADirectoryError:
                continue  # so it is not there
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            msg = f"device files cannot be removed: {'; '.join(problems)}"
            raise KernelError(msg)

    def _own_path(self, path: PurePosixPath) -> Path:
        """Where a path of the node is for us."""
        return below(self._root, Path(path.parent)) / path.name


def device_info_file(path: str) -> str:
    """The path that the runtime names by the capability `CNIDeviceInfoFile`, or empty for none.

    MalformedError when it is not that of a file right in `DEVICE_INFO_DIR`: the agent writes as root.
    """
    directory, _, name = path.rpartition("/")
    if not path:
        return ""
    if directory != DEVICE_INFO_DIR:
        _refuse(path, f"no file in {DEVICE_INFO_DIR}")
    if name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        _refuse(path, "its last part is no file's name")
    return path


class AttachmentSpecs:
    """The files of attachments on the node whose root file system is at `host_root`.

    cdi_dir: of the node, where container runtimes look. ledger, in every method: of the moment.
    """

    def __init__(self, files: HostFiles, cdi_dir: str, nodes: DeviceNodes) -> None:
        """Nothing is written yet."""
        self._files = files
        self._cdi_dir = PurePosixPath(cdi_dir)
        self._nodes = nodes
        self._slots = SlotSpecs(files, self._cdi_dir, nodes)

    def clear(self, slots: Iterable[SlotInUse], container: ContainerId, ledger: Ledger) -> None:
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
            self._files.remove([*self._functions_of_others(ledger), *self._slots.stale_paths(ledger)])
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
        held = {function.pci for receipt in ledger.receipts.values() for function in _functions(receipt)}
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


def _refuse(path: str, why: str) -> NoReturn:
    msg = f"network configuration: runtimeConfig.CNIDeviceInfoFile: {shown(path)}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
