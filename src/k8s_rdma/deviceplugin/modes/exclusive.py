"""Mode `exclusive`: each RDMA device for one container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.device_plugin_api import AllocateResponse, Choice, OfferedDevice
from k8s_rdma.core.devices.pod_devices import slot_device
from k8s_rdma.core.devices.rdma_devices import (
    DeviceInventory,
    NetnsMode,
    RdmaDevice,
    device_annotations,
    device_variables,
)
from k8s_rdma.deviceplugin.mode import (
    PoolMembers,
    check_choice,
    has_verbs,
    named_device,
    rdma_cm,
    refuse,
    specs,
)
from k8s_rdma.deviceplugin.topology import Candidate, Place, preferred
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.config.devices import ExclusiveResource


class ExclusiveMode:
    """Devices of a pool, by name, with those that pods have."""

    prefers = True

    def __init__(self, config: ExclusiveResource, members: PoolMembers) -> None:
        """Read the configured resource. members: of all exclusive resources."""
        self.resource = config.name
        self._cdi = config.cdi
        self._hints = config.hints
        self._members = members

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """List all devices of the pool, sorted by name."""
        return tuple(
            OfferedDevice(
                id=member.name,
                unhealthy=self._unhealthy(member, inventory),
                numa_nodes=() if member.numa_node is None else (member.numa_node,),
            )
            for member in self._members.members(self.resource, inventory).values()
        )

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Return `uverbs`, `umad`, `issm` and `rdma_cm` of the devices.

        Or their CDI devices, which the agent fills.

        A device that a pod has is given all the same: kubelet may do so before that pod is taken down, and
        the new pod's ADD waits for it.
        """
        devices = self._members.members(self.resource, inventory)
        for name in ids:
            if name not in devices:
                refuse(self.resource, name, "there is no such RDMA device in this resource's pool")
            if why := self._unhealthy(devices[name], inventory):
                refuse(self.resource, name, why)
        chosen = [devices[name] for name in dict.fromkeys(ids)]
        by_cdi = self._by_cdi(inventory)
        for device in chosen:
            if not by_cdi and not has_verbs(device):
                refuse(self.resource, device.name, "a pod has it, and its nodes are not known")
        return AllocateResponse(
            envs=device_variables(
                self.resource, [named_device(device) for device in chosen], hints=self._hints
            ),
            annotations=device_annotations(self.resource, [device.name for device in chosen]),
            devices=() if by_cdi else (*specs(chosen), *rdma_cm(inventory)),
            cdi_devices=tuple(map(self._cdi_device, chosen)) if by_cdi else (),
        )

    def prefer(self, choice: Choice, inventory: DeviceInventory) -> tuple[str, ...]:
        """Choose as `topology.preferred` does; devices that pods still have come last."""
        check_choice(self.resource, choice)
        allocated = inventory.allocated or {}
        candidates = [
            Candidate(id=name, place=_place(inventory.devices.get(name)), last=name in allocated)
            for name in choice.available
        ]
        return preferred(candidates, choice.must_include, choice.size, choice.neighbours)

    def _by_cdi(self, inventory: DeviceInventory) -> bool:
        """Report whether CDI names the nodes: in another namespace their numbers may change."""
        return inventory.netns_mode is NetnsMode.EXCLUSIVE if self._cdi is None else self._cdi

    def _cdi_device(self, device: RdmaDevice) -> str:
        return qualified_name(slot_device(self.resource, device.name), device_class=SLOT_CLASS)

    def _unhealthy(self, device: RdmaDevice, inventory: DeviceInventory) -> str:
        return (
            "; ".join(device.faults) or _of_annotation(device, inventory) or self._unusable(device, inventory)
        )

    def _unusable(self, device: RdmaDevice, inventory: DeviceInventory) -> str:
        """Return the reason why the device's nodes cannot be given.

        A pod's device shows them once it is back.
        """
        if not self._by_cdi(inventory):
            return "it has no uverbs device" if device.at_home and not has_verbs(device) else ""
        if device.vf is None:
            return "it is not a VF, and the agent, which provides nodes by CDI, allocates VFs only"
        return (
            ""
            if inventory.held_slots is not None
            else "the agent, which writes its CDI device, has not reported yet"
        )


def _of_annotation(device: RdmaDevice, inventory: DeviceInventory) -> str:
    """Return the reason why the device is not the pool's yet: a pod got it by annotation."""
    allocation = (inventory.allocated or {}).get(device.name)
    return "" if allocation is None or allocation.pool else "a pod has it by annotation"


def _place(device: RdmaDevice | None) -> Place:
    if device is None:
        return Place()
    return Place(pf=device.pf, numa_node=device.numa_node, pcie_path=device.pcie_path)
