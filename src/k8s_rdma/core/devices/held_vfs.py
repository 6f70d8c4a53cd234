"""The VFs of a pod that holds exclusive devices: just those that kubelet gave it, with the rates it asks for.

kubelet has chosen the devices. The pod gets all of them, or the request is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.allocation import allocated, foreign_reason, used_for, used_locally
from k8s_rdma.core.mention import Mention, pod_mention
from k8s_rdma.core.pf_needs import is_chosen, meets, unmet
from k8s_rdma.core.pf_use import NOTHING_USED, Used, total
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, fits, usage_of
from k8s_rdma.core.programming import demand, objection
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import NodeName, PciAddress, PfUse
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.inventory import Inventory
    from k8s_rdma.core.kernel import Hardware, PfState, Vf
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Pod
    from k8s_rdma.core.request import Request


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device of an exclusive resource that kubelet gave a pod.

    id: the RDMA device's name, or its function's PCI address.
    """

    resource: str
    id: str

    def __str__(self) -> str:
        """Return id and resource."""
        return f"{self.id} of {self.resource}"


class HeldVf(NamedTuple):
    """A VF that is a held device, with its PF."""

    pf: PfState
    vf: Vf

    @property
    def ref(self) -> VfRef:
        """The VF's reference."""
        return VfRef(self.pf.pci, self.vf.index)


def vfs_by_device(hardware: Hardware, ledger: Ledger) -> dict[str, HeldVf]:
    """Map VFs by the names that their RDMA devices have on the host, and by PCI address.

    ledger: knows the VFs of pods, whose RDMA devices may be missing from the host's namespace.
    """
    found: dict[str, HeldVf] = {}
    for pf in hardware.pfs:
        for vf in pf.vfs:
            for name in (vf.pci, vf.rdma_device or vf.pci):
                found.setdefault(name, HeldVf(pf, vf))
    for receipt in ledger.receipts.values():
        for interface in receipt.interfaces:
            if interface.pci in found and interface.rdma_device:
                found.setdefault(interface.rdma_device, found[interface.pci])
    return found


def of_pf(device_id: str, hardware: Hardware) -> bool:
    """Report whether it is a PF's, which containers may use and which no pod is given as an interface."""
    return any(device_id in (pf.pci, pf.rdma_device) for pf in hardware.pfs)


def held_interfaces(  # noqa: PLR0913 - all that it rests on
    *,
    node: NodeName,
    request: Request,
    devices: Sequence[HeldDevice],
    hardware: Hardware,
    ledger: Ledger,
    promised: Placement | None,
    outstanding: Iterable[PlacedInterface],
    ifnames: Sequence[str],
    entries: Sequence[int],
    admitted: Ledger | None = None,
) -> tuple[AllocatedInterface, ...] | Rejection:
    """Return an interface for each device, with the request's rates in their order.

    promised: the pod's promise; it does not count if kubelet chose other PFs or pools than it has.
    outstanding: interfaces that others were promised and do not hold yet; a pod without a promise must leave
        their rates free.
    admitted: as in `core.allocation.decide`.
    ifnames, entries: as in `core.allocation.choose_vfs`.
    `UNKNOWN_DEVICE` for a device that is no VF of its resource here.
    `CONFLICT` while another pod still has it.
    `INSUFFICIENT` if it is not available, or there is not enough bandwidth.
    `EXCEEDS_CAPACITY`, `NO_SUCH_PF` and `DRIVER_REFUSES` as in a placement.
    """
    by_device, holders = vfs_by_device(hardware, ledger), ledger.holders()
    found = [by_device.get(device.id) for device in devices]
    for device, held_vf in zip(devices, found, strict=True):
        holder = holders.get(held_vf.ref) if held_vf else None
        refused = _refused(device, held_vf, ledger.receipts[holder].pod if holder else None)
        if refused is not None:
            rejection = _rejection(node, *refused)
            mentions = (_mention(ledger.receipts[holder].pod),) if holder else ()
            return replace(rejection, mentions=mentions)
    vfs = [held_vf for held_vf in found if held_vf is not None]
    placed = tuple(
        PlacedInterface(
            pf=held_vf.pf.pci,
            min_tx_rate_mbps=interface.min_tx_rate_mbps,
            max_tx_rate_mbps=interface.max_tx_rate_mbps,
            enforce=interface.enforce,
            options=interface.options,
            pool=held_vf.vf.pool,
        )
        for held_vf, interface in zip(vfs, request.interfaces, strict=True)
    )
    inventory = hardware.inventory(node)
    foreseen = _foreseen(placed, promised)
    beside = ledger if foreseen or admitted is None else admitted
    used = used_for(PfUse.ANNOTATION, hardware, used_locally(hardware, beside))
    if not foreseen:
        used = total(used, usage_of(outstanding, inventory))
    if not fits(placed, inventory, used):
        return _rejection(node, *_why_not(placed, inventory, used))
    pfs = [inventory.pf(held_vf.pf.pci) for held_vf in vfs]
    return tuple(
        allocated(held_vf.vf, pf, place, ifname, entry)
        for held_vf, pf, place, ifname, entry in zip(vfs, pfs, placed, ifnames, entries, strict=True)
        if pf is not None
    )


def _refused(device: HeldDevice, held_vf: HeldVf | None, holder: Pod | None) -> tuple[Reason, str] | None:
    """Return the reason why the pod cannot have the device now, at any rate, if there is one."""
    if held_vf is None:
        return Reason.UNKNOWN_DEVICE, f"device {device}, which kubelet gave the pod, is no VF of this node"
    vf = f"device {device}: VF {held_vf.vf.index} of PF {held_vf.pf.name}"
    if held_vf.vf.pool != device.resource:
        owner = held_vf.vf.pool or "those who ask by annotation"
        return (
            Reason.UNKNOWN_DEVICE,
            f"{vf} is for {owner}, by the device plugin's file as the agent knows it",
        )
    if holder is not None:
        why = f"{vf} is still held by {_mention(holder).text}; try again when that has ended"
        return Reason.CONFLICT, why
    why = foreign_reason(held_vf.vf)
    return (Reason.INSUFFICIENT, f"{vf} cannot be given: {why}") if why else None


def _mention(holder: Pod) -> Mention:
    return pod_mention(holder.namespace, holder.name)


def _foreseen(placed: Iterable[PlacedInterface], promised: Placement | None) -> bool:
    """Report whether the promise has these PFs and pools: the file of pools may have changed since."""
    pools = {(interface.pf, interface.pool) for interface in promised.interfaces} if promised else set()
    return all((place.pf, place.pool) in pools for place in placed)


def _why_not(
    placed: Sequence[PlacedInterface], inventory: Inventory, used: Mapping[PciAddress, Used]
) -> tuple[Reason, str]:
    for interface in placed:
        pf = inventory.pf(interface.pf)
        request = interface.as_request()
        if pf is not None and not meets(pf, request.needs):
            chosen = is_chosen(pf, request.needs)
            reason = Reason.DRIVER_REFUSES if chosen else Reason.NO_SUCH_PF
            return reason, f"PF {pf.name}: {unmet(pf, request.needs)}"
        if pf is not None and (why := objection(pf, request)):
            return Reason.DRIVER_REFUSES, f"PF {pf.name}: {why}, and {demand(pf, request)}"
    for pci, additional in usage_of(placed, inventory).items():
        pf, current = inventory.pf(pci), used.get(pci, NOTHING_USED)
        if pf is None or not additional.mbps:
            continue
        after, link = current + additional, pf.link_mbps
        needs = f"the pod's devices are VFs of PF {pf.name} and need {additional.mbps} Mb/s there"
        if link is None:
            return Reason.INSUFFICIENT, f"{needs}; its link speed is unknown (link down?)"
        if additional.mbps > link:
            return Reason.EXCEEDS_CAPACITY, f"{needs}; its link has {link}"
        if after.mbps > link:
            return Reason.INSUFFICIENT, f"{needs}; {max(0, link - current.mbps)} of {link} are unreserved"
    driver = next(pf.driver for pf in inventory.pfs if any(pf.pci == place.pf for place in placed))
    why = f"minimum rates of {driver} are weights, by which some VF would get less than is reserved for it"
    return Reason.INSUFFICIENT, why


def _rejection(node: NodeName, reason: Reason, message: str) -> Rejection:
    return Rejection(node=node, reason=reason, message=message)
