"""Selection of RDMA devices by selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pools import Function, Functions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.config.devices import SharedSelector
    from k8s_rdma.core.devices.pools import FunctionSelector, Pool
    from k8s_rdma.core.devices.rdma_devices import AllocatedDevice, DeviceInventory, RdmaDevice

_MOST_REMEMBERED = 100_000
"""Functions whose resource is known; there are fewer, but they may come and go."""


def selects(selector: FunctionSelector, device: RdmaDevice) -> bool:
    """Report whether a device is meant; one that has no PCI function is neither a VF's nor a PF's."""
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
    """Which devices exclusive resources have: found once for each look, however many resources there are."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        """Of these resources; a device is the first's that selects it."""
        self._pools = tuple(pools)
        self._resources: dict[tuple[object, ...], str] = {}
        self._inventory: DeviceInventory | None = None
        self._members: dict[str, dict[str, RdmaDevice]] = {}

    def members(self, resource: str, inventory: DeviceInventory) -> Mapping[str, RdmaDevice]:
        """Those of one, by name and in that order; those that a pod has of it, whatever selectors say."""
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
    """A shared resource's selector: functions, and by what may change."""

    def __init__(self, selector: SharedSelector) -> None:
        """As configured."""
        self._functions = selector.to_core()
        self._device_ids = frozenset(selector.device_ids)
        self._if_names = frozenset(selector.if_names)
        self._rdma_devices = frozenset(selector.rdma_devices)

    def matches(self, device: RdmaDevice) -> bool:
        """Report whether a device is selected."""
        return (
            (not self._device_ids or device.vendor.partition(":")[2] in self._device_ids)
            and (not self._if_names or device.netdev in self._if_names)
            and (not self._rdma_devices or device.name in self._rdma_devices)
            and selects(self._functions, device)
        )
