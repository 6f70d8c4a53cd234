"""CDI specifications and device-information files of attachments, slots and shared resources.

All calls block. Files of an attachment are written once the interfaces are in the pod, and removed before its
receipt is: what a crash leaves is removed when the agent ends that receipt. A slot's specification follows
the ledger and lists the current device nodes: a device that moves into a pod's namespace gets new ones. The
specifications of shared resources exist as long as the device plugin declares them. Each lists the character
devices of RDMA devices that the agent looks up by name; a declaration serves for no more than that.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from k8s_rdma.agent.claim_metadata import ClaimMetadata
from k8s_rdma.agent.host_files import HostFiles
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.worker import Worker
from k8s_rdma.core.devices.container_devices import NamedDevice, device_variables
from k8s_rdma.core.devices.pod_devices import SlotInUse, format_memlock, shared_device
from k8s_rdma.core.devices.rdma_devices import RDMA_CM, CharacterDevice
from k8s_rdma.core.ledger import (
    AllocatedInterface,
    ClaimUid,
    Ledger,
    LedgerClaim,
    Phase,
    PreparedInterface,
    Receipt,
)
from k8s_rdma.core.types import ContainerId, PciAddress, PodUid, VfDriver, pci_address
from k8s_rdma.errors import K8sRdmaError, KernelError, MalformedError, Reason
from k8s_rdma.linux.atomic_file import MAX_NAME_BYTES, draft_of
from k8s_rdma.wire.annotation import MEMLOCK_ANNOTATION
from k8s_rdma.wire.cdi import (
    CLAIM_CLASS,
    SHARED_CLASS,
    SLOT_CLASS,
    VENDOR,
    VF_CLASS,
    CdiDevice,
    ContainerEdits,
    Declared,
    DeviceNode,
    Hook,
    Written,
    character_node,
    device_of_file_name,
    encode_own,
    encode_specification,
    file_name,
    vfio_nodes,
)
from k8s_rdma.wire.conflist import PLUGIN
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.network_status import device_info, encode_device_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence


_log = structlog.get_logger()

MARK = "K8S_RDMA_SLOT"
"""A variable for a slot without device nodes and variables: a specification without an edit is invalid."""

DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo/cni"
"""Source: Device Information Specification 1.1.0, section 4.2."""

CLAIM_VARIABLE = "K8S_RDMA_CLAIM"
"""The prefix of the variable with a claimed VF's PCI address, before the pod's name for the claim and the
request."""

HOOK_TIMEOUT_S = 10
"""A hook that does not end fails its container; ours makes two system calls."""

DECLARED_SOON_S = 30.0
"""The time for which a restarted agent leaves the specifications of its predecessor: the device plugin
connects again within a second or so, and containers may be created meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpecs:
    """The CDI specifications of attachments and shared resources; the worker writes the files.

    alone: whether all files of ours in the directory are this agent's.
    A file that cannot be written or removed is logged: no pod goes without interfaces for it.
    """

    node: Node
    worker: Worker
    devices: AttachmentSpecs
    shared: SharedResourceSpecs
    alone: bool

    async def restore(self) -> None:
        """Write all specifications with the current device nodes, and remove stale ones."""
        await self.worker.run(self.restore_files)

    def restore_files(self) -> None:
        """Do as `restore`, on the worker's thread."""
        if self.alone:
            _log_failure(lambda: self.devices.restore(self.node.ledger))
        _log_failure(self.shared.restore)

    async def run(self) -> None:
        """Remove specifications that no plugin declares, once plugins have had time to declare theirs."""
        await asyncio.sleep(DECLARED_SOON_S)
        if self.alone:
            await self.worker.run(_log_failure, self.shared.remove_undeclared)


def _log_failure(work: Callable[[], None]) -> None:
    try:
        work()
    except KernelError as error:
        _log.warning("device_files_not_restored", error=error.message)


class DeviceNodeSource(Protocol):
    """Looks up current device nodes. KernelError when they cannot be looked up."""

    def vfio_group(self, pci: PciAddress) -> str:
        """Return the node of the VFIO group of a PCI function that vfio-pci drives."""
        ...

    def of_vf(self, pci: PciAddress, rdma_device: str) -> tuple[CharacterDevice, ...]:
        """Return the nodes of a VF's RDMA device, in any network namespace; empty if it has no such device.

        rdma_device: by name, for a soft one, which has no PCI function.
        """
        ...

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """Return the nodes of RDMA devices by name, in any network namespace."""
        ...

    def rdma_cm(self) -> tuple[int, int] | None:
        """Return the major and minor number of the connection manager's node, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class CdiDirectory:
    """The node's directory of CDI specifications, and what these are made of.

    path: as container runtimes read it.
    memlock_hook: the executable that raises the limit of locked memory of a container, as a `createRuntime`
        hook; empty for none, so that containers keep the runtime's limit.
    """

    files: HostFiles
    path: PurePosixPath
    nodes: DeviceNodeSource
    memlock_hook: str = ""

    def path_of(self, device_class: str, device: str) -> PurePosixPath:
        """Return the path of our specification of a device."""
        return self.path / file_name(device_class, device)

    def stale_paths(self, device_class: str, current: Container[str]) -> list[PurePosixPath]:
        """Find our specifications of other devices of a class. KernelError as `HostFiles.names`."""
        devices = {name: device_of_file_name(device_class, name) for name in self.files.names(self.path)}
        return [self.path / name for name, device in devices.items() if device and device not in current]

    def vfio_nodes(self, pci: str) -> tuple[DeviceNode, ...]:
        """Look up the nodes of a PCI function that vfio-pci drives; errors as of `DeviceNodeSource`."""
        return vfio_nodes(self.nodes.vfio_group(pci_address(pci)))

    def rdma_nodes(self, pci: str, rdma_device: str) -> tuple[DeviceNode, ...]:
        """Look up the nodes of a VF's RDMA device; arguments and errors as of `DeviceNodeSource.of_vf`."""
        found = self.nodes.of_vf(pci_address(pci), rdma_device)
        return tuple(character_node(character.path, character.major, character.minor) for character in found)

    def rdma_cm(self) -> tuple[DeviceNode, ...]:
        """Look up the connection manager's node; empty if it is missing."""
        numbers = self.nodes.rdma_cm()
        return (character_node(RDMA_CM, *numbers),) if numbers else ()

    def memlock_hooks(self, memlock: int, *, required: bool) -> tuple[Hook, ...]:
        """Return the hook by which a container may lock memory. KernelError if it has to, and cannot."""
        if not memlock:
            return ()
        if not self.memlock_hook:
            if required:
                msg = f"{MEMLOCK_ANNOTATION}: there is no {PLUGIN} in cniPath of the agent's file"
                raise KernelError(msg)
            return ()
        args = (PLUGIN, "memlock", format_memlock(memlock), *(("required",) if required else ()))
        hook = Hook(hook_name="createRuntime", path=self.memlock_hook, args=args, timeout=HOOK_TIMEOUT_S)
        return (hook,)


class SharedResourceSpecs:
    """Manages the CDI specifications of shared resources."""

    def __init__(self, directory: CdiDirectory) -> None:
        """Start without declarations; files of an earlier agent stay until `remove_undeclared`."""
        self._directory = directory
        # By resource: its devices by who declares them, a device plugin's connection; the last one counts.
        self._declared: dict[str, dict[object, tuple[str, ...]]] = {}

    def declare(self, owner: object, declared: Declared) -> Written:
        """Publish the resources that a plugin declares, in place of those that it declared before."""
        now = declared.resources
        failed = self._withdraw(owner, self._resources_of(owner) - now.keys())
        for name, devices in now.items():
            declarations = self._declared.setdefault(name, {})
            declarations.pop(owner, None)
            declarations[owner] = devices
        failed |= self._write(now)
        return Written(resources=tuple(name for name in now if name not in failed), failed=failed)

    def end(self, owner: object) -> None:
        """Withdraw a plugin's declarations; another plugin's declaration of the same resource stays.

        KernelError names the files that could not be updated.
        """
        if failed := self._withdraw(owner, self._resources_of(owner)):
            raise KernelError("; ".join(failed.values()))

    def restore(self) -> None:
        """Write the current device nodes; KernelError names the specifications that cannot be written."""
        if failed := self._write(self._declared):
            raise KernelError("; ".join(failed.values()))

    def remove_undeclared(self) -> None:
        """Remove our specifications that no plugin declares; KernelError names those that stay."""
        declared = set(map(shared_device, self._declared))
        self._directory.files.remove(self._directory.stale_paths(SHARED_CLASS, declared))

    def _resources_of(self, owner: object) -> set[str]:
        return {name for name, declared in self._declared.items() if owner in declared}

    def _withdraw(self, owner: object, resources: Iterable[str]) -> dict[str, str]:
        """Withdraw an owner's declarations of some resources. Returns failures by resource."""
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
        """Write the specifications of some resources, or else remove them. Returns failures by resource."""
        failed = {}
        for name in resources:
            try:
                self._directory.files.update(self._path(name), self._specification(name))
            except K8sRdmaError as error:
                failed[name] = error.message
                failed |= self._remove(name)
        return failed

    def _remove(self, resource: str) -> dict[str, str]:
        try:
            self._directory.files.remove([self._path(resource)])
        except KernelError as error:
            return {resource: error.message}
        return {}

    def _specification(self, resource: str) -> bytes:
        *_, devices = self._declared[resource].values()
        found = self._directory.nodes.of_devices(devices)
        nodes = [character_node(character.path, character.major, character.minor) for character in found]
        if not nodes:
            msg = f"{resource}: none of its devices has a character device"
            raise KernelError(msg)
        edits = ContainerEdits(device_nodes=(*nodes, *self._directory.rdma_cm()))
        return encode_own(SHARED_CLASS, shared_device(resource), edits)

    def _path(self, resource: str) -> PurePosixPath:
        return self._directory.path_of(SHARED_CLASS, shared_device(resource))


@dataclass(frozen=True, slots=True)
class SlotSpecs:
    """Manages the CDI specifications of slots."""

    directory: CdiDirectory

    def update(self, devices: Collection[str], ledger: Ledger) -> tuple[str, ...]:
        """Write the specifications of some slots by the ledger; remove those of slots without interfaces.

        A specification that cannot be updated is removed as well, since an old one may name another pod's
        devices. Returns a sentence for each of these. KernelError names those that could not be removed.
        """
        problems, to_go = [], set(devices)
        for slot, interfaces in ledger.slots().items():
            if slot.device in devices and interfaces:
                try:
                    self.directory.files.update(
                        self._path(slot.device), self._specification(slot, interfaces)
                    )
                    to_go.discard(slot.device)
                except KernelError as error:
                    problems.append(error.message)
        if to_go:
            self.remove(to_go)
        return tuple(problems)

    def remove(self, devices: Collection[str]) -> None:
        """Remove the specifications of some slots; KernelError names those that stay."""
        self.directory.files.remove(map(self._path, sorted(devices)))

    def wrong(self, devices: Collection[str], ledger: Ledger) -> Iterator[str]:
        """Find specifications of some slots that differ from the ledger, and describe each in a clause."""
        for slot, interfaces in ledger.slots().items():
            if slot.device in devices and interfaces:
                path = self._path(slot.device)
                if not self.directory.files.holds(path, self._specification(slot, interfaces)):
                    yield f"{path} does not tell the devices of slot {slot.device}"

    def stale_paths(self, ledger: Ledger) -> list[PurePosixPath]:
        """Find our specifications of slots that are not in the ledger."""
        return self.directory.stale_paths(SLOT_CLASS, {slot.device for slot in ledger.slots()})

    def _path(self, device: str) -> PurePosixPath:
        return self.directory.path_of(SLOT_CLASS, device)

    def _specification(self, slot: SlotInUse, interfaces: Sequence[AllocatedInterface]) -> bytes:
        nodes = {node.path: node for interface in interfaces for node in self._nodes_of(interface)}
        nodes |= {node.path: node for node in self.directory.rdma_cm()}
        env = _variables(slot, interfaces)
        if not nodes and not env:
            env = (f"{MARK}={slot.device}",)
        hooks = self.directory.memlock_hooks(slot.memlock, required=slot.memlock_required)
        edits = ContainerEdits(env=env, device_nodes=tuple(nodes.values()), hooks=hooks)
        return encode_own(SLOT_CLASS, slot.device, edits)

    def _nodes_of(self, interface: AllocatedInterface) -> tuple[DeviceNode, ...]:
        if not interface.is_netdev:
            return self.directory.vfio_nodes(interface.pci)
        return self.directory.rdma_nodes(interface.pci, interface.rdma_device)


def _variable(*names: str) -> str:
    """Name the variable of a claimed VF: other names make another variable."""
    parts = (re.sub("[^A-Z0-9]", "_", name.upper().replace(".", "__")) for name in names)
    return "_".join((CLAIM_VARIABLE, *parts))


@dataclass(frozen=True, slots=True)
class ClaimSpecs:
    """Manages the CDI specification of each claim, with a device for each of its interfaces.

    An RDMA device that moves into a pod's namespace gets other device nodes, and those of vfio-pci exist
    while the pod has the VF only: so a specification is written when the claim is prepared, and again when
    its interfaces go to the pod and come back. The first device of a request has the request's metadata
    mounted, as a container has all devices of a request or none.
    """

    directory: CdiDirectory
    metadata: ClaimMetadata

    def write(self, claim: LedgerClaim, ledger: Ledger) -> None:
        """Write a claim's specification and metadata; K8sRdmaError if that fails: then neither is there."""
        path = self._path(claim.uid)
        try:
            self.metadata.write(claim)
            self.directory.files.update(path, self._specification(claim, ledger))
        except K8sRdmaError:
            self.directory.files.remove([path])
            raise

    def write_of_pod(self, pod: PodUid, ledger: Ledger) -> None:
        """Write the specifications of a pod's claims; K8sRdmaError as `write`."""
        for claim in ledger.claims.values():
            if claim.pod.uid == pod:
                self.write(claim, ledger)

    def remove(self, claim: ClaimUid) -> None:
        """Remove a claim's specification and metadata; KernelError names the files that stay."""
        self.directory.files.remove([self._path(claim)])
        self.metadata.remove(claim)

    def stale_paths(self, ledger: Ledger) -> list[PurePosixPath]:
        """Find specifications and metadata of claims that are not prepared."""
        stale = self.directory.stale_paths(CLAIM_CLASS, set(ledger.claims))
        return [*stale, *self.metadata.stale_paths(ledger)]

    def _path(self, claim: ClaimUid) -> PurePosixPath:
        return self.directory.path_of(CLAIM_CLASS, claim)

    def _specification(self, claim: LedgerClaim, ledger: Ledger) -> bytes:
        attached = {
            interface.vf: interface
            for receipt in ledger.of_pod(claim.pod.uid)
            if receipt.phase is Phase.ATTACHED
            for interface in receipt.interfaces
        }
        hooks = self.directory.memlock_hooks(claim.memlock, required=claim.memlock_required)
        mounts = self.metadata.mounts(claim)
        devices = []
        for name, prepared in zip(claim.device_names(), claim.interfaces, strict=True):
            nodes = {node.path: node for node in self._nodes_of(prepared, attached.get(prepared.vf))}
            if nodes:
                nodes |= {node.path: node for node in self.directory.rdma_cm()}
            mount = mounts.pop(prepared.request, None)
            variable = _variable(claim.pod_claim, name.removeprefix(f"{claim.uid}."))
            edits = ContainerEdits(
                env=(f"{variable}={prepared.pci}",),
                device_nodes=tuple(nodes.values()),
                hooks=hooks,
                mounts=(mount,) if mount is not None else (),
            )
            devices.append(CdiDevice(name=name, container_edits=edits))
        return encode_specification(devices, vendor=VENDOR, device_class=CLAIM_CLASS)

    def _nodes_of(
        self, prepared: PreparedInterface, attached: AllocatedInterface | None
    ) -> tuple[DeviceNode, ...]:
        if attached is not None and not attached.is_netdev:
            return self.directory.vfio_nodes(attached.pci)
        if prepared.placed.options.driver is VfDriver.VFIO_PCI:
            return ()
        return self.directory.rdma_nodes(prepared.pci, prepared.rdma_device)


def _variables(slot: SlotInUse, interfaces: Iterable[AllocatedInterface]) -> tuple[str, ...]:
    """Return the variables of a slot; for a single device the device plugin sets those of all."""
    if slot.one_device:
        return ()
    devices = [
        NamedDevice(
            rdma=interface.rdma_device if interface.is_netdev else "",
            pci=interface.pci,
            gpu=interface.gpu,
            interface=interface.ifname,
        )
        for interface in interfaces
    ]
    found = device_variables(slot.resource, devices, hints=slot.hints)
    return tuple(f"{name}={value}" for name, value in found.items())


def device_info_file(path: str) -> str:
    """Check the path that the runtime names by the capability `CNIDeviceInfoFile`; empty for none.

    MalformedError unless it is a file directly in `DEVICE_INFO_DIR`: the agent writes as root.
    """
    directory, _, name = path.rpartition("/")
    if not path:
        return ""
    if directory != DEVICE_INFO_DIR:
        _refuse(path, f"no file in {DEVICE_INFO_DIR}")
    if name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        _refuse(path, "its last part is not a file name")
    return path


class AttachmentSpecs:
    """Manages the files of attachments on the node. ledger, in every method: the current one."""

    def __init__(self, directory: CdiDirectory, metadata: ClaimMetadata) -> None:
        """Write nothing yet."""
        self._directory = directory
        self._slots = SlotSpecs(directory)
        self.claims = ClaimSpecs(directory, metadata)

    def clear(self, slots: Iterable[SlotInUse], container: ContainerId, ledger: Ledger) -> None:
        """Remove the specifications of slots that a sandbox is about to take and another may have had.

        Call it before that: until then the other receipt still covers them. KernelError as in `remove`.
        """
        own = {slot for receipt in ledger.of_container(container) for slot in receipt.slots}
        if new := [slot.device for slot in slots if slot not in own]:
            self._slots.remove(new)

    def write(self, receipt: Receipt, ledger: Ledger) -> None:
        """Write the files of an attachment's interfaces; K8sRdmaError names the file that cannot be written.

        The device-information file describes one device: the first interface's. An existing file stays, since
        its writer knows the device (section 5.1.2).
        """
        for interface in _functions(receipt):
            self._write_function(interface)
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            if not self._directory.files.exists(path):
                self._directory.files.write(path, _information(receipt))
        self.claims.write_of_pod(receipt.pod.uid, ledger)
        if problems := self._slots.update(_slots(receipt, ledger), ledger):
            raise KernelError("; ".join(problems))

    def remove(self, receipt: Receipt, ledger: Ledger) -> None:
        """Remove the files of an attachment that are still ours; KernelError names those that stay.

        The slots still list the devices of the sandbox's other attachments, if these can be looked up.
        """
        files = [self._cdi_file(interface) for interface in _functions(receipt)]
        if receipt.device_info_file and receipt.interfaces:
            path = PurePosixPath(receipt.device_info_file)
            files.append(path if self._directory.files.holds(path, _information(receipt)) else draft_of(path))
        if files:
            self._directory.files.remove(files)
        self._slots.update(_slots(receipt, ledger), ledger)
        try:
            self.claims.write_of_pod(receipt.pod.uid, ledger)
        except K8sRdmaError as error:  # the next ADD of the pod writes it again
            _log.warning("claim_devices_not_written", pod=receipt.pod.uid, error=error.message)

    def wrong(self, receipt: Receipt, ledger: Ledger) -> tuple[str, ...]:
        """Find errors in the specifications of an attachment's slots, and describe each in a clause."""
        return tuple(self._slots.wrong(_slots(receipt, ledger), ledger))

    def restore(self, ledger: Ledger) -> None:
        """Make our CDI specifications match the ledger, whatever happened to them meanwhile.

        Everything is tried; one KernelError names all failures.
        """
        problems: list[str] = []
        attached = [
            attached_receipt
            for attached_receipt in ledger.receipts.values()
            if attached_receipt.phase is Phase.ATTACHED
        ]
        for interface in (
            attached_receipt for receipt in attached for attached_receipt in _functions(receipt)
        ):
            with _noting(problems):
                self._write_function(interface)
        with _noting(problems):
            problems += self._slots.update({slot.device for slot in ledger.slots()}, ledger)
        with _noting(problems):
            stale = (*self._slots.stale_paths(ledger), *self.claims.stale_paths(ledger))
            self._directory.files.remove([*self._functions_of_others(ledger), *stale])
        for claim in ledger.claims.values():
            with _noting(problems):
                self.claims.write(claim, ledger)
        if problems:
            raise KernelError("; ".join(problems))

    def _write_function(self, interface: AllocatedInterface) -> None:
        edits = ContainerEdits(device_nodes=self._directory.vfio_nodes(interface.pci))
        data = encode_own(VF_CLASS, interface.pci, edits)
        self._directory.files.update(self._cdi_file(interface), data)

    def _functions_of_others(self, ledger: Ledger) -> list[PurePosixPath]:
        """Find specifications of VFs without a receipt, as a lost or restored ledger leaves them."""
        functions = {function.pci for receipt in ledger.receipts.values() for function in _functions(receipt)}
        return self._directory.stale_paths(VF_CLASS, functions)

    def _cdi_file(self, interface: AllocatedInterface) -> PurePosixPath:
        return self._directory.path_of(VF_CLASS, interface.pci)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except K8sRdmaError as error:  # also what a ledger holds that no specification can
        problems.append(error.message)


def _slots(receipt: Receipt, ledger: Ledger) -> frozenset[str]:
    """Return the attachment's current slots; another pod may have taken some since the receipt was read."""
    now = ledger.receipts.get(receipt.attachment)
    return frozenset(slot.device for slot in now.slots) if now else frozenset()


def _functions(receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """Select the interfaces that are PCI functions for a program in the pod."""
    return tuple(interface for interface in receipt.interfaces if not interface.is_netdev)


def _information(receipt: Receipt) -> bytes:
    return encode_device_info(device_info(receipt.interfaces[0]))


def _refuse(path: str, why: str) -> NoReturn:
    msg = f"network configuration: runtimeConfig.CNIDeviceInfoFile: {shown(path)}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
