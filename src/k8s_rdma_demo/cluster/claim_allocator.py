"""kube-scheduler's allocator of devices for ResourceClaims, as far as this project's devices need it.

Requests are served in order, each by the first device that has enough left, and an earlier choice is revised
if a later request finds no device. Pools are tried by driver and name, slices by name, devices as their slice
lists them. A claim with a request that is not simulated is refused by name: CEL other than the driver's,
alternatives, all devices, tolerations, admin access.

Source (Kubernetes 1.36): `k8s.io/dynamic-resource-allocation/structured/internal/incubating`. Allocations
of the real one are recorded in `tests/recordings/dra/allocations`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.objects import JsonObject, name_of, spec_of
from k8s_rdma_demo.cluster.quantities import canonical_quantity

DeviceId: TypeAlias = tuple[str, str, str]
"""Driver, pool and name of a device."""

MAX_TRIES = 10_000
"""The number of devices tried for a pod on a node, for about a second; the real one tries for 10 s."""

_OF_DRIVER = re.compile(r"""device\.driver == (?P<quote>["'])(?P<driver>[^"']*)(?P=quote)""")
_REQUEST_FIELDS = frozenset({"deviceClassName", "allocationMode", "count", "capacity", "selectors"})
_CONSTRAINTS = ({"matchAttribute"}, {"distinctAttribute"})
_EXACT = "ExactCount"
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_BINARY_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class AllocationError(K8sRdmaError):
    """A claim cannot be allocated on any node: its request cannot be met, or is not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """ResourceSlices, DeviceClasses by name, and the `status.allocation` of all claims that have one."""

    slices: Sequence[JsonObject]
    classes: Mapping[str, JsonObject]
    allocations: Sequence[JsonObject]


def allocate(
    claims: Sequence[JsonObject], inventory: Inventory, node: str, new_share: Callable[[], str]
) -> list[JsonObject] | None:
    """Allocate a pod's claims on a node: return the `status.allocation` of each, if all fit.

    new_share: makes a shareID. AllocationError.
    """
    slots = [slot for index, claim in enumerate(claims) for slot in _slots(index, claim, inventory.classes)]
    search = _Search(
        devices=_devices(inventory.slices, node),
        slots=slots,
        constraints=[list(_constraints(claim)) for claim in claims],
        used=_usage(inventory.allocations),
    )
    if not search.succeeds():
        return None
    results: list[list[JsonObject]] = [[] for _ in claims]
    for slot, device in zip(slots, search.chosen, strict=True):
        results[slot.claim].append(_result(slot, device, new_share))
    return [
        _allocation(claim, found, inventory.classes, node)
        for claim, found in zip(claims, results, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    id: DeviceId
    order: int
    definition: JsonObject

    @property
    def is_shared(self) -> bool:
        return bool(self.definition.get("allowMultipleAllocations"))

    @property
    def capacity(self) -> dict[str, JsonObject]:
        found: dict[str, JsonObject] = self.definition.get("capacity") or {}
        return found

    def attribute(self, name: str) -> JsonObject | None:
        """An attribute by its qualified name; the driver's own may be listed without its domain."""
        attributes: dict[str, JsonObject] = self.definition.get("attributes") or {}
        domain, _, own = name.partition("/")
        return attributes.get(name) or (attributes.get(own) if domain == self.id[0] else None)


def _devices(slices: Iterable[JsonObject], node: str) -> list[_Device]:
    """List the node's devices of complete and valid pools, in the order in which they are tried."""
    specs = [
        {**spec_of(slice_), "slice": name_of(slice_)}
        for slice_ in slices
        if spec_of(slice_).get("nodeName") == node
    ]
    pools = groupby(sorted(specs, key=lambda spec: (*_pool_of(spec), spec["slice"])), key=_pool_of)
    found = []
    for pool, members in pools:
        definitions = list(_definitions(list(members)))
        if max(Counter(definition["name"] for definition in definitions).values(), default=1) == 1:
            found += [((*pool, definition["name"]), definition) for definition in definitions]
    return [
        _Device(id=device_id, order=order, definition=definition)
        for order, (device_id, definition) in enumerate(found)
    ]


def _pool_of(spec: JsonObject) -> tuple[str, str]:
    return spec["driver"], spec["pool"]["name"]


def _definitions(specs: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The devices of a pool's latest generation; empty while slices of it are missing."""
    latest = max(spec["pool"]["generation"] for spec in specs)
    current = [spec for spec in specs if spec["pool"]["generation"] == latest]
    if len(current) == current[0]["pool"]["resourceSliceCount"]:
        for spec in current:
            yield from spec.get("devices") or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A device to be found. claim: its index. drivers: names that its driver must have, all of them."""

    claim: int
    request: str
    drivers: frozenset[str]
    capacity: Mapping[str, str]


def _slots(index: int, claim: JsonObject, classes: Mapping[str, JsonObject]) -> Iterator[_Slot]:
    for request in _requests(claim):
        subject = f"claim {name_of(claim)}: request {request['name']}"
        exactly = request.get("exactly") or {}
        unsupported = [key for key, value in exactly.items() if value and key not in _REQUEST_FIELDS]
        if request.get("firstAvailable"):
            unsupported.append("firstAvailable")
        if exactly.get("allocationMode", _EXACT) != _EXACT:
            unsupported.append(f"allocationMode {exactly['allocationMode']}")
        if unsupported:
            raise AllocationError(f"{subject}: {unsupported[0]} is not simulated")
        class_name = exactly["deviceClassName"]
        if class_name not in classes:
            raise AllocationError(f"{subject}: device class {class_name} does not exist")
        selectors = [
            *(spec_of(classes[class_name]).get("selectors") or ()),
            *(exactly.get("selectors") or ()),
        ]
        slot = _Slot(
            claim=index,
            request=request["name"],
            drivers=frozenset(_driver(selector, subject) for selector in selectors),
            capacity=(exactly.get("capacity") or {}).get("requests") or {},
        )
        yield from [slot] * exactly.get("count", 1)


def _driver(selector: JsonObject, subject: str) -> str:
    expression = str((selector.get("cel") or {}).get("expression", ""))
    match = _OF_DRIVER.fullmatch(expression.strip())
    if match is None:
        raise AllocationError(
            f'{subject}: of CEL only device.driver == "NAME" is simulated, not {expression}'
        )
    return match["driver"]


def _requests(claim: JsonObject) -> list[JsonObject]:
    return (spec_of(claim).get("devices") or {}).get("requests") or []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constraint:
    """An attribute that is equal, or different, in the devices of requests; without names of all."""

    attribute: str
    equal: bool
    requests: frozenset[str]

    def holds(self, chosen: Sequence[tuple[str, _Device]]) -> bool:
        """Report whether a claim's devices, each with its request, may be so."""
        found = [
            (request, device.attribute(self.attribute))
            for request, device in chosen
            if not self.requests or request in self.requests
        ]
        if any(value is None for _, value in found):
            return False
        if any("ints" in (value or {}) for _, value in found):
            raise AllocationError(f"{self.attribute}: lists of values are not simulated")
        if self.equal:
            return all(value == found[0][1] for _, value in found)
        earlier = dict(found[:-1])  # of several devices of a request only the last one counts
        return not found or found[-1][1] not in earlier.values()


def _constraints(claim: JsonObject) -> Iterator[_Constraint]:
    for entry in (spec_of(claim).get("devices") or {}).get("constraints") or ():
        kinds = entry.keys() - {"requests"}
        if kinds not in _CONSTRAINTS:
            raise AllocationError(f"claim {name_of(claim)}: constraint {', '.join(kinds)} is not simulated")
        [kind] = kinds
        yield _Constraint(
            attribute=entry[kind],
            equal=kind == "matchAttribute",
            requests=frozenset(entry.get("requests") or ()),
        )


@dataclass(slots=True)
class _Usage:
    """Consumption: the number of results by device, and an amount by device and capacity."""

    results: Counter[DeviceId] = field(default_factory=Counter)
    amounts: dict[tuple[DeviceId, str], Fraction] = field(default_factory=dict)

    def add(self, device: DeviceId, consumed: Mapping[str, str], *, sign: int = 1) -> None:
        """Count a result; with sign -1 no longer."""
        self.results[device] += sign
        for name, text in consumed.items():
            self.amounts[device, name] = self.amount(device, name) + sign * quantity(text)

    def amount(self, device: DeviceId, capacity: str) -> Fraction:
        """The amount of a device's capacity."""
        return self.amounts.get((device, capacity), Fraction(0))


def _usage(allocations: Iterable[JsonObject]) -> _Usage:
    used = _Usage()
    for allocation in allocations:
        for result in allocation["devices"].get("results") or ():
            device = result["driver"], result["pool"], result["device"]
            used.add(device, result.get("consumedCapacity") or {})
    return used


@dataclass(slots=True, kw_only=True)
class _Search:
    """A search, depth first, over all combinations. chosen: a device for each of the first slots."""

    devices: Sequence[_Device]
    slots: Sequence[_Slot]
    constraints: Sequence[Sequence[_Constraint]]
    used: _Usage
    chosen: list[_Device] = field(default_factory=list)
    tries: int = 0

    def succeeds(self) -> bool:
        """Choose a device for each slot without one; if impossible, choose no device and return False."""
        position = len(self.chosen)
        if position == len(self.slots):
            return True
        slot = self.slots[position]
        # devices of one request are different ones, in their order
        is_same = position > 0 and self.slots[position - 1] is slot
        for device in self.devices[self.chosen[-1].order + 1 if is_same else 0 :]:
            self.tries += 1
            if self.tries > MAX_TRIES:
                raise AllocationError("timed out trying to allocate devices")
            consumed = consumed_capacity(slot.capacity, device.capacity)
            if consumed is None or not self._fits(slot, device, consumed):
                continue
            self.chosen.append(device)
            self.used.add(device.id, consumed)
            if self.succeeds():
                return True
            self.used.add(device.id, consumed, sign=-1)
            self.chosen.pop()
        return False

    def _fits(self, slot: _Slot, device: _Device, consumed: Mapping[str, str]) -> bool:
        if not slot.drivers <= {device.id[0]}:
            return False
        if any(taint["effect"] in _KEEPS_AWAY for taint in device.definition.get("taints") or ()):
            return False
        if self.used.results[device.id] and not device.is_shared:
            return False
        has_room = all(
            self.used.amount(device.id, name) + quantity(consumed[name]) <= quantity(entry["value"])
            for name, entry in device.capacity.items()
        )
        return has_room and self._meets_constraints(slot, device)

    def _meets_constraints(self, slot: _Slot, device: _Device) -> bool:
        pairs = [*zip(self.slots, self.chosen, strict=False), (slot, device)]
        chosen = [(entry.request, found) for entry, found in pairs if entry.claim == slot.claim]
        return all(constraint.holds(chosen) for constraint in self.constraints[slot.claim])


def consumed_capacity(
    requested: Mapping[str, str], capacity: Mapping[str, JsonObject]
) -> dict[str, str] | None:
    """Calculate the capacity that a request consumes of a shared device, if no policy forbids it.

    By `requestPolicy`: the default without a request, else the next valid value or step. Quantities are as
    the API server stores those of kube-scheduler: rounded ones in binary units if that is exact.
    """
    if not requested.keys() <= capacity.keys():
        return None
    consumed = {name: _amount(requested.get(name), entry) for name, entry in capacity.items()}
    allowed = (_is_allowed(quantity(consumed[name]), entry) for name, entry in capacity.items())
    return consumed if all(allowed) else None


def _amount(requested: str | None, capacity: JsonObject) -> str:
    policy = capacity.get("requestPolicy") or {}
    if requested is None:
        return str(policy.get("default", capacity["value"]))
    amount = quantity(requested)
    if allowed := policy.get("validRange"):
        least = quantity(allowed["min"])
        if amount < least:
            return str(allowed["min"])
        if step := allowed.get("step"):
            steps = -(-(-(-amount // 1) - least) // quantity(step))
            return _rounded(int(least + steps * quantity(step)))
    greater = [value for value in policy.get("validValues") or () if amount <= quantity(value)]
    return str(greater[0]) if greater else canonical_quantity(requested)


def _is_allowed(amount: Fraction, capacity: JsonObject) -> bool:
    policy = capacity.get("requestPolicy") or {}
    if "default" in policy and amount == quantity(policy["default"]):
        return True
    if allowed := policy.get("validRange"):
        return amount <= quantity(allowed.get("max", str(amount)))
    values = [quantity(value) for value in policy.get("validValues") or ()]
    return not values or amount in values


def _rounded(amount: int) -> str:
    """A quantity that Go makes of an integer as `BinarySI`, and the API server reads and writes again."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_BINARY_UNITS) - 1:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY_UNITS[power]}" if power else canonical_quantity(str(amount))


def _result(slot: _Slot, device: _Device, new_share: Callable[[], str]) -> JsonObject:
    driver, pool, name = device.id
    result: JsonObject = {"request": slot.request, "driver": driver, "pool": pool, "device": name}
    if not device.is_shared:
        return result
    consumed = consumed_capacity(slot.capacity, device.capacity)
    return result | {"shareID": new_share()} | ({"consumedCapacity": consumed} if consumed else {})


def _allocation(
    claim: JsonObject, results: list[JsonObject], classes: Mapping[str, JsonObject], node: str
) -> JsonObject:
    devices: dict[str, Any] = {"results": results}
    if config := [*_class_config(claim, classes), *_claim_config(claim)]:
        devices["config"] = config
    field_ = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"devices": devices, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field_]}]}}


def _class_config(claim: JsonObject, classes: Mapping[str, JsonObject]) -> Iterator[JsonObject]:
    """Parameters of each class once, for all requests that name it."""
    names: dict[str, list[str]] = {}
    for request in _requests(claim):
        names.setdefault(request["exactly"]["deviceClassName"], []).append(request["name"])
    for class_name, requests in names.items():
        for config in spec_of(classes[class_name]).get("config") or ():
            yield {"source": "FromClass", "requests": requests, **config}


def _claim_config(claim: JsonObject) -> Iterator[JsonObject]:
    """Parameters in the claim, as often as they name requests; the real one repeats them, too."""
    for config in (spec_of(claim).get("devices") or {}).get("config") or ():
        named = config.get("requests")
        times = sum(request["name"] in named for request in _requests(claim)) if named else 1
        yield from [{"source": "FromClaim", **config}] * times
