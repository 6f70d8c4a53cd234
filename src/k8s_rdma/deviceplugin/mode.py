"""The interface of a resource's mode, its refusals, and the device nodes that containers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from k8s_rdma.core.devices.device_plugin_api import AllocateResponse, Choice, DeviceSpec, OfferedDevice
from k8s_rdma.core.devices.rdma_devices import RDMA_CM, NamedDevice, NodeKind
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.core.devices.rdma_devices import DeviceInventory, RdmaDevice

EVERY_KIND = frozenset(NodeKind)


def at_home(inventory: DeviceInventory) -> tuple[RdmaDevice, ...]:
    """The devices that the host's namespace has."""
    return tuple(device for device in inventory.devices.values() if device.at_home)


def has_verbs(device: RdmaDevice) -> bool:
    """Report whether programs could use it."""
    return any(node.kind is NodeKind.UVERBS for node in device.nodes)


def specs(
    devices: Iterable[RdmaDevice], *, kinds: frozenset[NodeKind] = EVERY_KIND, permissions: str = "rw"
) -> tuple[DeviceSpec, ...]:
    """Their character devices of some kinds."""
    return tuple(
        DeviceSpec(path=node.path, permissions=permissions)
        for device in devices
        for node in device.nodes
        if node.kind in kinds
    )


def rdma_cm(inventory: DeviceInventory, permissions: str = "rw") -> tuple[DeviceSpec, ...]:
    """The connection manager's device, if present: a runtime starts no container when one is missing."""
    return (DeviceSpec(path=RDMA_CM, permissions=permissions),) if inventory.rdma_cm else ()


def named(device: RdmaDevice) -> NamedDevice:
    """Name by which programs know it."""
    return NamedDevice(rdma=device.name, pci=device.pci)


def refuse(resource: str, device: str, why: str) -> NoReturn:
    """Refuse to give a device (`UNKNOWN_DEVICE`)."""
    msg = f"{resource}: {device} cannot be given: {why}"
    raise K8sRdmaError(msg, reason=Reason.UNKNOWN_DEVICE)


def check(resource: str, choice: Choice) -> None:
    """Refuse what has no answer; MalformedError in the words of kubelet's API."""
    available, required = set(choice.available), set(choice.must_include)
    if missing := sorted(required - available):
        msg = f"{resource}: must_include_deviceIDs: {missing[0]} is not among available_deviceIDs"
        raise MalformedError(msg)
    if not len(required) <= choice.size <= len(available):
        msg = (
            f"{resource}: allocation_size: {choice.size} devices, with {len(required)} that must be among"
            f" them and {len(available)} available"
        )
        raise MalformedError(msg)


class Mode(Protocol):
    """One resource. Pure: what is there is an argument."""

    @property
    def resource(self) -> str:
        """Its name, `tencent.com/rdma`."""
        ...

    @property
    def prefers(self) -> bool:
        """Report whether some devices are better than others; else kubelet need not ask `prefer`."""
        ...

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """All that there is, in a stable order."""
        ...

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """What a container with these devices gets.

        K8sRdmaError (`UNKNOWN_DEVICE`, INVALID_ARGUMENT in gRPC) names an id that is not offered, or is
        unhealthy, and why; `TOO_MANY_DEVICES` (OUT_OF_RANGE) says how many a container may have.
        """
        ...

    def prefer(self, choice: Choice, inventory: DeviceInventory) -> tuple[str, ...]:
        """The best of what is available; MalformedError when the question cannot be answered."""
        ...
