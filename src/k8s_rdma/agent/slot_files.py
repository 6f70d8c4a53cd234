"""CDI specifications of slots: which device nodes and variables a container gets that holds one.

Source: `core.devices.pod_devices`. A specification is what the ledger says of its slot, with the device nodes of
now: a device that moves into a pod's namespace gets others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.devices.rdma_devices import RDMA_CM, NamedDevice, device_variables
from k8s_rdma.core.ids import pci_address
from k8s_rdma.errors import KernelError
from k8s_rdma.wire.cdi import (
    SLOT_CLASS,
    ContainerEdits,
    character_node,
    device_of_file_name,
    encode_own,
    file_name,
    vfio_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import PurePosixPath

    from k8s_rdma.agent.node_files import NodeFiles
    from k8s_rdma.core.devices.pod_devices import SlotHeld
    from k8s_rdma.core.devices.rdma_devices import CharacterDevice
    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger
    from k8s_rdma.wire.cdi import DeviceNode

MARK = "K8S_RDMA_SLOT"
"""A variable for a slot without anything: a specification that edits nothing is none."""


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


class SlotFiles:
    """The specifications in a directory of the node."""

    def __init__(self, files: NodeFiles, cdi_dir: PurePosixPath, nodes: DeviceNodes) -> None:
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
                    self._tell(slot, interfaces)
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

    def others(self, ledger: Ledger) -> Iterable[PurePosixPath]:
        """Specifications of ours that are of no slot in the ledger."""
        held = {slot.device for slot in ledger.slots()}
        for name in self._files.names(self._cdi_dir):
            device = device_of_file_name(SLOT_CLASS, name)
            if device is not None and device not in held:
                yield self._cdi_dir / name

    def _tell(self, slot: SlotHeld, interfaces: Sequence[AllocatedInterface]) -> None:
        path, data = self._path(slot.device), self._specification(slot, interfaces)
        if not self._files.holds(path, data):
            self._files.write(path, data)

    def _path(self, device: str) -> PurePosixPath:
        return self._cdi_dir / file_name(SLOT_CLASS, device)

    def _specification(self, slot: SlotHeld, interfaces: Sequence[AllocatedInterface]) -> bytes:
        nodes = {node.path: node for each in interfaces for node in self._nodes_of(each)}
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


def _variables(slot: SlotHeld, interfaces: Iterable[AllocatedInterface]) -> tuple[str, ...]:
    """None of a slot that is one device: the device plugin has told of all of them together."""
    if slot.one_device:
        return ()
    devices = [
        NamedDevice(rdma=each.rdma_device if each.is_netdev else "", pci=each.pci) for each in interfaces
    ]
    found = device_variables(slot.resource, devices, hints=slot.hints)
    return tuple(f"{name}={value}" for name, value in found.items())
