"""Modes whose devices count nothing real: `mount`, `shared`, and slots.

`mount` gives `/dev/infiniband`, or what is in it; `shared` gives all matching devices to every holder.
Slots are both the resource of mode `exact` and the shares of exclusive resources; the agent writes their
CDI specifications when it knows what the pod is given. A slot that an attachment still holds is given to no
other: a pod whose ADD passes by the agent would get the devices of the slot's former holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.config.devices import MOST_PER_CONTAINER
from k8s_rdma.core.devices.device_plugin_api import AllocateResponse, DeviceSpec, OfferedDevice
from k8s_rdma.core.devices.pod_devices import shared_device, slot_device, slot_ids
from k8s_rdma.core.devices.rdma_devices import (
    INFINIBAND,
    RDMA_CM,
    NodeKind,
    device_annotations,
    device_variables,
)
from k8s_rdma.deviceplugin.mode import (
    SharedSelection,
    at_home,
    check_choice,
    has_verbs,
    named_device,
    rdma_cm,
    refuse,
    specs,
)
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cdi import SHARED_CLASS, SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from k8s_rdma.config.devices import MountResource, SharedResource
    from k8s_rdma.core.devices.device_plugin_api import Choice
    from k8s_rdma.core.devices.rdma_devices import DeviceInventory, RdmaDevice

UNKNOWN_SLOTS = "the agent has not told yet which slots pods hold"
_KINDS = frozenset({NodeKind.UVERBS, NodeKind.UMAD})
_SHOWN = 3


class SlotsMode:
    """A number of slots, healthy once the agent has told which of them are held."""

    prefers = True

    def __init__(self, resource: str, count: int, most_per_container: int = MOST_PER_CONTAINER) -> None:
        """Slots of one resource."""
        self.resource = resource
        self._slots = CountedDevices(resource, count, most_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """All of them."""
        return self._slots.offer(_unhealthy(inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Their CDI devices, which nobody has to know when this is answered."""
        self._slots.check_ids(ids, _unhealthy(inventory))
        for slot in sorted(self._used_slots(inventory).intersection(ids)):
            refuse(self.resource, slot, "a pod that had it before is not taken down yet")
        return AllocateResponse(
            annotations=device_annotations(self.resource, ids),
            cdi_devices=tuple(
                qualified_name(slot_device(self.resource, slot), device_class=SLOT_CLASS) for slot in ids
            ),
        )

    def prefer(self, choice: Choice, inventory: DeviceInventory) -> tuple[str, ...]:
        """Those that nobody holds any more, of them the lowest numbers."""
        return self._slots.prefer(choice, later=self._used_slots(inventory))

    def _used_slots(self, inventory: DeviceInventory) -> frozenset[str]:
        prefix = slot_device(self.resource, "")
        return frozenset(slot.removeprefix(prefix) for slot in inventory.held_slots or ())


def _unhealthy(inventory: DeviceInventory) -> str:
    return UNKNOWN_SLOTS if inventory.held_slots is None else ""


class SharedMode:
    """Healthy while one of the matching devices is, and the agent has written their CDI specification.

    by_cdi: whether it does.
    """

    prefers = False

    def __init__(self, config: SharedResource) -> None:
        """As configured."""
        self.resource = config.name
        self.by_cdi = config.cdi
        self._hints = config.hints
        self._selection = SharedSelection(config.select)
        self._shares = CountedDevices(config.name, config.count, config.most_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """All shares."""
        return self._shares.offer(self._unhealthy(self._matching(inventory), inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """All matching devices, whatever their ports' states: these change while a container runs."""
        matching = self._matching(inventory)
        self._shares.check_ids(ids, self._unhealthy(matching, inventory))
        nodes = (*specs(matching, kinds=_KINDS, permissions="rwm"), *rdma_cm(inventory, "rwm"))
        device = qualified_name(shared_device(self.resource), device_class=SHARED_CLASS)
        return AllocateResponse(
            envs=device_variables(
                self.resource, [named_device(found) for found in matching], hints=self._hints
            ),
            annotations=device_annotations(self.resource, [found.name for found in matching]),
            devices=() if self.by_cdi else nodes,
            cdi_devices=(device,) if self.by_cdi else (),
        )

    def prefer(self, choice: Choice, _inventory: DeviceInventory) -> tuple[str, ...]:
        """Those of the lowest numbers."""
        return self._shares.prefer(choice)

    def to_publish(self, inventory: DeviceInventory) -> tuple[str, ...]:
        """The RDMA devices that its CDI specification is to be of."""
        return tuple(device.name for device in self._matching(inventory))

    def _matching(self, inventory: DeviceInventory) -> list[RdmaDevice]:
        return [device for device in at_home(inventory) if self._selection.matches(device)]

    def _unhealthy(self, matching: Sequence[RdmaDevice], inventory: DeviceInventory) -> str:
        if not matching:
            return "no RDMA device of the host matches its selector"
        faults = [_fault(device) for device in matching]
        if all(faults):
            suffix = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            return "; ".join(faults[:_SHOWN]) + suffix
        if self.by_cdi and shared_device(self.resource) not in inventory.published:
            return "the agent has not written its CDI specification"
        return ""


def _fault(device: RdmaDevice) -> str:
    faults = device.faults or (() if has_verbs(device) else ("it has no uverbs device",))
    return f"{device.name}: {'; '.join(faults)}" if faults else ""


class MountMode:
    """Healthy as long as there is anything to give."""

    prefers = False

    def __init__(self, config: MountResource) -> None:
        """As configured."""
        self.resource = config.name
        self._scope = config.scope
        self._hints = config.hints
        self._devices = CountedDevices(config.name, config.count, config.most_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """All of them."""
        return self._devices.offer(self._unhealthy(inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """The directory with permissions `rwm`, or single character devices with `rw`."""
        self._devices.check_ids(ids, self._unhealthy(inventory))
        return AllocateResponse(envs=self._variables(inventory), devices=self._specs(inventory))

    def prefer(self, choice: Choice, _inventory: DeviceInventory) -> tuple[str, ...]:
        """Those of the lowest numbers."""
        return self._devices.prefer(choice)

    def _unhealthy(self, inventory: DeviceInventory) -> str:
        match self._scope:
            case "directory":
                return "" if inventory.directory else f"there is no {INFINIBAND}"
            case "rdma-cm-only":
                return "" if inventory.rdma_cm else f"there is no {RDMA_CM}"
        return (
            ""
            if any(device.nodes for device in at_home(inventory))
            else "no RDMA device has a character device"
        )

    def _specs(self, inventory: DeviceInventory) -> tuple[DeviceSpec, ...]:
        match self._scope:
            case "directory":
                return (DeviceSpec(path=INFINIBAND, permissions="rwm"),)
            case "rdma-cm-only":
                return rdma_cm(inventory)
        return (*specs(at_home(inventory)), *rdma_cm(inventory))

    def _variables(self, inventory: DeviceInventory) -> Mapping[str, str]:
        """Of single devices, and of the directory where hints are asked for: it has them all."""
        if self._scope == "rdma-cm-only" or (self._scope == "directory" and not self._hints):
            return {}
        return device_variables(
            self.resource,
            [named_device(device) for device in at_home(inventory) if device.nodes],
            hints=self._hints,
        )


class CountedDevices:
    """A number of them, all as healthy as what is behind them; lists are made once and given out again."""

    def __init__(self, resource: str, count: int, most_per_container: int) -> None:
        """Those of one resource, of which a container gets no more than it may: one does for it."""
        self.resource = resource
        self._most_per_container = most_per_container
        self._indexes = {slot: index for index, slot in enumerate(slot_ids(count))}
        self._healthy = tuple(OfferedDevice(id=slot) for slot in self._indexes)
        self._unhealthy: tuple[OfferedDevice, ...] = ()
        self._why = ""

    def offer(self, why: str) -> tuple[OfferedDevice, ...]:
        """All of them. why: they are unhealthy; empty when they are not."""
        if not why:
            return self._healthy
        if why != self._why:
            self._unhealthy = tuple(OfferedDevice(id=slot, unhealthy=why) for slot in self._indexes)
            self._why = why
        return self._unhealthy

    def check_ids(self, ids: Sequence[str], why: str) -> None:
        """K8sRdmaError (`UNKNOWN_DEVICE`) names one that is not there, or why none of them is given.

        `TOO_MANY_DEVICES` for more than a container may have.
        """
        if len(ids) > self._most_per_container:
            msg = (
                f"{self.resource}: {len(ids)} for one container, {self._most_per_container} at most "
                "(mostPerContainer of the device plugin's configuration); one is all that a container needs"
            )
            raise K8sRdmaError(msg, reason=Reason.TOO_MANY_DEVICES)
        for device in ids:
            if device not in self._indexes:
                refuse(self.resource, device, f"its devices are slot-0 to slot-{len(self._indexes) - 1}")
            if why:
                refuse(self.resource, device, why)

    def prefer(self, choice: Choice, later: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
        """Those of the lowest numbers. later: those to be taken only when no others are left."""
        check_choice(self.resource, choice)
        last = len(self._indexes)
        required = set(choice.must_include)
        optional = set(choice.available) - required
        order = sorted(
            optional, key=lambda device: (device in later, self._indexes.get(device, last), device)
        )
        chosen = required.union(order[: choice.size - len(required)])
        return tuple(sorted(chosen, key=lambda device: (self._indexes.get(device, last), device)))
