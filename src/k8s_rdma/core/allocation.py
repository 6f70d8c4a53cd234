"""Allocation of VFs to a pod on the PFs of its placement; reservations on a node; adoption of foreign VFs.

Foreign VFs may be adopted while they lie unused in the host's namespace. For example, an older CNI plugin
that crashed, or was replaced, leaves rates and VLANs behind on VFs that no pod has.

A reservation is the same before and after a restart of any process. The use of a node has three parts: the
allocations that its agent reports, the promises to bound, unfinished pods that the report does not hold, and
the binds made here that the pod watch has not shown yet. A pod with several attachments is reported in part
for a while. A promise ends only when the pod is finished or gone *and* the node does not report it. So a
sandbox that dies and is made again never finds its bandwidth sold.

The extender counts all three. The agent counts outstanding promises when it places a pod without a promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.gpu_demand import of_gpus
from k8s_rdma.core.devices.near_gpus import owners
from k8s_rdma.core.inventory import CLAIMS_POOL, Gpu, Inventory, Pf
from k8s_rdma.core.kernel import Hardware, PfState, Vf, asked_config, present_config
from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Receipt
from k8s_rdma.core.macs import home_mac, requests_of, taken_address
from k8s_rdma.core.pf_use import EVERY_DEVICE, NOTHING_USED, DeviceUse, Used, total
from k8s_rdma.core.placement import (
    PlacedInterface,
    Placement,
    Rejection,
    fits,
    narrow_to_gpus,
    place,
    usage_of,
)
from k8s_rdma.core.programming import programmed
from k8s_rdma.core.step import VfHome, VfRef
from k8s_rdma.core.types import NodeName, PciAddress, PfUse, PodUid
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.rate_ability import RateAbility
    from k8s_rdma.core.request import Request

NOBODYS: Mapping[str, str] = MappingProxyType({})


def used_on_node(  # noqa: PLR0913 - all that anyone says of the node
    *,
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]],
    foreign: Mapping[PciAddress, Used],
    promised: Mapping[PodUid, tuple[PlacedInterface, ...]],
    inventory: Inventory,
    entries: Mapping[PodUid, Collection[int]] = MappingProxyType({}),
    excluding: Collection[PodUid] = (),
) -> dict[PciAddress, Used]:
    """Return the use of each PF of a node: reports, promises and foreign VFs together (see the module).

    reported: allocations by pod in the agent's last report.
    foreign: VFs that someone else holds or rated, from the same report.
    promised: placements of bound, unfinished pods and of binds in flight on this node.
    entries: which of a reported pod's interfaces the report holds, by their place in its promise; a pod that
        is not in it is reported as a whole.
    inventory: the PFs, which determine how much bandwidth a reservation takes of them.
    excluding: pods that do not count.
    """
    by_pod = interfaces_on_node(reported=reported, promised=promised, entries=entries)
    for uid in excluding:
        by_pod.pop(uid, None)
    plain: list[PlacedInterface] = []
    alone: list[Sequence[PlacedInterface]] = []
    for interfaces in by_pod.values():
        if any(interface.pool for interface in interfaces):
            alone.append(interfaces)
        else:
            plain += interfaces
    if plain:
        alone.append(plain)
    return total(foreign, *(usage_of(interfaces, inventory) for interfaces in alone))


def interfaces_on_node(
    *,
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]],
    promised: Mapping[PodUid, tuple[PlacedInterface, ...]],
    entries: Mapping[PodUid, Collection[int]] = MappingProxyType({}),
) -> dict[PodUid, tuple[PlacedInterface, ...]]:
    """Return the interfaces that count for each pod; the parameters are those of `used_on_node`."""
    by_pod = dict(reported)
    for uid, interfaces in promised.items():
        if uid not in reported:
            by_pod[uid] = interfaces
        elif uid in entries:
            held_entries = entries[uid]
            by_pod[uid] += tuple(
                interface
                for index, interface in enumerate(interfaces)
                if interface.entry_at(index) not in held_entries
            )
    return by_pod


def outstanding(
    claims: Mapping[PodUid, Placement], ledger: Ledger, *, requester: PodUid, entries: Collection[int]
) -> tuple[PlacedInterface, ...]:
    """Return the promised interfaces that no receipt holds.

    requester, entries: the pod that is about to get these of its interfaces; its own promise of them does not
        count.
    """
    allocated = {
        (receipt.pod.uid, interface.entry)
        for receipt in ledger.receipts.values()
        for interface in receipt.interfaces
    }
    allocated |= {(requester, entry) for entry in entries}
    return tuple(
        placed
        for uid, placement in claims.items()
        for index, placed in enumerate(placement.interfaces)
        if (uid, placed.entry_at(index)) not in allocated
    )


def sibling_pfs(ledger: Ledger, *, requester: PodUid, entries: Collection[int]) -> frozenset[PciAddress]:
    """Return the PFs of the pod's other interfaces: its policy is for all of them together."""
    return frozenset(
        interface.vf.pf
        for receipt in ledger.of_pod(requester)
        for interface in receipt.interfaces
        if interface.entry not in entries
    )


def inherited_placement(
    node: NodeName, request: Request, entries: Sequence[int], older: Iterable[Receipt]
) -> Placement | None:
    """Return the placement of these interfaces in the pod's earlier sandboxes, if they had all."""
    older = tuple(older)
    previous = {
        interface.entry: PlacedInterface(
            pf=interface.vf.pf,
            min_tx_rate_mbps=interface.min_tx_rate_mbps,
            max_tx_rate_mbps=interface.max_tx_rate_mbps,
            enforce=interface.enforce,
            options=interface.options,
            pool=interface.pool,
        )
        for receipt in older
        for interface in receipt.interfaces
    }
    placed = tuple(previous[entry] for entry in entries if entry in previous)
    generation = max((receipt.generation for receipt in older), default=0)
    found = Placement(node=node, interfaces=placed, policy=request.policy, generation=generation)
    return found if placed and found.request() == request else None


def decide(  # noqa: PLR0913 - all that a decision rests on
    *,
    node: NodeName,
    request: Request,
    promised: Placement | None,
    hardware: Hardware,
    ledger: Ledger,
    admitted: Ledger | None = None,
    outstanding: Iterable[PlacedInterface] = (),
    sibling_pfs: Collection[PciAddress] = (),
    gpus: Sequence[Gpu] = (),
) -> Placement | Rejection:
    """Return the placement for an ADD: the promised one if it still fits, else a new one on this node.

    outstanding: interfaces that others were promised and do not hold yet. Promises do not contend with each
        other; a request without a promise gets the rest.
    admitted: the ledger beside which a request without a promise is placed (`Ledger.with_admitted`); None for
        the same.
    sibling_pfs: the PFs that other interfaces of the pod are on already.
    gpus: the GPUs of the pod, to which interfaces near GPUs belong.
    """
    inventory = hardware.inventory(node)
    used = used_for(PfUse.ANNOTATION, hardware, used_locally(hardware, ledger))
    if request.shape.near_gpus:
        request, inventory = of_gpus(request, inventory, gpus)
        promised = promised and narrow_to_gpus(promised, request, inventory, gpus)
    if promised is not None and fits(promised.interfaces, inventory, used, request.policy, sibling_pfs):
        return promised
    if admitted is not None and admitted is not ledger:
        used = used_for(PfUse.ANNOTATION, hardware, used_locally(hardware, admitted))
    found = place(request, inventory, total(used, usage_of(outstanding, inventory)), sibling_pfs=sibling_pfs)
    if request.shape.near_gpus and isinstance(found, Placement):
        return narrow_to_gpus(found, request, inventory, gpus) or found
    return found


def choose_vfs(
    placement: Placement,
    hardware: Hardware,
    ledger: Ledger,
    ifnames: Sequence[str],
    entries: Sequence[int] | None = None,
) -> tuple[AllocatedInterface, ...] | Rejection:
    """Return the free VFs of lowest index on each PF, in the placement's order, with their settings.

    VFs that failed lately come last. If an interface asks for a MAC that a free VF of its PF has, it gets
    that VF.
    Rejections: `STALE_PLACEMENT` if a PF has no free VF left, `CONFLICT` while a requested MAC is in use
    here.

    ifnames: in the pod.
    entries: the entries of the pod's request that the placement is for, if it is for a part of it; None if it
        is for all of it.
    """
    if entries is None:
        entries = range(len(placement.interfaces))
    inventory = hardware.inventory(placement.node)
    pfs, indexes = {placed.pf for placed in placement.interfaces}, _allocated_vfs(ledger)
    free = {pf.pci: _free_vfs(pf, indexes.get(pf.pci, ())) for pf in hardware.pfs if pf.pci in pfs}
    vfs = _picked(placement.interfaces, free)
    chosen = []
    for placed, vf, ifname, entry in zip(placement.interfaces, vfs, ifnames, entries, strict=True):
        pf = inventory.pf(placed.pf)
        if vf is None or pf is None:
            message = f"no free VF left on PF {placed.pf} for interface {ifname}"
            return Rejection(node=placement.node, reason=Reason.STALE_PLACEMENT, message=message)
        chosen.append(allocated(vf, pf, placed, ifname, entry))
    if conflict := taken_address(requests_of(chosen), hardware, ledger):
        return Rejection(
            node=placement.node, reason=Reason.CONFLICT, message=conflict.why, mentions=conflict.mentions
        )
    return tuple(chosen)


def with_gpus(
    interfaces: Sequence[AllocatedInterface], request: Request, gpus: Sequence[Gpu]
) -> tuple[AllocatedInterface, ...]:
    """Note in the interfaces of a request the GPUs to which they belong."""
    by_index = owners(request.interfaces, gpus)
    return tuple(
        replace(interface, gpu=by_index[index].device_id) if index in by_index else interface
        for index, interface in enumerate(interfaces)
    )


def _picked(interfaces: Sequence[PlacedInterface], free: Mapping[PciAddress, list[Vf]]) -> list[Vf | None]:
    """Return a free VF for each interface, in their order; None for an interface if its PF has no VF left."""
    picked: list[Vf | None] = [None] * len(interfaces)
    for index, placed in enumerate(interfaces):
        free_vfs, mac = free.get(placed.pf, []), placed.options.mac
        having = [vf for vf in free_vfs if mac in (vf.mac, vf.admin_mac)] if mac else []
        for vf in having[:1]:
            picked[index] = vf
            free_vfs.remove(vf)
    for index, placed in enumerate(interfaces):
        free_vfs = free.get(placed.pf, [])
        if picked[index] is None and free_vfs:
            picked[index] = free_vfs.pop(0)
    return picked


def allocated(vf: Vf, pf: Pf, placed: PlacedInterface, ifname: str, entry: int) -> AllocatedInterface:
    """Return a VF in its present state, allocated to an interface that was placed on its PF."""
    rates, config = programmed(pf, placed.as_request()), asked_config(vf.index, placed.options)
    return AllocatedInterface(
        vf=VfRef(placed.pf, vf.index),
        pci=vf.pci,
        ifname=ifname,
        min_tx_rate_mbps=placed.min_tx_rate_mbps,
        max_tx_rate_mbps=placed.max_tx_rate_mbps,
        home=VfHome(name=vf.netdev or "", mac=home_mac(vf), mtu=vf.mtu),
        set_min_tx_rate_mbps=rates.min_tx_rate_mbps,
        set_max_tx_rate_mbps=rates.max_tx_rate_mbps,
        software_max_tx_rate_mbps=rates.software_max_tx_rate_mbps,
        entry=entry,
        enforce=placed.enforce,
        options=placed.options,
        config=config,
        previous=None if config is None else present_config(vf, config),
        kernel_driver=vf.driver,
        rdma_device=vf.rdma_device or "",
        pool=vf.pool,
    )


def _free_vfs(pf: PfState, allocated: Container[int]) -> list[Vf]:
    free = (vf for vf in pf.vfs if vf.index not in allocated and not vf.pool and is_free(vf))
    return sorted(free, key=lambda vf: vf.failures)


def _allocated_vfs(ledger: Ledger) -> Mapping[PciAddress, Container[int]]:
    """Return allocated and prepared VFs by index: to look for each by its `VfRef` takes ten times as long."""
    indexes: dict[PciAddress, set[int]] = {}
    for vf in (*ledger.holders(), *ledger.prepared_vfs()):
        indexes.setdefault(vf.pf, set()).add(vf.index)
    return indexes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A set of foreign VFs: all, all of one PF (by its name or PCI address), or one VF of it by index."""

    pf: str | None = None
    vf: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VfCandidate:
    """A VF in scope, in its present state.

    foreign: why it is not free.
    exemption: why it must not be reset; empty if it may be.
    """

    ref: VfRef
    pf_name: str
    vf: Vf
    foreign: str
    exemption: str


def candidates(
    hardware: Hardware, ledger: Ledger, scope: Scope, in_use: Mapping[str, str] = NOBODYS
) -> tuple[VfCandidate, ...]:
    """Return the foreign VFs in scope, by PF and index; a VF named by its index is returned in any case.

    in_use: exclusive devices, by name or PCI address, and the pods that kubelet gave them.
    MalformedError if there is no such PF or VF.
    """
    holders = {
        interface.vf: receipt for receipt in ledger.receipts.values() for interface in receipt.interfaces
    }
    found = [
        _judged(pf, vf, holders.get(VfRef(pf.pci, vf.index)), _user(vf, in_use))
        for pf in _pfs(hardware, scope)
        for vf in _vfs(pf, scope)
    ]
    return tuple(candidate for candidate in found if scope.vf is not None or candidate.foreign)


def _user(vf: Vf, in_use: Mapping[str, str]) -> str:
    return next((in_use[name] for name in (vf.rdma_device or "", vf.pci) if name in in_use), "")


def _judged(pf: PfState, vf: Vf, holder: Receipt | None, user: str) -> VfCandidate:
    foreign = "" if holder else foreign_reason(vf)
    reason = ""
    if holder is not None:
        reason = f"held by pod {holder.pod.namespace}/{holder.pod.name}"
    elif not foreign:
        reason = "free already"
    elif user:
        reason = f"its device was given to pod {user}, says kubelet"
    elif vf.netdev is None or (vf.unusable and not vf.set_aside):
        reason = foreign
    return VfCandidate(ref=VfRef(pf.pci, vf.index), pf_name=pf.name, vf=vf, foreign=foreign, exemption=reason)


def _pfs(hardware: Hardware, scope: Scope) -> Sequence[PfState]:
    if scope.pf is None:
        return hardware.pfs
    found = [pf for pf in hardware.pfs if scope.pf in (pf.name, pf.pci)]
    if not found:
        pf_names = ", ".join(pf.name for pf in hardware.pfs) or "none"
        msg = f"PF {scope.pf}: not among those of this node that are ours: {pf_names}"
        raise MalformedError(msg)
    return found


def _vfs(pf: PfState, scope: Scope) -> Iterator[Vf]:
    found = [vf for vf in pf.vfs if scope.vf in (None, vf.index)]
    if not found and scope.vf is not None:
        msg = f"VF {scope.vf} of PF {pf.name}: unknown; it has {len(pf.vfs)} VFs"
        raise MalformedError(msg)
    yield from found


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedForeignVf:
    """A VF that the ledger does not know and that is not free: rates in Mb/s, and why, in one clause.

    pool: as in `core.kernel.Vf`.
    """

    vf: VfRef
    why: str
    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    pool: str = ""


def is_free(vf: Vf) -> bool:
    """Report whether an unallocated VF is free: on the host, without rates, and without faults."""
    return not foreign_reason(vf)


def foreign_reason(vf: Vf) -> str:
    """Describe in one clause why a VF without a receipt is foreign; empty for a free one."""
    if vf.unusable:
        return vf.unusable
    if vf.netdev is None:
        return "its netdev is in another network namespace, or no driver made one"
    if vf.min_tx_rate_mbps or vf.max_tx_rate_mbps:
        return f"rates that are not ours: min {vf.min_tx_rate_mbps}, max {vf.max_tx_rate_mbps} Mb/s"
    if vf.vlan:
        return f"VLAN {vf.vlan}, which is not ours"
    return ""


def foreign_vfs(hardware: Hardware, ledger: Ledger) -> tuple[ObservedForeignVf, ...]:
    """VFs that the ledger does not know but that someone moved away or rated, or that cannot be given."""
    allocated = _allocated_vfs(ledger)
    return tuple(
        ObservedForeignVf(
            vf=VfRef(pf.pci, vf.index),
            why=why,
            min_tx_rate_mbps=vf.min_tx_rate_mbps,
            max_tx_rate_mbps=vf.max_tx_rate_mbps,
            pool=vf.pool,
        )
        for pf in hardware.pfs
        for vf in pf.vfs
        if vf.index not in allocated.get(pf.pci, ()) and (why := foreign_reason(vf))
    )


def foreign_usage(hardware: Hardware, ledger: Ledger) -> dict[PciAddress, Used]:
    """Return the use of each PF by foreign VFs: their minimum rates are used bandwidth."""
    return use_by_foreign(hardware, foreign_vfs(hardware, ledger))


def use_by_foreign(hardware: Hardware, foreign_vfs: Iterable[ObservedForeignVf]) -> dict[PciAddress, Used]:
    """Return the use of each PF by these foreign VFs."""
    pfs = {pf.pci: pf for pf in hardware.pfs}
    usages: dict[PciAddress, list[Used]] = {}
    for foreign in foreign_vfs:
        pci = foreign.vf.pf
        pool_vfs = pfs[pci].pools()[foreign.pool] if foreign.pool else 0
        used = foreign_use(pfs[pci].rates, foreign.min_tx_rate_mbps, foreign.pool, pool_vfs)
        usages.setdefault(pci, []).append(used)
    return {pci: Used.joined(pf_usages) for pci, pf_usages in usages.items()}


def foreign_use(
    rates: RateAbility, min_tx_rate_mbps: int, pool: str = "", pool_vfs: int = EVERY_DEVICE
) -> Used:
    """Return the use of a PF by a foreign VF with this minimum rate.

    pool: as in `core.kernel.Vf`.
    pool_vfs: how many VFs of the PF that has.
    """
    mins = (min_tx_rate_mbps,) if min_tx_rate_mbps and rates.weights else ()
    if not pool:
        return Used(1, min_tx_rate_mbps, mins)
    return Used(0, min_tx_rate_mbps, mins, (DeviceUse(pool, pool_vfs, (min_tx_rate_mbps,), held_vfs=1),))


def used_locally(hardware: Hardware, ledger: Ledger) -> Mapping[PciAddress, Used]:
    """Return the use of each PF by the node's own knowledge."""
    return used_beside(foreign_usage(hardware, ledger), ledger, hardware.inventory(NodeName("")))


def used_beside(
    foreign: Mapping[PciAddress, Used], ledger: Ledger, inventory: Inventory
) -> Mapping[PciAddress, Used]:
    """Return the use of each PF by the ledger beside a use by foreign VFs."""
    return used_on_node(reported=ledger.allocations(), foreign=foreign, promised={}, inventory=inventory)


def used_for(use: PfUse, hardware: Hardware, used: Mapping[PciAddress, Used]) -> Mapping[PciAddress, Used]:
    """Return the use of each PF as pods of one way find it; the other way's part of a split PF is all in use.

    It is at least the real use, so that bandwidth is not given away twice if a link gets slower or the split
    changes.
    """
    found = dict(used)
    for pf in hardware.pfs:
        if pf.claims_mbps is None:
            continue
        current = found.get(pf.pci, NOTHING_USED)
        by_claims = mbps_by_claims(current)
        set_aside_mbps = (
            pf.claims_mbps - by_claims
            if use is PfUse.ANNOTATION
            else (pf.link_mbps or 0) - pf.claims_mbps - (current.mbps - by_claims)
        )
        if set_aside_mbps > 0:
            found[pf.pci] = current + Used(mbps=set_aside_mbps, set_aside_mbps=set_aside_mbps)
    return found


def mbps_by_claims(used: Used) -> int:
    """Return the part of a PF's use that ResourceClaims reserve, Mb/s."""
    return sum(sum(use.mins) for use in used.devices if use.resource == CLAIMS_POOL)
