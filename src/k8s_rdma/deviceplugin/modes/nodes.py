"""Character devices for containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import RDMA_CM, NamedDevice, NodeKind
from k8s_rdma.deviceplugin.mode import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.core.devices.rdma_devices import DevicesSeen, RdmaDevice

EVERY_KIND = frozenset(NodeKind)


def at_home(seen: DevicesSeen) -> tuple[RdmaDevice, ...]:
    """The devices that the host's namespace has."""
    return tuple(each for each in seen.devices.values() if each.at_home)


def has_verbs(device: RdmaDevice) -> bool:
    """Whether programs could use it."""
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


def rdma_cm(seen: DevicesSeen, permissions: str = "rw") -> tuple[DeviceSpec, ...]:
    """The connection manager's device, where it is: a runtime starts no container for want of one."""
    return (DeviceSpec(path=RDMA_CM, permissions=permissions),) if seen.rdma_cm else ()


def named(device: RdmaDevice) -> NamedDevice:
    """What programs know it by."""
    return NamedDevice(rdma=device.name, pci=device.pci)
