"""Modes of resources: `exclusive`, `shared`, `mount`, and the slots of mode `exact`.

`exclusive` gives each RDMA device to one container. Devices of the others count no real devices: `mount`
gives `/dev/infiniband`, or the devices in it; `shared` gives all matching devices to every holder. Slots
are both the resource of mode `exact` and the shares of exclusive resources; the agent writes their CDI
specifications when it knows the pod's devices. A slot that an attachment still holds is given to no other
pod: one whose ADD bypasses the agent would get the devices of the slot's former holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from k8s_rdma.config.devices import (
    MAX_PER_CONTAINER,
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    MountResource,
    Resource,
    SharedResource,
    SharedSelector,
)
from k8s_rdma.core.devices.container_devices import NamedDevice, device_annotations, device_variables
from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    Choice,
    DeviceSpec,
    OfferedDevice,
    shared_device,
    shared_resource,
    slot_device,
    slot_ids,
)
from k8s_rdma.core.devices.pools import Function, FunctionKind, FunctionSelector, Pool
from k8s_rdma.core.devices.rdma_devices import (
    INFINIBAND,
    RDMA_CM,
    AllocatedDevice,
    DeviceInventory,
    NetnsMode,
    NodeKind,
    RdmaDevice,
)
from k8s_rdma.deviceplugin.topology import DeviceCandidate, DevicePlace, preferred
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cdi import SHARED_CLASS, SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet


EVERY_KIND = frozenset(NodeKind)

_MOST_REMEMBERED = 100_000
"""Functions whose resource is cached; there are fewer, but they may come and go."""

UNKNOWN_SLOTS = "the agent has not reported yet which slots pods hold"
_KINDS = frozenset({NodeKind.UVERBS, NodeKind.UMAD})
_SHOWN = 3


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
    if not device.pf and selector.functions is not FunctionKind.ANY:
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

        Those that pods have of it, even if selectors no longer match.
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


def mode_of(resource: Resource, members: PoolMembers | None = None) -> Mode:
    """Build the mode of a resource. members: of all exclusive resources; by default of this one alone."""
    match resource:
        case ExactResource():
            return SlotsMode(resource.name, resource.count, resource.max_per_container)
        case MountResource():
            return MountMode(resource)
        case ExclusiveResource():
            return ExclusiveMode(resource, members or PoolMembers([resource.pool()]))
        case _:
            return SharedMode(resource)


def modes_of(config: DevicePluginConfig) -> tuple[Mode, ...]:
    """Build the modes of all resources for kubelet, in the order of `DevicePluginConfig.resource_names`."""
    members = PoolMembers(config.pools())
    shares = (
        SlotsMode(shared_resource(resource.name), resource.share)
        for resource in config.resources
        if isinstance(resource, ExclusiveResource) and resource.share
    )
    return (*(mode_of(resource, members) for resource in config.resources), *shares)


def to_publish(modes: Iterable[Mode], inventory: DeviceInventory) -> Mapping[str, tuple[str, ...]]:
    """Return the RDMA devices of each shared resource for which the agent writes a CDI specification."""
    return {
        mode.resource: mode.to_publish(inventory)
        for mode in modes
        if isinstance(mode, SharedMode) and mode.by_cdi
    }


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
            DeviceCandidate(id=name, place=_place(inventory.devices.get(name)), last=name in allocated)
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


def _place(device: RdmaDevice | None) -> DevicePlace:
    if device is None:
        return DevicePlace()
    return DevicePlace(pf=device.pf, numa_node=device.numa_node, pcie_path=device.pcie_path)


class SlotsMode:
    """Slots, healthy once the agent has reported the slots that pods hold."""

    prefers = True

    def __init__(self, resource: str, count: int, max_per_container: int = MAX_PER_CONTAINER) -> None:
        """Create the slots of one resource."""
        self.resource = resource
        self._slots = CountedDevices(resource, count, max_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """List all slots."""
        return self._slots.offer(_unhealthy(inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Return the CDI devices of the slots; their content need not be known yet."""
        self._slots.check_ids(ids, _unhealthy(inventory))
        for slot in sorted(self._used_slots(inventory).intersection(ids)):
            refuse(self.resource, slot, "the pod that had it before is still being taken down")
        return AllocateResponse(
            annotations=device_annotations(self.resource, ids),
            cdi_devices=tuple(
                qualified_name(slot_device(self.resource, slot), device_class=SLOT_CLASS) for slot in ids
            ),
        )

    def prefer(self, choice: Choice, inventory: DeviceInventory) -> tuple[str, ...]:
        """Choose free slots, lowest numbers first."""
        return self._slots.prefer(choice, later=self._used_slots(inventory))

    def _used_slots(self, inventory: DeviceInventory) -> frozenset[str]:
        prefix = slot_device(self.resource, "")
        return frozenset(slot.removeprefix(prefix) for slot in inventory.held_slots or ())


def _unhealthy(inventory: DeviceInventory) -> str:
    return UNKNOWN_SLOTS if inventory.held_slots is None else ""


class SharedMode:
    """Shares, healthy while a matching device is and the agent has written the CDI specification.

    by_cdi: whether the agent writes one.
    """

    prefers = False

    def __init__(self, config: SharedResource) -> None:
        """Read the configured resource."""
        self.resource = config.name
        self.by_cdi = config.cdi
        self._hints = config.hints
        self._selection = SharedSelection(config.select)
        self._shares = CountedDevices(config.name, config.count, config.max_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """List all shares."""
        return self._shares.offer(self._unhealthy(self._matching(inventory), inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Return all matching devices in any state of ports, which may change while a container runs."""
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
        """Choose the lowest numbers."""
        return self._shares.prefer(choice)

    def to_publish(self, inventory: DeviceInventory) -> tuple[str, ...]:
        """List the RDMA devices of the resource's CDI specification."""
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
    """Mounts of `/dev/infiniband`, healthy while it holds anything."""

    prefers = False

    def __init__(self, config: MountResource) -> None:
        """Read the configured resource."""
        self.resource = config.name
        self._scope = config.scope
        self._hints = config.hints
        self._devices = CountedDevices(config.name, config.count, config.max_per_container)

    def offer(self, inventory: DeviceInventory) -> tuple[OfferedDevice, ...]:
        """List all devices."""
        return self._devices.offer(self._unhealthy(inventory))

    def allocate(self, ids: Sequence[str], inventory: DeviceInventory) -> AllocateResponse:
        """Return the directory with permissions `rwm`, or single character devices with `rw`."""
        self._devices.check_ids(ids, self._unhealthy(inventory))
        return AllocateResponse(envs=self._variables(inventory), devices=self._specs(inventory))

    def prefer(self, choice: Choice, _inventory: DeviceInventory) -> tuple[str, ...]:
        """Choose the lowest numbers."""
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
        """Return the variables of single devices, and with hints those of the directory: it holds all."""
        if self._scope == "rdma-cm-only" or (self._scope == "directory" and not self._hints):
            return {}
        return device_variables(
            self.resource,
            [named_device(device) for device in at_home(inventory) if device.nodes],
            hints=self._hints,
        )


class CountedDevices:
    """Equal devices with the same health; their lists are built once."""

    def __init__(self, resource: str, count: int, max_per_container: int) -> None:
        """Create `count` devices; a container needs only one."""
        self.resource = resource
        self._max_per_container = max_per_container
        self._indexes = {slot: index for index, slot in enumerate(slot_ids(count))}
        self._healthy = tuple(OfferedDevice(id=slot) for slot in self._indexes)
        self._unhealthy: tuple[OfferedDevice, ...] = ()
        self._why = ""

    def offer(self, why: str) -> tuple[OfferedDevice, ...]:
        """List all devices. why: reason why they are unhealthy; empty when they are healthy."""
        if not why:
            return self._healthy
        if why != self._why:
            self._unhealthy = tuple(OfferedDevice(id=slot, unhealthy=why) for slot in self._indexes)
            self._why = why
        return self._unhealthy

    def check_ids(self, ids: Sequence[str], why: str) -> None:
        """Check that a container may have these.

        K8sRdmaError (`UNKNOWN_DEVICE`) names the device or the reason.

        `TOO_MANY_DEVICES` for more than a container may have.
        """
        if len(ids) > self._max_per_container:
            msg = (
                f"{self.resource}: {len(ids)} for one container, {self._max_per_container} at most "
                "(maxPerContainer of the device plugin's configuration); one is all that a container needs"
            )
            raise K8sRdmaError(msg, reason=Reason.TOO_MANY_DEVICES)
        for device in ids:
            if device not in self._indexes:
                refuse(self.resource, device, f"its devices are slot-0 to slot-{len(self._indexes) - 1}")
            if why:
                refuse(self.resource, device, why)

    def prefer(self, choice: Choice, later: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
        """Choose the lowest numbers. later: devices that are chosen only when no other is left."""
        check_choice(self.resource, choice)
        last = len(self._indexes)
        required = set(choice.must_include)
        optional = set(choice.available) - required
        order = sorted(
            optional, key=lambda device: (device in later, self._indexes.get(device, last), device)
        )
        chosen = required.union(order[: choice.size - len(required)])
        return tuple(sorted(chosen, key=lambda device: (self._indexes.get(device, last), device)))
