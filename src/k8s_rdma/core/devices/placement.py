"""Where the interfaces of a pod that holds exclusive devices may come to be, and whether all of that fits.

kubelet chooses the devices, after the pod was bound. So each interface is placed on every PF whose devices it
may be given: a PF then counts the largest reservations of all who may hold its devices, as many as it has of
these (`core.inventory.DeviceUse`), and is over-committed by no choice of kubelet's. Interfaces are devices in
the order of the resources' names, and in that of the devices' ids among those of one resource.

The annotation says how much: minimum and maximum rates, `enforce`, and what the choice of the device does not
matter to (`name`, `network`). What chooses or configures a VF is refused, and so is a policy.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.policy import PfPolicy
from k8s_rdma.core.refusal import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.inventory import Inventory, Pf
    from k8s_rdma.core.request import InterfaceRequest, Request

HARMLESS_OPTIONS = frozenset({"name", "network"})
"""Of `InterfaceOptions`, what may be asked for whichever device it is."""


class Possible(NamedTuple):
    """One of the pod's interfaces, on a PF of whose devices it may come to be."""

    pf: Pf
    resource: str
    entry: int
    wanted: InterfaceRequest


@lru_cache(maxsize=1024)
def options_refused(options: InterfaceOptions) -> tuple[str, ...]:
    """The keys that are asked for and that choose or configure a VF."""
    return tuple(
        each.name
        for each in fields(options)
        if each.name not in HARMLESS_OPTIONS and getattr(options, each.name) != getattr(NO_OPTIONS, each.name)
    )


def devices_on(request: Request, inventory: Inventory) -> tuple[tuple[str, int], ...]:
    """What of the request's devices are VFs of the node: how many of which resource, in order of names."""
    if not request.devices:
        return ()
    return tuple(
        (resource, number)
        for resource, number in sorted(request.devices)
        if any(pf.pools.get(resource) for pf in inventory.pfs)
    )


def too_few(inventory: Inventory, devices: Sequence[tuple[str, int]]) -> str:
    """Which resource the node has not as many devices of, whoever holds them; empty when it has."""
    for resource, number in devices:
        has = sum(pf.pools.get(resource, 0) for pf in inventory.pfs)
        if number > has:
            return f"needs {number} devices of {resource}; the node has {count(has, 'VF')} in that pool"
    return ""


def possible(
    request: Request, inventory: Inventory, devices: Sequence[tuple[str, int]]
) -> Iterator[Possible]:
    """All that kubelet may choose: each interface in turn, on each PF. devices: as many as interfaces."""
    resources = [resource for resource, number in devices for _ in range(number)]
    for entry, (resource, wanted) in enumerate(zip(resources, request.interfaces, strict=True)):
        for pf in inventory.pfs:
            if pf.pools.get(resource):
                yield Possible(pf, resource, entry, wanted)


def misasked(request: Request, devices: Sequence[tuple[str, int]]) -> str:
    """Why the request cannot be of these devices, whatever is free; empty when it can."""
    wanted, held = len(request.interfaces), sum(number for _, number in devices)
    here = (
        f"its containers request {' and '.join(f'{number} of {resource}' for resource, number in devices)}, "
        "which are VFs of the node"
    )
    if wanted != held:
        return (
            f"the pod asks both pools: {here}, and its annotation has {count(wanted, 'interface')}, not "
            f"{held}; it must have one for each device, and sets their rates"
        )
    chosen = _chooses(request)
    return (
        f"{chosen}: {here}, kubelet chooses which, and the annotation sets their rates only" if chosen else ""
    )


def _chooses(request: Request) -> str:
    for at, each in enumerate(request.interfaces):
        if each.options is not NO_OPTIONS and (refused := options_refused(each.options)):
            return f"interface {at} of the pod asks for {', '.join(refused)}"
    return f"the pod's policy is {request.policy}" if request.policy is not PfPolicy.ANY else ""
