"""Placement: the PF for each interface of a request, or the reason for a refusal; and a node's score."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from k8s_rdma.core.devices import gpu_demand, near_gpus
from k8s_rdma.core.devices.placement import (
    device_mismatch,
    devices_on,
    explain_device_refusal,
    possible,
    too_few,
)
from k8s_rdma.core.mention import Mention, shown
from k8s_rdma.core.offers import WHOLE, Worth, worth_to
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions, needs_of
from k8s_rdma.core.packing import NoPacking, Work
from k8s_rdma.core.pf_needs import meets
from k8s_rdma.core.pf_use import EVERY_DEVICE, NOTHING_USED, DeviceUse, Used, total
from k8s_rdma.core.placement_problem import PlacementProblem, choose
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.refusal import Detail, RefusalMessage, explain_refusal
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request, satisfies_policy
from k8s_rdma.core.round_robin import keeps_minimums, may_fall_short
from k8s_rdma.core.types import Enforce, NodeName, PciAddress, Strategy
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from k8s_rdma.core.inventory import Gpu, Inventory, Pf


T = TypeVar("T")

_PLACED_WEIGHT = 4
"""The weight of the interfaces placed, in PFs of the node: docs/adr/0026-binpack-packs-bandwidth.md."""

DEFAULT_BUDGET = 11_000
"""Work units for one decision: 7 ms on a 2.6 GHz EPYC. See `core.packing.Work` and bench/test_place.py."""

EVERY_NAMESPACE = "*"
"""The name of the limit that each namespace without a limit of its own has."""


def score(
    placement: Placement,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    strategy: Strategy = Strategy.BINPACK,
) -> int:
    """Return the node's score for the placement, in thousandths.

    Every PF has a worth once the placement is made. For BINPACK it is the share of its bandwidth that is
    taken, or its fullness if the placement reserves no bandwidth (the larger share of VFs and of bandwidth).
    For SPREAD it is the distance from full, for BALANCED the closeness of the two shares.

    The score is the mean over the node's PFs, in which the mean over the interfaces placed (each counts the
    PF it is on) weighs as much as four more PFs. So among equal nodes BINPACK prefers the fuller one, and on
    it the placement that finishes off PFs rather than breaking into empty ones.

    A placement without interfaces scores 0. For interfaces near GPUs, nearness makes two thirds of the score.
    """
    if not placement.interfaces:
        return 0
    numbers = Counter(interface.pf for interface in placement.interfaces)
    after = total(used, placement.usage(inventory))
    reserving = any(interface.min_tx_rate_mbps for interface in placement.interfaces)
    return score_after(numbers, inventory, after, worth_to(strategy, reserving=reserving), placement.nearness)


def score_after(
    numbers: Mapping[PciAddress, int],
    inventory: Inventory,
    after: Mapping[PciAddress, Used],
    worth: Worth,
    nearness: near_gpus.Nearness | None = None,
) -> int:
    """Return the score of a placement by the number of interfaces on each PF, and the PFs' use with them."""
    worths = pf_worths(inventory, after, worth)
    placed = sum([worths[pci] * number for pci, number in numbers.items()]) // sum(numbers.values())
    value = (_PLACED_WEIGHT * placed + sum(worths.values())) // (_PLACED_WEIGHT + len(worths))
    if nearness is None:
        return value
    near = nearness * WHOLE // near_gpus.Nearness.SWITCH
    return (value + 2 * near) // 3


def pf_worths(inventory: Inventory, used: Mapping[PciAddress, Used], worth: Worth) -> dict[PciAddress, int]:
    """Return the worth of each PF."""
    worths = {}
    for pf in inventory.pfs:
        usage = used.get(pf.pci, NOTHING_USED)
        worths[pf.pci] = worth(usage.vfs, pf.capacity_vfs, usage.mbps, pf.link_mbps or 0)
    return worths


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInterface:
    """An interface on a PF; rates in Mb/s, 0 as in `InterfaceRequest`, which describes the other fields.

    pool: the exclusive resource whose device it is. The interface then takes bandwidth of the PF, and no VF
        of those for pods that ask by annotation.
    entry: the index of the pod's interface, if it may come to any of several PFs and is placed on each
        (`core.devices.placement`); None if it is the one at its place.
    previous_min_tx_rate_mbps: the largest reservation of earlier generations that may be programmed; None in
        a pod's first placement.
    """

    pf: PciAddress
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    enforce: Enforce = Enforce.AUTO
    options: InterfaceOptions = NO_OPTIONS
    pool: str = ""
    entry: int | None = None
    previous_min_tx_rate_mbps: int | None = None

    def entry_at(self, position: int) -> int:
        """Return the entry of the pod's interface at that index of all that are placed."""
        return position if self.entry is None else self.entry

    def until_programmed(self) -> PlacedInterface:
        """Return the interface as it counts until its generation is programmed: the largest reservation."""
        previous = self.previous_min_tx_rate_mbps
        if previous is None:
            return self
        larger = max(self.min_tx_rate_mbps, previous)
        return replace(self, min_tx_rate_mbps=larger, previous_min_tx_rate_mbps=None)

    def as_request(self) -> InterfaceRequest:
        """Return the interface that it serves."""
        return InterfaceRequest(
            min_tx_rate_mbps=self.min_tx_rate_mbps,
            max_tx_rate_mbps=self.max_tx_rate_mbps,
            enforce=self.enforce,
            options=self.options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A possible assignment on a node; `interfaces` in the request's order, under its `policy`.

    For a pod that holds exclusive devices, `interfaces` are all that kubelet may choose
    (`core.devices.placement`). For a pod with interfaces near GPUs, they are all that kubelet's choice of
    GPUs may require (`core.devices.near_gpus`).

    nearness: of the interfaces to the GPUs, if it has just been found.
    generation: the number of changes of its rates while the pod runs.
    """

    node: NodeName
    interfaces: tuple[PlacedInterface, ...]
    policy: PfPolicy = PfPolicy.ANY
    generation: int = 0
    nearness: near_gpus.Nearness | None = field(default=None, compare=False)

    def usage(self, inventory: Inventory) -> dict[PciAddress, Used]:
        """Return the use of each PF by this placement."""
        return usage_of(self.interfaces, inventory)

    def request(self) -> Request:
        """Return the request that it serves: its rates, without PFs, each of the pod's interfaces once."""
        return Request(
            tuple(placed.as_request() for placed in by_entry(self.interfaces).values()), self.policy
        )

    def devices(self) -> dict[str, int]:
        """Return the number of devices of each exclusive resource among the interfaces."""
        return dict(Counter(placed.pool for placed in by_entry(self.interfaces).values() if placed.pool))


def by_entry(interfaces: Iterable[PlacedInterface]) -> dict[int, PlacedInterface]:
    """Map a pod's interfaces by entry, each once, however many PFs it may be on."""
    found: dict[int, PlacedInterface] = {}
    for index, placed in enumerate(interfaces):
        found.setdefault(placed.entry_at(index), placed)
    return dict(sorted(found.items()))


def unique_interfaces(interfaces: Sequence[PlacedInterface]) -> Sequence[PlacedInterface]:
    """Interfaces that a pod has or may come to have, the latter once, however many PFs that may be on."""
    if all(interface.entry is None for interface in interfaces):
        return interfaces
    unassigned = [candidate for candidate in interfaces if candidate.entry is None]
    return [
        *unassigned,
        *{interface.entry: interface for interface in interfaces if interface.entry is not None}.values(),
    ]


class Share(NamedTuple):
    """Reserved bandwidth, Mb/s, and VFs, as the limit of a namespace counts them."""

    mbps: int = 0
    vfs: int = 0

    @classmethod
    def of_request(cls, request: Request) -> Share:
        """Return the share that a pod of this request takes."""
        interfaces = request.interfaces
        return cls(sum(interface.min_tx_rate_mbps for interface in interfaces), len(interfaces))

    @classmethod
    def of_interfaces(cls, interfaces: Sequence[PlacedInterface]) -> Share:
        """Return the share that a pod takes with its interfaces on a node."""
        unique = unique_interfaces(interfaces)
        return cls(sum(interface.min_tx_rate_mbps for interface in unique), len(unique))

    def refusal(self, namespace: str, needs: Share, limit_mbps: int | None, limit_vfs: int | None) -> str:
        """Describe how a pod goes beyond the limit of a namespace that has this; empty if it does not."""
        kinds = (
            (self.mbps, limit_mbps, needs.mbps, "reserved Mb/s"),
            (self.vfs, limit_vfs, needs.vfs, "VFs"),
        )
        return " and ".join(
            f"namespace {namespace} holds {used} of {maximum} {resource}; needs {needed}"
            for used, maximum, needed, resource in kinds
            if maximum is not None and needed and used + needed > maximum
        )


def limit_of(limits: Mapping[str, T], namespace: str) -> T | None:
    """Return the limit of a namespace among those by name, if it has one."""
    return limits.get(namespace) or limits.get(EVERY_NAMESPACE)


@lru_cache(maxsize=4096)
def capped_to_request(
    interfaces: tuple[PlacedInterface, ...], rates_mbps: tuple[int, ...]
) -> tuple[PlacedInterface, ...]:
    """Return the interfaces, at most one for each rate, and each with at most its rate.

    rates_mbps: the largest first; the interface with the largest reservation is compared with it.
    """
    largest = sorted(range(len(interfaces)), key=lambda index: -interfaces[index].min_tx_rate_mbps)
    caps = dict(zip(largest, rates_mbps, strict=False))
    return tuple(
        interface
        if interface.min_tx_rate_mbps <= caps[position]
        else replace(interface, min_tx_rate_mbps=caps[position])
        for position, interface in enumerate(interfaces)
        if position in caps
    )


def usage_of(interfaces: Iterable[PlacedInterface], inventory: Inventory) -> dict[PciAddress, Used]:
    """Return the use of each PF by placed interfaces; for PFs not in the inventory, by reservations alone."""
    rates: dict[PciAddress, list[int]] = {}
    devices: dict[tuple[PciAddress, str], list[PlacedInterface]] = {}
    for interface in interfaces:
        if interface.pool:
            devices.setdefault((interface.pf, interface.pool), []).append(interface)
        else:
            rates.setdefault(interface.pf, []).append(interface.min_tx_rate_mbps)
    result = {pci: usage(inventory.pf(pci), pf_rates) for pci, pf_rates in rates.items()}
    for (pci, resource), device in devices.items():
        result[pci] = result.get(pci, NOTHING_USED) + _device_usage(inventory.pf(pci), resource, device)
    return result


def usage(pf: Pf | None, min_tx_rates_mbps: Sequence[int]) -> Used:
    """Return the use of a PF, which may be unknown, by VFs with these reservations."""
    count = len(min_tx_rates_mbps)
    if pf is None:
        return Used(count, sum(min_tx_rates_mbps))
    mbps = [reserved(pf, rate) for rate in min_tx_rates_mbps]
    mins = tuple(sorted(filter(None, mbps), reverse=True)) if pf.rates.weights else ()
    return Used(count, sum(mbps), mins)


def _device_usage(pf: Pf | None, resource: str, interfaces: Sequence[PlacedInterface]) -> Used:
    """Return the use of a PF by interfaces that are, or may become, devices of one resource."""
    held_vfs = sum(interface.entry is None for interface in interfaces)
    vfs = max(held_vfs, EVERY_DEVICE if pf is None else pf.pools.get(resource, EVERY_DEVICE))
    rates = (placed.min_tx_rate_mbps for placed in interfaces)
    mins = tuple(sorted((rate if pf is None else reserved(pf, rate) for rate in rates), reverse=True))[:vfs]
    weighed = tuple(filter(None, mins)) if pf is not None and pf.rates.weights else ()
    return Used(0, sum(mins), weighed, (DeviceUse(resource, vfs, mins, held_vfs),))


def fits(
    interfaces: Sequence[PlacedInterface],
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    policy: PfPolicy = PfPolicy.ANY,
    sibling_pfs: Collection[PciAddress] = (),
) -> bool:
    """Report whether a placement fits beside the present use, and its PFs take it.

    sibling_pfs: as in `place`.
    """
    for interface in interfaces:
        pf, request = inventory.pf(interface.pf), interface.as_request()
        if pf is None or not meets(pf, request.needs) or objection(pf, request):
            return False
    for pci, additional in usage_of(interfaces, inventory).items():
        pf = inventory.pf(pci)
        after = used.get(pci, NOTHING_USED) + additional
        if pf is None or (additional.vfs and after.vfs > pf.capacity_vfs):
            return False
        if additional.mbps and after.mbps > (pf.link_mbps or 0):
            return False
        if not keeps_minimums(pf, after):
            return False
    chosen = [interface.pf for interface in interfaces]
    return policy is PfPolicy.ANY or satisfies_policy(policy, chosen, inventory.pfs, sibling_pfs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The reason why there is no placement on a node.

    reason: `NO_RDMA` (no PF at all), `EXCEEDS_CAPACITY` (would not fit on the empty node), `NO_SUCH_PF`
        (would fit on the empty node if any PF were acceptable: selector, link type or MTU exclude it),
        `DRIVER_REFUSES` (would fit if the drivers supported it as well), `DEVICES_DIFFER` (its interfaces
        cannot be the exclusive devices that it holds), `INSUFFICIENT` (would fit if enough of the used
        capacity were free) or `UNDECIDED` (the search ended at its work budget, and it is not known whether
        the request fits).
    message: one line with the node's numbers and the names of its PFs, without its own name.
    numbers: the same without the names; nodes of equal numbers have the same text.
    cause: the same without names and numbers.
    mentions: the pods that the message names.
    """

    node: NodeName
    reason: Reason
    message: str
    numbers: str = ""
    cause: str = ""
    mentions: tuple[Mention, ...] = ()

    def message_for(self, namespace: str) -> str:
        """Return the message for people who see the pods of one namespace alone."""
        return shown(self.message, self.mentions, lambda mentioned: mentioned == namespace)

    def text(self, detail: Detail) -> str:
        """Return the line with as much of the node as is wanted."""
        return self.numbers if detail is Detail.NUMBERS else self.cause


def place(  # noqa: PLR0913 - all that a placement depends on
    request: Request,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    *,
    strategy: Strategy = Strategy.BINPACK,
    sibling_pfs: Collection[PciAddress] = (),
    budget: int = DEFAULT_BUDGET,
    anywhere: bool = False,
) -> Placement | Rejection:
    """Find a PF for every interface: a free VF each, and unreserved bandwidth for the reservations together.

    A PF takes an interface only if it meets its needs (`core.request`), and if its driver can program the
    rates that must be enforced by it (`core.programming`). A reservation costs as much as is programmed for
    it. If minimum rates are weights, every VF in use must still get its reservation (`core.programming`). The
    PFs together satisfy the request's policy (`core.request`).

    Pure and total: equal arguments give equal answers, ties go by PCI address. The result is a `Placement` if
    and only if one exists, unless finding out takes more than `budget` work units: then `UNDECIDED`.
    `EXCEEDS_CAPACITY`, `NO_SUCH_PF` and `DRIVER_REFUSES` are stated if they are proved within the rest of the
    budget after the first answer.

    used: more than a PF has counts as all of it; PFs that the inventory lacks do not matter. ValueError if it
        lacks the `mins` of a PF whose rates are weights.
    strategy: the preference among acceptable PFs; whether there is a placement does not depend on it.
    sibling_pfs: the PFs that other interfaces of the pod are on already, if this is a part of its request.
    anywhere: whether interfaces that are to be near GPUs may be on any PF.
    """
    devices = devices_on(request, inventory)
    if devices:
        return _place_devices(request, inventory, used, devices)
    if request.shape.near_gpus and not anywhere:
        return _place_near_gpus(request, inventory, used, strategy, sibling_pfs, budget)
    kind_at = request.shape.kind_at
    order = sorted(range(len(kind_at)), key=kind_at.__getitem__)
    kind_indexes = [kind_at[index] for index in order]
    task = PlacementProblem(
        request.shape.kinds, kind_indexes, inventory, request.policy, sibling_pfs, strategy
    )
    work = Work(budget)
    chosen = choose(task, used, work)
    if isinstance(chosen, NoPacking):
        return _rejection(inventory, *explain_refusal(task, used, chosen, work))
    placed: list[PlacedInterface | None] = [None] * len(order)
    for index, pf in zip(order, chosen, strict=True):
        placed[index] = _placed(request.interfaces[index], inventory.pfs[pf])
    interfaces = tuple(interface for interface in placed if interface)
    return Placement(node=inventory.node, interfaces=interfaces, policy=request.policy)


def _place_near_gpus(  # noqa: PLR0913, PLR0917 - as `place`
    request: Request,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    strategy: Strategy,
    sibling_pfs: Collection[PciAddress],
    budget: int,
) -> Placement | Rejection:
    """Place interfaces near all GPUs that kubelet may choose (`core.devices.near_gpus`), then the rest."""
    gpus = gpu_demand.candidates(request, inventory)
    for accepted in near_gpus.ACCEPTED[request.topology]:
        if accepted is near_gpus.Nearness.ANYWHERE:
            found = place(
                request,
                inventory,
                used,
                strategy=strategy,
                sibling_pfs=sibling_pfs,
                budget=budget,
                anywhere=True,
            )
            return found if isinstance(found, Rejection) else replace(found, nearness=accepted)
        beside = _beside(request, inventory, used, gpus, accepted)
        if beside is None:
            continue
        rest_entries = [
            entry for entry, interface in enumerate(request.interfaces) if not interface.needs.near_gpu
        ]
        rest_request = Request(tuple(request.interfaces[entry] for entry in rest_entries))
        occupied = total(used, usage_of(beside, inventory))
        found = (
            place(
                rest_request,
                inventory,
                occupied,
                strategy=strategy,
                sibling_pfs=sibling_pfs,
                budget=budget,
            )
            if rest_entries
            else Placement(node=inventory.node, interfaces=())
        )
        if isinstance(found, Rejection):
            continue
        placed = zip(rest_entries, found.interfaces, strict=True)
        interfaces = (*beside, *(replace(interface, entry=entry) for entry, interface in placed))
        return Placement(node=inventory.node, interfaces=interfaces, nearness=accepted)
    return _rejection(inventory, *_explain_near_gpus(request, inventory, gpus))


def _beside(
    request: Request,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    gpus: Sequence[Gpu],
    accepted: near_gpus.Nearness,
) -> tuple[PlacedInterface, ...] | None:
    """Return the interfaces near GPUs on each PF that they may come to; None if a GPU has no PF with room."""
    entries = [entry for entry, interface in enumerate(request.interfaces) if interface.needs.near_gpu]
    interface = request.interfaces[entries[0]]
    demand = gpu_demand.GpuDemand(len(entries), gpu_demand.gpus_requested(request.devices), gpus)

    def room(pf: Pf, number: int) -> bool:
        placed = [_placed(interface, pf)] * demand.largest(number)
        return fits(placed, inventory, used)

    chosen = near_gpus.assign(demand.gpus, inventory.pfs, accepted, room)
    if not chosen:
        return None
    places = [*gpu_demand.entries_by_pf(chosen, entries, demand)]
    if len(places) > gpu_demand.MAX_PLACES:
        return None
    return tuple(_placed(request.interfaces[entry], pf, entry) for pf, entry in places)


def _placed(interface: InterfaceRequest, pf: Pf, entry: int | None = None, pool: str = "") -> PlacedInterface:
    return PlacedInterface(
        pf=pf.pci,
        min_tx_rate_mbps=interface.min_tx_rate_mbps,
        max_tx_rate_mbps=interface.max_tx_rate_mbps,
        enforce=interface.enforce,
        options=interface.options,
        pool=pool,
        entry=entry,
    )


def _explain_near_gpus(
    request: Request, inventory: Inventory, gpus: Sequence[Gpu]
) -> tuple[Reason, RefusalMessage]:
    """Explain why no placement near the GPUs holds for every choice of kubelet."""
    topology = request.topology
    needs = f"needs interfaces near GPUs ({topology}) whichever of them kubelet chooses"
    if not gpus:
        lacks = f"{needs}; where the node's GPUs are that the pod requests is not known"
        return Reason.NO_SUCH_PF, RefusalMessage.nameless(lacks, lacks)
    least = near_gpus.ACCEPTED[topology][-1]
    if any(near_gpus.nearest(gpu, inventory.pfs) < least for gpu in gpus):
        lacks = f"{needs}; a GPU has no PF that near"
        return Reason.NO_SUCH_PF, RefusalMessage.nameless(lacks, lacks)
    fits_empty = _beside(request, inventory, {}, gpus, least) is not None
    lacks = f"{needs}; the PFs near a GPU have too little {'free' if fits_empty else 'room even when empty'}"
    reason = Reason.INSUFFICIENT if fits_empty else Reason.EXCEEDS_CAPACITY
    return reason, RefusalMessage.nameless(lacks, lacks)


def narrow_to_gpus(
    promised: Placement, request: Request, inventory: Inventory, gpus: Sequence[Gpu]
) -> Placement | None:
    """Return the part of a placement near GPUs that a pod with these GPUs keeps, each interface on one PF.

    There is no such part if the placement was made for other GPUs, for example if one has become free since.

    request: of the interfaces of the placement, in order.
    """
    near_placed = [placed for placed in promised.interfaces if needs_of(placed.options).near_gpu]
    placed_anywhere = iter(
        [placed for placed in promised.interfaces if not needs_of(placed.options).near_gpu]
    )
    by_pf = Counter(placed.pf for placed in near_placed)
    pfs = [pf for pf in inventory.pfs if pf.pci in by_pf]
    near = [index for index, interface in enumerate(request.interfaces) if interface.needs.near_gpu]
    demand = gpu_demand.GpuDemand(len(near), len(gpus), gpus)
    for accepted in near_gpus.ACCEPTED[request.topology]:
        chosen = near_gpus.assign(
            demand.gpus, pfs, accepted, lambda pf, number: demand.largest(number) <= by_pf[pf.pci]
        )
        if chosen:
            break
    else:
        return None
    positions = {index: chosen[number % len(chosen)] for number, index in enumerate(near)}
    interfaces = tuple(
        _placed(interface, positions[index])
        if index in positions
        else replace(next(placed_anywhere), entry=None)
        for index, interface in enumerate(request.interfaces)
    )
    return Placement(node=promised.node, interfaces=interfaces, generation=promised.generation)


def _place_devices(
    request: Request,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    devices: Sequence[tuple[str, int]],
) -> Placement | Rejection:
    """Place devices so that every choice of kubelet's fits (`core.devices.placement`)."""
    asked_wrongly = device_mismatch(request, devices)
    if asked_wrongly:
        return _rejection(
            inventory, Reason.DEVICES_DIFFER, RefusalMessage.nameless(asked_wrongly, asked_wrongly)
        )
    lacking = too_few(inventory, devices)
    if lacking:
        return _rejection(inventory, Reason.EXCEEDS_CAPACITY, RefusalMessage.nameless(lacking, lacking))
    places = tuple(possible(request, inventory, devices))
    interfaces = tuple(
        _placed(place.interface_request, place.pf, place.entry, place.resource) for place in places
    )
    additional = usage_of(interfaces, inventory)
    if fits(interfaces, inventory, used):
        additional = _too_light(interfaces, additional, inventory, used)
        if not additional:
            return Placement(node=inventory.node, interfaces=interfaces)
    return _rejection(inventory, *explain_device_refusal(request, places, additional, used))


def _too_light(
    interfaces: Sequence[PlacedInterface],
    largest: Mapping[PciAddress, Used],
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
) -> dict[PciAddress, Used]:
    """Return the use by a choice of kubelet's that does not fit although the largest does; empty if all fit.

    There may be such a choice if rates are weights, because all are shares of the largest one there
    (`core.programming`). So the largest reservations below each are weighed as well.
    """
    rates = sorted({interface.min_tx_rate_mbps for interface in interfaces}, reverse=True)
    for pci, largest_rate in largest.items():
        pf, current = inventory.pf(pci), used.get(pci, NOTHING_USED)
        if pf is None or pf.rates.weights is None:
            continue
        on_pf = [candidate for candidate in interfaces if candidate.pf == pci]
        for rate in rates[1:]:
            if may_fall_short(pf, current, largest_rate, rate):
                additional = usage_of(
                    [candidate for candidate in on_pf if candidate.min_tx_rate_mbps <= rate], inventory
                )
                if additional and not keeps_minimums(pf, current + additional.get(pci, NOTHING_USED)):
                    return additional
    return {}


def _rejection(inventory: Inventory, reason: Reason, message: RefusalMessage) -> Rejection:
    return Rejection(
        node=inventory.node, reason=reason, message=message.full, numbers=message.numbers, cause=message.cause
    )
