"""The interface of a resource's mode, its refusals and selectors, and the device nodes of containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from k8s_rdma.core.devices.device_plugin_api import AllocateResponse, Choice, DeviceSpec, OfferedDevice
from k8s_rdma.core.devices.pools import Function, Functions, FunctionSelector, Pool
from k8s_rdma.core.devices.rdma_devices import (
    RDMA_CM,
    AllocatedDevice,
    DeviceInventory,
    NamedDevice,
    NodeKind,
    RdmaDevice,
)
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.config.devices import SharedSelector

EVERY_KIND = frozenset(NodeKind)

_MOST_REMEMBERED = 100_000
"""Functions whose resource is cached; there are fewer, but they may come and go."""


class Mode(Protocol):
    """Mode of one resource. Pure: the inventory is an argument."""

    @property
    def resource(self) -> str:
        """Name of the resource, such as `tencent.com/rdma`."""
        ...

    @property
    def prefers(self) -> bool:
        """Report whether some devices are better than others; else kubelet need not ask `prefer`."""
        ...

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """List all devices, in a stable order."""
        ...

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Return the response for a container that gets these devices.

        K8sRdmaError (`UNKNOWN_DEVICE`, INVALID_ARGUMENT in gRPC) names an id that is not offered, or is
        unhealthy, and why; `TOO_MANY_DEVICES` (OUT_OF_RANGE) says how many a container may have.
        """
        ...

    def prefer(self, choice: Choice, inventory: DeviceInventory) -> tuple[str, ...]:
        """Choose the best of the available devices; MalformedError when the request cannot be met."""
        ...


def at_home(inventory: DeviceInventory) -> tuple[RdmaDevice, ...]:
    """List the devices in the host's network namespace."""
    return tuple(device for device in inventory.devices.values() if device.at_home)


def has_verbs(device: RdmaDevice) -> bool:
    """Report whether programs can use the device."""
    return any(node.kind is NodeKind.UVERBS for node in device.nodes)


def specs(
    devices: Iterable[RdmaDevice], *, kinds: frozenset[NodeKind] = EVERY_KIND, permissions: str = "rw"
) -> tuple[DeviceSpec, ...]:
    """List the character devices of these kinds."""
    return tuple(
        DeviceSpec(path=node.path, permissions=permissions)
        for device in devices
        for node in device.nodes
        if node.kind in kinds
    )


def rdma_cm(inventory: DeviceInventory, permissions: str = "rw") -> tuple[DeviceSpec, ...]:
    """Return the connection manager's device, if present: a container with a missing one does not start."""
    return (DeviceSpec(path=RDMA_CM, permissions=permissions),) if inventory.rdma_cm else ()


def named_device(device: RdmaDevice) -> NamedDevice:
    """Return the names by which programs find a device."""
    return NamedDevice(rdma=device.name, pci=device.pci)


def refuse(resource: str, device: str, why: str) -> NoReturn:
    """Refuse to give a device (`UNKNOWN_DEVICE`)."""
    msg = f"{resource}: {device} cannot be given: {why}"
    raise K8sRdmaError(msg, reason=Reason.UNKNOWN_DEVICE)


def check_choice(resource: str, choice: Choice) -> None:
    """Refuse a request that cannot be met; MalformedError in the terms of kubelet's API."""
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


def selects(selector: FunctionSelector, device: RdmaDevice) -> bool:
    """Report whether a selector matches; a device without a PCI function is neither a VF's nor a PF's."""
    if not device.pf and selector.functions is not Functions.ANY:
        return False
    return selector.matches(
        Function(
            pci=device.pci,
            pf=device.pf,
            pf_name=device.pf_name,
            pf_vendor=device.pf_vendor,
            pf_driver=device.pf_driver,
            link_type=device.link_type,
            vf=device.vf,
        )
    )


class PoolMembers:
    """The devices of each exclusive resource, computed once for each inventory."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        """Assign each device to the first pool that selects it."""
        self._pools = tuple(pools)
        self._resources: dict[tuple[object, ...], str] = {}
        self._inventory: DeviceInventory | None = None
        self._members: dict[str, dict[str, RdmaDevice]] = {}

    def members(self, resource: str, inventory: DeviceInventory) -> Mapping[str, RdmaDevice]:
        """Return the devices of a resource, sorted by name.

        Those that pods have of it whatever selectors say.
        """
        if inventory is not self._inventory:
            members: dict[str, dict[str, RdmaDevice]] = {pool.resource: {} for pool in self._pools}
            for name in sorted(inventory.devices):
                device = inventory.devices[name]
                members.setdefault(self._resource(device, inventory.allocated or {}), {})[name] = device
            self._inventory, self._members = inventory, members
        return self._members[resource]

    def _resource(self, device: RdmaDevice, allocated: Mapping[str, AllocatedDevice]) -> str:
        allocation = allocated.get(device.name)
        if allocation is not None and allocation.pool:
            return allocation.pool
        facts = (device.pci, device.vf, device.pf, device.pf_name, device.pf_vendor, device.pf_driver)
        found = self._resources.get((*facts, device.link_type))
        if found is None:
            found = next((pool.resource for pool in self._pools if selects(pool.selector, device)), "")
            if len(self._resources) > _MOST_REMEMBERED:
                self._resources.clear()
            self._resources[*facts, device.link_type] = found
        return found


class SharedSelection:
    """Selector of a shared resource: by function, and by names that may change."""

    def __init__(self, selector: SharedSelector) -> None:
        """Read the configured selector."""
        self._functions = selector.to_core()
        self._device_ids = frozenset(selector.device_ids)
        self._if_names = frozenset(selector.if_names)
        self._rdma_devices = frozenset(selector.rdma_devices)

    def matches(self, device: RdmaDevice) -> bool:
        """Report whether the device is selected."""
        return (
            (not self._device_ids or device.vendor.partition(":")[2] in self._device_ids)
            and (not self._if_names or device.netdev in self._if_names)
            and (not self._rdma_devices or device.name in self._rdma_devices)
            and selects(self._functions, device)
        )
