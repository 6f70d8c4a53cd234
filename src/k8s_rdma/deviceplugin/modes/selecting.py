"""Which RDMA devices selectors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.pools import Function, Functions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.devices import DevicesSeen, RdmaDevice
    from k8s_rdma.core.pools import FunctionSelector, Pool
    from k8s_rdma.device_config import SharedSelector


def selects(selector: FunctionSelector, device: RdmaDevice) -> bool:
    """Whether a device is meant; one that has no PCI function is neither a VF's nor a PF's."""
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


def of_pool(resource: str, pools: Sequence[Pool], seen: DevicesSeen) -> list[RdmaDevice]:
    """The devices of an exclusive resource: those that pods have of it, and those that no pool before has."""
    given = seen.given or {}

    def pool_of(device: RdmaDevice) -> str:
        held = given.get(device.name)
        if held is not None and held.pool:
            return held.pool
        return next((each.resource for each in pools if selects(each.selector, device)), "")

    return [each for each in seen.devices.values() if pool_of(each) == resource]


class SharedSelection:
    """A shared resource's selector: functions, and by what may change."""

    def __init__(self, selector: SharedSelector) -> None:
        """As configured."""
        self._functions = selector.to_core()
        self._device_ids = frozenset(selector.device_ids)
        self._if_names = frozenset(selector.if_names)
        self._rdma_devices = frozenset(selector.rdma_devices)

    def matches(self, device: RdmaDevice) -> bool:
        """Whether a device is selected."""
        return (
            (not self._device_ids or device.vendor.partition(":")[2] in self._device_ids)
            and (not self._if_names or device.netdev in self._if_names)
            and (not self._rdma_devices or device.name in self._rdma_devices)
            and selects(self._functions, device)
        )
