"""Reprogramming of a running pod: the rates of a later generation of its placement, judged and planned.

The extender admits a change by the reports of nodes. The node judges it again by the same rule before it
programs anything, because it knows first of a slower link, and of VFs that somebody else rated. Only rates
may differ between two generations.

Interfaces by ResourceClaim keep their reservation, which an allocated claim does not change, and the cap of
their claim unless the pod's owner asks for another.

A change is of all attachments of a pod that have earlier rates. Their receipts have it before its first step
and until after its last one (`core.ledger.RateChange`), so that it can always be undone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.allocation import used_for, used_locally
from k8s_rdma.core.claims import beyond_class_cap
from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory, Pf
from k8s_rdma.core.ledger import AllocatedInterface, Ledger, PreparedInterface, RateChange, Receipt
from k8s_rdma.core.pf_needs import unmet
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.programming import demand, objection, programmed, takes_rates
from k8s_rdma.core.rate_change import shortage
from k8s_rdma.core.step import CapInterface, SetRates, Step, VfRate, VfRef
from k8s_rdma.core.types import NodeName, PciAddress, PfUse, VfDriver
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.core.kernel import Hardware, LocatedVf
    from k8s_rdma.core.options import InterfaceOptions
    from k8s_rdma.core.request import InterfaceRequest


def judge_rates(
    receipts: Iterable[Receipt], placement: Placement, hardware: Hardware, ledger: Ledger
) -> tuple[Receipt, ...] | Rejection:
    """Give receipts of a pod the change to its placement's rates, or say why not.

    Interfaces by ResourceClaim keep their rates.
    `STALE_PLACEMENT` if more than rates differs.
    `DRIVER_REFUSES` if a PF does not take the rates, or takes them only while its link is up.
    `INSUFFICIENT` if reservations would exceed the link.
    """
    inventory = hardware.inventory(placement.node)
    places = {
        (placed.entry_at(index), placed.pf): placed for index, placed in enumerate(placement.interfaces)
    }
    changed = []
    for receipt in receipts:
        interfaces = []
        for interface in receipt.interfaces:
            target = _target(interface, places, inventory)
            if isinstance(target, _Refusal):
                message = f"interface {interface.ifname}: {target.why}"
                return Rejection(node=placement.node, reason=target.reason, message=message)
            interfaces.append(target)
        change = RateChange(generation=placement.generation, interfaces=tuple(interfaces))
        changed.append(replace(receipt, change=change))
    refusal = next(_shortages(changed, inventory, hardware, ledger), "")
    if refusal:
        return Rejection(node=placement.node, reason=Reason.INSUFFICIENT, message=refusal)
    return tuple(changed)


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: Reason
    why: str


def _target(
    interface: AllocatedInterface,
    places: Mapping[tuple[int, PciAddress], PlacedInterface],
    inventory: Inventory,
) -> AllocatedInterface | _Refusal:
    """Return the interface with the rates that it is placed with."""
    if interface.pool == CLAIMS_POOL:
        return interface
    placed, pf = places.get((interface.entry, interface.vf.pf)), inventory.pf(interface.vf.pf)
    if placed is None:
        return _Refusal(Reason.STALE_PLACEMENT, f"is not placed on PF {interface.vf.pf}, where its VF is")
    if (name := _difference(interface, placed)) is not None:
        return _Refusal(Reason.STALE_PLACEMENT, f"has another {name} than the placement; only rates change")
    if pf is None:
        return _Refusal(Reason.NO_SUCH_PF, f"its PF {placed.pf} is not there")
    request = replace(placed, options=interface.options).as_request()
    return _with_rates(interface, pf, request)


def _with_rates(
    interface: AllocatedInterface, pf: Pf, request: InterfaceRequest
) -> AllocatedInterface | _Refusal:
    if why := _driver_objection(pf, request):
        return _Refusal(Reason.DRIVER_REFUSES, f"PF {pf.name}: {why}")
    rates = programmed(pf, request)
    return replace(
        interface,
        min_tx_rate_mbps=request.min_tx_rate_mbps,
        max_tx_rate_mbps=request.max_tx_rate_mbps,
        set_min_tx_rate_mbps=rates.min_tx_rate_mbps,
        set_max_tx_rate_mbps=rates.max_tx_rate_mbps,
        software_max_tx_rate_mbps=rates.software_max_tx_rate_mbps,
    )


def caps_by_vf(
    receipts: Iterable[Receipt], claimed: Iterable[PreparedInterface], caps: Mapping[str, int]
) -> dict[VfRef, int]:
    """Map a pod's interfaces by ResourceClaim to the caps that they should have, Mb/s.

    MalformedError names an interface that the pod does not have by claim, or (`NOT_ALLOWED`) an interface
    with a cap beyond its DeviceClass's.

    claimed: the VFs of the pod's claims, with the caps for those that `caps` does not name.
    """
    by_vf = {interface.vf: interface for interface in claimed}
    base = {vf: interface.placed.max_tx_rate_mbps for vf, interface in by_vf.items()}
    attached = {
        interface.ifname: interface.vf
        for receipt in receipts
        for interface in receipt.interfaces
        if interface.pool == CLAIMS_POOL and interface.vf in base
    }
    for name in caps:
        if name not in attached:
            names = ", ".join(attached) or "none"
            raise MalformedError(f"{name}: the pod has no such interface by ResourceClaim; it has {names}")
        if why := beyond_class_cap(caps[name], by_vf[attached[name]].class_cap_mbps):
            raise MalformedError(f"interface {name}: {why}", reason=Reason.NOT_ALLOWED)
    return {vf: caps.get(name, base[vf]) for name, vf in attached.items()}


def has_caps(receipts: Iterable[Receipt], caps: Mapping[VfRef, int]) -> bool:
    """Report whether the interfaces have these caps, and no change of them is incomplete."""
    return all(
        receipt.change is None
        and all(
            interface.max_tx_rate_mbps == caps.get(interface.vf, interface.max_tx_rate_mbps)
            for interface in receipt.interfaces
        )
        for receipt in receipts
    )


def judge_caps(
    receipts: Iterable[Receipt], caps: Mapping[VfRef, int], hardware: Hardware, node: NodeName
) -> tuple[Receipt, ...] | Rejection:
    """Give receipts the change to other caps, or say why not; those that have their caps are left out.

    `EXCEEDS_CAPACITY` for a cap below the reservation or beyond the link, `DRIVER_REFUSES` as `judge_rates`.
    """
    inventory = hardware.inventory(node)
    changed = []
    for receipt in receipts:
        if has_caps([receipt], caps):
            continue
        interfaces = []
        for interface in receipt.interfaces:
            target = _capped(interface, caps.get(interface.vf, interface.max_tx_rate_mbps), inventory)
            if isinstance(target, _Refusal):
                message = f"interface {interface.ifname}: {target.why}"
                return Rejection(node=node, reason=target.reason, message=message)
            interfaces.append(target)
        change = RateChange(generation=receipt.generation, interfaces=tuple(interfaces))
        changed.append(replace(receipt, change=change))
    return tuple(changed)


def _capped(interface: AllocatedInterface, cap: int, inventory: Inventory) -> AllocatedInterface | _Refusal:
    if cap == interface.max_tx_rate_mbps:
        return interface
    pf, least = inventory.pf(interface.vf.pf), interface.min_tx_rate_mbps
    if pf is None:
        return _Refusal(Reason.NO_SUCH_PF, f"its PF {interface.vf.pf} is not there")
    if 0 < cap < least:
        why = f"a cap of {cap} Mb/s is below the {least} Mb/s that its ResourceClaim reserves"
        return _Refusal(Reason.EXCEEDS_CAPACITY, why)
    if pf.link_mbps is not None and cap > pf.link_mbps:
        why = f"a cap of {cap} Mb/s is beyond the link of PF {pf.name}, {pf.link_mbps} Mb/s; 0 is for no cap"
        return _Refusal(Reason.EXCEEDS_CAPACITY, why)
    placed = replace(interface.placed(), min_tx_rate_mbps=least, max_tx_rate_mbps=cap)
    request = replace(placed, enforce=interface.enforce, options=interface.options).as_request()
    return _with_rates(interface, pf, request)


def _driver_objection(pf: Pf, request: InterfaceRequest) -> str:
    """Describe in a clause why the PF does not take the rates; empty when it does."""
    if not takes_rates(pf):
        return f"{pf.driver or 'its driver'} takes rates only while the link is up"
    why = objection(pf, request)
    return f"{why}, and {demand(pf, request)}" if why else unmet(pf, request.needs)


def _difference(interface: AllocatedInterface, placed: PlacedInterface) -> str | None:
    """Name the first difference besides rates, if there is one."""
    if interface.enforce is not placed.enforce:
        return "enforce"
    if interface.pool != placed.pool:
        return "resource"
    current, options = interface.options, _with_defaults(placed.options, interface.options)
    names = (field.name for field in fields(current))
    return next((name for name in names if getattr(current, name) != getattr(options, name)), None)


def _with_defaults(options: InterfaceOptions, current: InterfaceOptions) -> InterfaceOptions:
    """Return the options with the defaults of network configuration and namespace policy filled in."""
    return replace(
        options,
        pf=current.pf,
        vlan=current.vlan if options.vlan is None else options.vlan,
        driver=current.driver if options.driver is VfDriver.KERNEL else options.driver,
    )


def _shortages(
    changed: Iterable[Receipt], inventory: Inventory, hardware: Hardware, ledger: Ledger
) -> Iterator[str]:
    """Describe the PFs that cannot keep the reservations of the change.

    Reservations may be lowered on a link that has become slower under reservations that are kept.
    """
    after, needs_mbps = ledger, Counter[PciAddress]()
    for receipt in map(Receipt.completed, changed):
        after = after.with_receipt(receipt)
        for interface in receipt.placed():
            needs_mbps[interface.pf] += interface.min_tx_rate_mbps
    usage_before, usage_after = (
        used_for(PfUse.ANNOTATION, hardware, used_locally(hardware, state)) for state in (ledger, after)
    )
    for pf in inventory.pfs:
        current, planned = (usage.get(pf.pci, NOTHING_USED) for usage in (usage_before, usage_after))
        if planned.mbps > current.mbps and (why := shortage(pf, planned, needs_mbps[pf.pci])):
            yield why


def changing(receipts: Iterable[Receipt], located: Mapping[PciAddress, LocatedVf]) -> tuple[Step, ...]:
    """Return the steps from the rates before to those of the receipts' changes, all rates of a PF together.

    Caps of software come first if they are new or lower and last if they are lifted, so that no moment is
    without a cap.

    located: the VFs in the pods' namespaces, by whose present names their caps are set. The cap of a VF that
        its pod moved elsewhere is lost already, and restored by its receipt when it is back.
    """
    tightened: list[CapInterface] = []
    lifted: list[CapInterface] = []
    rates: dict[PciAddress, list[tuple[VfRate, VfRate]]] = {}
    for receipt in receipts:
        for interface, target in _pairs(receipt):
            if target.rate() != interface.rate():
                rates.setdefault(interface.vf.pf, []).append((target.rate(), interface.rate()))
            cap, previous = target.software_max_tx_rate_mbps, interface.software_max_tx_rate_mbps
            vf = located.get(PciAddress(interface.pci))
            if cap != previous and vf is not None:
                step = CapInterface(
                    netns=receipt.netns, ifname=vf.ifname, max_tx_rate_mbps=cap, previous=previous
                )
                (tightened if cap and not 0 < previous < cap else lifted).append(step)
    return (*tightened, *(_set_rates(pf, pairs) for pf, pairs in rates.items()), *lifted)


def changes_caps(receipt: Receipt) -> bool:
    """Report whether a receipt's change is of caps that software keeps."""
    return any(
        interface.software_max_tx_rate_mbps != target.software_max_tx_rate_mbps
        for interface, target in _pairs(receipt)
    )


def _pairs(receipt: Receipt) -> Iterator[tuple[AllocatedInterface, AllocatedInterface]]:
    """Return the interfaces before a change and after it."""
    return zip(receipt.interfaces, receipt.completed().interfaces, strict=True)


def _set_rates(pf: PciAddress, pairs: Iterable[tuple[VfRate, VfRate]]) -> SetRates:
    rates, previous = zip(*pairs, strict=True)
    return SetRates(pf=pf, rates=rates, previous=previous)
