"""A change of a running pod's rates: admitted on the PFs that its interfaces are on, or refused with numbers.

Only rates change while a pod runs. Until the node has programmed the new rates, the largest of an interface's
reservations that may be in force counts (`PlacedInterface.until_programmed`). So a raise is reserved before
it is programmed, and bandwidth that a cut frees is given to others only after it is programmed. A generation
that supersedes one which is not programmed takes over its counted reservations, because the node may program
it still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, by_entry, usage_of
from k8s_rdma.core.programming import objection
from k8s_rdma.core.round_robin import keeps_minimums
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.core.inventory import Inventory, Pf
    from k8s_rdma.core.request import Request
    from k8s_rdma.core.types import PciAddress


def changed_rates(placement: Placement, request: Request, *, programmed: bool) -> Placement | None:
    """Return the next generation of a placement, with the rates of a request, if they differ.

    MalformedError (`NOT_ALLOWED`) names the first interface in which something else differs.

    programmed: whether the node has the rates of this placement.
    """
    placed_by_entry = by_entry(placement.interfaces)
    if len(request.interfaces) != len(placed_by_entry):
        msg = (
            f"the pod runs with {len(placed_by_entry)} interfaces, and its annotation asks for "
            f"{len(request.interfaces)}; only min_tx_rate and max_tx_rate of a running pod may change"
        )
        raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
    requested = dict(zip(placed_by_entry, request.interfaces, strict=True))
    for entry, interface in requested.items():
        placed = placed_by_entry[entry]
        if (placed.options, placed.enforce) != (interface.options, interface.enforce):
            msg = (
                f"interface {entry} differs in more than its rates from what the pod runs with; only "
                "min_tx_rate and max_tx_rate of a running pod may change"
            )
            raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
    interfaces = tuple(
        replace(
            placed,
            min_tx_rate_mbps=requested[placed.entry_at(index)].min_tx_rate_mbps,
            max_tx_rate_mbps=requested[placed.entry_at(index)].max_tx_rate_mbps,
            previous_min_tx_rate_mbps=(placed if programmed else placed.until_programmed()).min_tx_rate_mbps,
        )
        for index, placed in enumerate(placement.interfaces)
    )
    if all(map(_has_rates_of, interfaces, placement.interfaces)):
        return None
    return replace(placement, interfaces=interfaces, generation=placement.generation + 1)


def _has_rates_of(interface: PlacedInterface, second: PlacedInterface) -> bool:
    return (interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) == (
        second.min_tx_rate_mbps,
        second.max_tx_rate_mbps,
    )


def admit(
    change: Placement, current: Placement, inventory: Inventory, used: Mapping[PciAddress, Used]
) -> Rejection | None:
    """Return the refusal of a change, unless its PFs and their drivers can keep it.

    A PF on which the pod's reservation does not grow needs no room: its link may have got slower since.

    current: the generation before, as it counts now.
    used: by other pods.
    """
    refused = next(_objections(change, current, inventory), None) or next(
        _shortages(change, current, inventory, used), None
    )
    if refused is None:
        return None
    reason, message = refused
    return Rejection(node=change.node, reason=reason, message=message)


def _objections(change: Placement, current: Placement, inventory: Inventory) -> Iterator[tuple[Reason, str]]:
    for index, (interface, previous) in enumerate(zip(change.interfaces, current.interfaces, strict=True)):
        pf = inventory.pf(interface.pf)
        if pf is None:
            yield Reason.UNREADABLE_NODE, f"its node does not report PF {interface.pf} now"
        elif not _has_rates_of(interface, previous) and (why := objection(pf, interface.as_request())):
            yield Reason.DRIVER_REFUSES, f"interface {interface.entry_at(index)} on PF {pf.name}: {why}"


def _shortages(
    change: Placement, current: Placement, inventory: Inventory, used: Mapping[PciAddress, Used]
) -> Iterator[tuple[Reason, str]]:
    needed = usage_of([interface.until_programmed() for interface in change.interfaces], inventory)
    current_usage = current.usage(inventory)
    for pci, needs in needed.items():
        pf, of_others = inventory.pf(pci), used.get(pci, NOTHING_USED)
        if pf is None or needs.mbps <= current_usage[pci].mbps:
            continue
        if why := shortage(pf, of_others + needs, needs.mbps):
            link_mbps = pf.link_mbps or 0
            reason = Reason.INSUFFICIENT if needs.mbps <= link_mbps else Reason.EXCEEDS_CAPACITY
            yield reason, f"{why}; the pod has {current_usage[pci].mbps} Mb/s there now"


def shortage(pf: Pf, planned: Used, needs_mbps: int) -> str:
    """Describe why a PF cannot keep the planned use; empty if it can.

    planned: the use by all pods.
    needs_mbps: the part of it that the pod reserves whose rates change.
    """
    link_mbps = pf.link_mbps
    if link_mbps is None:
        return f"PF {pf.name}: the speed of its link is unknown now"
    if planned.mbps > link_mbps:
        free_mbps = max(0, link_mbps - (planned.mbps - needs_mbps))
        return (
            f"PF {pf.name}: {needs_mbps} Mb/s needed, and others leave {free_mbps} of {link_mbps} Mb/s "
            "to the pod"
        )
    if not keeps_minimums(pf, planned):
        return (
            f"PF {pf.name}: minimum rates of {pf.driver} are weights, by which some of its VFs in use would "
            "get less than is reserved for them"
        )
    return ""
