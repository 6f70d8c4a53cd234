"""Placement of pods that hold exclusive devices, for every choice of devices that kubelet may make.

kubelet chooses the devices after the pod was bound. So each interface is placed on every PF whose devices the
pod may be given. A PF then counts the largest reservations of all pods that may hold its devices, as many as
it has of these (`core.pf_use.DeviceUse`), and no choice of kubelet's over-commits it. Interfaces are
devices in the order of the resources' names, and in the order of the devices' ids among those of one
resource.

The annotation gives the amounts: minimum and maximum rates, `enforce`, and keys for which the choice of the
device does not matter (`name`, `network`). Keys that choose or configure a VF are refused, and so is a
policy.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory, Pf
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.pf_needs import unmet
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.programming import demand, objection
from k8s_rdma.core.refusal import RefusalMessage, count, needed
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.round_robin import keeps_minimums
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.types import PciAddress

HARMLESS_OPTIONS = frozenset({"name", "network"})
"""The fields of `InterfaceOptions` that a request may set for any device."""


def explain_device_refusal(
    request: Request,
    places: Sequence[Possible],
    added: Mapping[PciAddress, Used],
    used: Mapping[PciAddress, Used],
) -> tuple[Reason, RefusalMessage]:
    """Return the reason for `core.placement.Rejection`, and the sentence.

    places: all places that kubelet may choose.
    added: the use of each PF by a choice that does not fit.
    """
    pfs = {place.pf.pci: place.pf for place in places}.values()
    against = _refused(places)
    if against is not None:
        return Reason.DRIVER_REFUSES, _joined(request, places, against)
    short = _short(pfs, added, {}, empty=True)
    if short is not None:
        return Reason.EXCEEDS_CAPACITY, _joined(request, places, short)
    short = _short(pfs, added, used, empty=False)
    return Reason.INSUFFICIENT, _joined(request, places, short or _message("", "takes them", "takes them"))


def _joined(request: Request, places: Sequence[Possible], why: RefusalMessage) -> RefusalMessage:
    resources = " and ".join(dict.fromkeys(place.resource for place in places))
    needs = f"needs {needed(request.interfaces)} as devices of {resources}, and kubelet chooses which"
    return RefusalMessage(*(f"{needs}; {clause}" for clause in why))


def _message(name: str, numbers: str, cause: str) -> RefusalMessage:
    return RefusalMessage(f"PF {name} {numbers}", f"a PF {numbers}", f"a PF {cause}")


def _refused(places: Iterable[Possible]) -> RefusalMessage | None:
    for place in places:
        why = unmet(place.pf, place.interface_request.needs)
        if not why and (why := objection(place.pf, place.interface_request)):
            why += f", and {demand(place.pf, place.interface_request)}"
        if why:
            text = f"where they may be does not take them: {why}"
            return _message(place.pf.name, text, text)
    return None


def _short(
    pfs: Iterable[Pf], additional: Mapping[PciAddress, Used], used: Mapping[PciAddress, Used], *, empty: bool
) -> RefusalMessage | None:
    """Return the first PF that the worst choice is too much for."""
    for pf in pfs:
        current, extra = used.get(pf.pci, NOTHING_USED), additional.get(pf.pci, NOTHING_USED)
        after = current + extra
        added, link = after.mbps - current.mbps, pf.link_mbps or 0
        if extra.mbps and after.mbps > link:
            if pf.link_mbps is None:
                text = "where they may be has no known link speed (link down?), and reserves nothing"
                return _message(pf.name, text, text)
            free = f"{link} Mb/s when empty" if empty else f"{link - current.mbps} of {link} Mb/s unreserved"
            cause = "even when empty" if empty else "free"
            return _message(
                pf.name,
                f"may come to carry {added} Mb/s of that, and has {free}",
                f"that may come to carry them has too little bandwidth {cause}",
            )
        if not keeps_minimums(pf, after):
            text = (
                f"that may come to carry them has minimum rates that are weights ({pf.driver}), by which a "
                "VF would get less than is reserved for it"
            )
            return _message(pf.name, text, text)
    return None


class Possible(NamedTuple):
    """A possible place of one interface: a PF whose devices kubelet may choose for it."""

    pf: Pf
    resource: str
    entry: int
    interface_request: InterfaceRequest


@lru_cache(maxsize=1024)
def options_refused(options: InterfaceOptions) -> tuple[str, ...]:
    """Return the keys that are asked for and that choose or configure a VF."""
    return tuple(
        field.name
        for field in fields(options)
        if field.name not in HARMLESS_OPTIONS
        and getattr(options, field.name) != getattr(NO_OPTIONS, field.name)
    )


def devices_on(request: Request, inventory: Inventory) -> tuple[tuple[str, int], ...]:
    """Count the request's devices that are VFs of the node, by resource, in order of names.

    Those for ResourceClaims are no devices of kubelet's.
    """
    if not request.devices:
        return ()
    return tuple(
        (resource, number)
        for resource, number in sorted(request.devices)
        if resource != CLAIMS_POOL and any(pf.pools.get(resource) for pf in inventory.pfs)
    )


def too_few(inventory: Inventory, devices: Sequence[tuple[str, int]]) -> str:
    """Name a resource with fewer devices on the node than requested, free or not; empty without one."""
    for resource, number in devices:
        total_vfs = sum(pf.pools.get(resource, 0) for pf in inventory.pfs)
        if number > total_vfs:
            return f"needs {number} devices of {resource}; the node has {count(total_vfs, 'VF')} in that pool"
    return ""


def possible(
    request: Request, inventory: Inventory, devices: Sequence[tuple[str, int]]
) -> Iterator[Possible]:
    """List kubelet's choices: each interface in turn, on each PF. devices: as many as interfaces."""
    resources = [resource for resource, number in devices for _ in range(number)]
    for entry, (resource, interface) in enumerate(zip(resources, request.interfaces, strict=True)):
        for pf in inventory.pfs:
            if pf.pools.get(resource):
                yield Possible(pf, resource, entry, interface)


def device_mismatch(request: Request, devices: Sequence[tuple[str, int]]) -> str:
    """Return the reason why the request can never be of these devices; empty when it can."""
    interfaces, device_count = len(request.interfaces), sum(number for _, number in devices)
    places = (
        f"its containers request {' and '.join(f'{number} of {resource}' for resource, number in devices)}, "
        "which are VFs of the node"
    )
    if interfaces != device_count:
        return (
            f"the pod asks both pools: {places}, and its annotation has {count(interfaces, 'interface')}, "
            f"not {device_count}; it must have one for each device, and sets their rates"
        )
    chosen = _chooses(request)
    return (
        f"{chosen}: {places}, kubelet chooses which, and the annotation sets their rates only"
        if chosen
        else ""
    )


def _chooses(request: Request) -> str:
    for index, interface in enumerate(request.interfaces):
        if interface.options is not NO_OPTIONS and (refused := options_refused(interface.options)):
            return f"interface {index} of the pod asks for {', '.join(refused)}"
    return f"the pod's policy is {request.policy}" if request.policy is not PfPolicy.ANY else ""
