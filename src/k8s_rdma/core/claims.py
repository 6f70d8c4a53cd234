"""ResourceClaims on a node: the PFs that are for them, the devices offered, and the judgement of a claim.

kube-scheduler chooses PFs and adds up the capacity that claims consume of each, but not without exception.
For example, two schedulers, a forged quantity or a pod deleted by force give a PF's bandwidth away twice. So
the node judges each claim by its own rule (`core.placement.fits`) before its pod starts, chooses VFs, and
prepares them for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.allocation import (
    allocated,
    foreign_reason,
    foreign_usage,
    is_free,
    mbps_by_claims,
    used_for,
    used_locally,
)
from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory
from k8s_rdma.core.kernel import Hardware, PfState, Vf
from k8s_rdma.core.ledger import AllocatedInterface, ClaimUid, Ledger, LedgerClaim, Pod, PreparedInterface
from k8s_rdma.core.macs import RequestedAddress, addresses_of, requests_of, taken_address
from k8s_rdma.core.pf_needs import unmet
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import PlacedInterface, Rejection, fits, usage_of
from k8s_rdma.core.programming import objection
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.round_robin import certain_mbps
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import NodeName, PciAddress, PfUse, PodUid
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


LEAST_PERCENT = 1
"""The percentage of a link that an interface reserves at least if minimum rates are weights, because a VF
without a reservation then has a share of up to this much as well (`core.programming`)."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def with_uses(hardware: Hardware, rules: Sequence[PfRule], ledger: Ledger) -> Hardware:
    """Put the VFs that are for claims into their pool, and divide the links of PFs that are split.

    rules: the first that matches a PF says its use. While pods have VFs of a PF for the other use, it takes
    no new pods in the new way, with a problem that says so.
    """
    if not ledger.claims and not any(rule.claims or rule.use is PfUse.CLAIMS for rule in rules):
        return hardware
    pfs, problems = [], [*hardware.problems]
    for observed in hardware.pfs:
        rule = _rule(observed, rules)
        pf, why_waits = _with_use(observed, rule, ledger)
        pfs.append(pf)
        problems += [*filter(None, [why_waits]), *_beyond(pf, rule)]
    return replace(hardware, pfs=tuple(pfs), problems=tuple(problems))


def _with_use(pf: PfState, rule: PfRule, ledger: Ledger) -> tuple[PfState, str]:
    """Return the PF with its VFs by use; also why it is not as the rule says yet, in a sentence."""
    shared = [vf.index for vf in pf.vfs if not vf.pool]
    claim_vfs = _claim_vfs(rule, shared)
    prepared = {vf.index for vf in ledger.prepared_vfs() if vf.pf == pf.pci}.intersection(shared)
    annotated = {
        interface.vf.index
        for receipt in ledger.receipts.values()
        for interface in receipt.interfaces
        if interface.vf.pf == pf.pci and not interface.pool
    }
    if not claim_vfs & annotated and prepared <= claim_vfs:
        return replace(_for_claims(pf, claim_vfs), claims_mbps=rule.claims.mbps if rule.claims else None), ""
    setting = "claims" if rule.claims else f"use: {rule.use}"
    holder = "ResourceClaim has VFs of it" if prepared - claim_vfs else "pod has VFs of it by annotation"
    why = f"PF {pf.name}: hardware.pfs[].{setting} waits until no {holder}"
    return (_for_claims(pf, {*shared} - annotated) if prepared else pf), why


def _claim_vfs(rule: PfRule, shared: Sequence[int]) -> set[int]:
    """Return the VFs, of those in no exclusive resource, that a rule has for claims."""
    if rule.claims is not None:
        return set(shared[-rule.claims.vfs :])
    return set(shared) if rule.use is PfUse.CLAIMS else set()


def _for_claims(pf: PfState, indexes: Collection[int]) -> PfState:
    vfs = (replace(vf, pool=CLAIMS_POOL) if vf.index in indexes else vf for vf in pf.vfs)
    return replace(pf, vfs=tuple(vfs))


def _beyond(pf: PfState, rule: PfRule) -> Iterator[str]:
    """Yield the parts that are larger than the PF: claims then have all of it."""
    shared = sum(vf.pool in {"", CLAIMS_POOL} for vf in pf.vfs)
    if rule.claims and rule.claims.vfs > shared:
        yield f"PF {pf.name}: hardware.pfs[].claims.vfs: {rule.claims.vfs} is more than its {shared} VFs"
    if rule.claims and pf.link_mbps is not None and rule.claims.mbps > pf.link_mbps:
        link = f"its link's {pf.link_mbps} Mb/s"
        yield f"PF {pf.name}: hardware.pfs[].claims.mbps: {rule.claims.mbps} is more than {link}"


def _rule(pf: PfState, rules: Sequence[PfRule]) -> PfRule:
    return next((rule for rule in rules if _matches(rule, pf)), PfRule())


def _matches(rule: PfRule, pf: PfState) -> bool:
    vendors = {pf.vendor, pf.vendor.partition(":")[0]}
    return (
        (not rule.names or not rule.names.isdisjoint((pf.name, *pf.altnames)))
        and (not rule.pcis or pf.pci in rule.pcis)
        and (not rule.vendors or bool(rule.vendors & vendors))
        and (not rule.drivers or pf.driver in rule.drivers)
        and (not rule.link_types or pf.link_type in rule.link_types)
    )


def claim_pfs(hardware: Hardware) -> dict[str, PfState]:
    """Map device names to PFs for claims: netdev names, or PCI addresses if those are not DNS labels."""
    found = {}
    for pf in hardware.pfs:
        if any(vf.pool == CLAIMS_POOL for vf in pf.vfs):
            valid = _LABEL.fullmatch(pf.name) and pf.name not in found
            found[pf.name if valid else "pci-" + re.sub("[:.]", "-", pf.pci)] = pf
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedInterface:
    """A result of a claim's allocation: an interface on a PF.

    request, device, share_id, class_cap_mbps: as in `core.ledger.PreparedInterface`.
    """

    request: str
    device: str
    share_id: str
    interface: InterfaceRequest
    class_cap_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A ResourceClaim that kube-scheduler allocated on this node; other fields as in `LedgerClaim`.

    consumers: all pods that it is reserved for.
    """

    uid: ClaimUid
    namespace: str
    name: str
    pod: Pod
    pod_claim: str
    interfaces: tuple[ClaimedInterface, ...]
    memlock: int = 0
    memlock_required: bool = False
    from_template: bool = False
    consumers: frozenset[PodUid] = frozenset()


def beyond_class_cap(cap_mbps: int, class_cap_mbps: int) -> str:
    """Describe how a cap exceeds the DeviceClass's; empty if it does not. Both in Mb/s, 0 for no cap."""
    if not class_cap_mbps or 0 < cap_mbps <= class_cap_mbps:
        return ""
    found = f"{cap_mbps} Mb/s" if cap_mbps else "0 (no cap)"
    return f"{found} is beyond the cap of the DeviceClass, {class_cap_mbps} Mb/s"


def claim_of(prepared: LedgerClaim) -> AllocatedClaim:
    """Return the claim whose VFs are prepared."""
    return AllocatedClaim(
        uid=prepared.uid,
        namespace=prepared.namespace,
        name=prepared.name,
        pod=prepared.pod,
        pod_claim=prepared.pod_claim,
        interfaces=tuple(
            ClaimedInterface(
                request=interface.request,
                device=interface.device,
                share_id=interface.share_id,
                interface=interface.placed.as_request(),
                class_cap_mbps=interface.class_cap_mbps,
            )
            for interface in prepared.interfaces
        ),
        memlock=prepared.memlock,
        memlock_required=prepared.memlock_required,
        from_template=prepared.from_template,
    )


def judge(
    claim: AllocatedClaim, node: NodeName, hardware: Hardware, ledger: Ledger
) -> LedgerClaim | Rejection:
    """Prepare VFs for a claim, or say why not.

    A claim that is prepared already gets its VFs again, with others for those that no longer exist.
    `CONFLICT` if it was prepared with other content.
    `INSUFFICIENT` if it fits once others have ended, for example a former pod of the same claim.
    Any other reason is permanent.
    """
    prepared = ledger.claims.get(claim.uid)
    if prepared is not None and not _is_same(prepared, claim):
        return _prepared_otherwise(prepared, claim, node)
    if prepared is not None and all(_vf(hardware, interface.vf) for interface in prepared.interfaces):
        return prepared
    pfs = claim_pfs(hardware)
    if unknown := [entry for entry in claim.interfaces if entry.device not in pfs]:
        why = f"device {unknown[0].device} of request {unknown[0].request} is no PF of this node for claims"
        return Rejection(node=node, reason=Reason.NO_SUCH_PF, message=why)
    placed = tuple(_placed(entry, pfs[entry.device].pci) for entry in claim.interfaces)
    inventory = hardware.inventory(node)
    parts = {pf.pci: pf.claims_mbps for pf in pfs.values() if pf.claims_mbps is not None}
    if (refusal := _refusal(claim, placed, inventory, parts)) is not None:
        return refusal
    used = used_for(PfUse.CLAIMS, hardware, used_locally(hardware, ledger.without_claim(claim.uid)))
    if not fits(placed, inventory, used):
        return _too_full(placed, inventory, used, parts)
    return _with_vfs(claim, placed, node, hardware, ledger)


def _prepared_otherwise(prepared: LedgerClaim, claim: AllocatedClaim, node: NodeName) -> Rejection:
    subject, former = f"claim {claim.namespace}/{claim.name}", prepared.pod
    if former.uid != claim.pod.uid:
        why = f"{subject} is prepared for pod {former.name} ({former.uid}), which has not ended"
        return Rejection(node=node, reason=Reason.INSUFFICIENT, message=why)
    why = f"{subject} was prepared with another allocation"
    return Rejection(node=node, reason=Reason.CONFLICT, message=why)


def _is_same(prepared: LedgerClaim, claim: AllocatedClaim) -> bool:
    """Report whether the VFs were prepared for this content of the claim."""
    contents = [
        (interface.request, interface.device, interface.share_id, interface.placed.as_request())
        for interface in prepared.interfaces
    ]
    allocated = [(entry.request, entry.device, entry.share_id, entry.interface) for entry in claim.interfaces]
    return prepared.pod == claim.pod and contents == allocated


def _address_refusal(
    interfaces: Sequence[PreparedInterface], node: NodeName, hardware: Hardware, ledger: Ledger
) -> Rejection | None:
    """Return the reason why an address that the claim asks for is not available, if there is one."""
    requested = (
        RequestedAddress(address, interface.vf, f"request {interface.request}")
        for interface in interfaces
        for address in addresses_of([interface.placed])
    )
    conflict = taken_address(requested, hardware, ledger)
    if conflict is None:
        return None
    reason = Reason.INSUFFICIENT if conflict.by_pod else Reason.CONFLICT
    return Rejection(node=node, reason=reason, message=conflict.why, mentions=conflict.mentions)


def _placed(entry: ClaimedInterface, pf: PciAddress) -> PlacedInterface:
    interface = entry.interface
    return PlacedInterface(
        pf=pf,
        min_tx_rate_mbps=interface.min_tx_rate_mbps,
        max_tx_rate_mbps=interface.max_tx_rate_mbps,
        enforce=interface.enforce,
        options=interface.options,
        pool=CLAIMS_POOL,
    )


def _refusal(
    claim: AllocatedClaim,
    placed: Sequence[PlacedInterface],
    inventory: Inventory,
    parts: Mapping[PciAddress, int],
) -> Rejection | None:
    """Return the reason why PFs refuse the claim even if they are empty, if they do.

    parts: the parts of the links of split PFs that are for claims, Mb/s.
    """
    for entry, place in zip(claim.interfaces, placed, strict=True):
        pf = inventory.pf(place.pf)
        why = (unmet(pf, entry.interface.needs) or objection(pf, entry.interface)) if pf is not None else ""
        if pf is not None and why:
            message = f"request {entry.request}: PF {pf.name}: {why}"
            return Rejection(node=inventory.node, reason=Reason.DRIVER_REFUSES, message=message)
    for pci, additional in usage_of(placed, inventory).items():
        pf = inventory.pf(pci)
        if pf is None or pf.link_mbps is None:
            continue
        whole = min(pf.link_mbps, parts.get(pci, pf.link_mbps))
        if additional.mbps > whole:
            owner = "its part for claims" if pci in parts else "its link"
            message = f"PF {pf.name}: the claim needs {additional.mbps} Mb/s; {owner} has {whole}"
            return Rejection(node=inventory.node, reason=Reason.EXCEEDS_CAPACITY, message=message)
    return None


def _too_full(
    placed: Sequence[PlacedInterface],
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    parts: Mapping[PciAddress, int],
) -> Rejection:
    """Return the refusal, with numbers, of a claim whose PFs have too little free.

    parts: as for `_refusal`.
    """
    whys = []
    for pci, additional in usage_of(placed, inventory).items():
        pf, current = inventory.pf(pci), used.get(pci, NOTHING_USED)
        if pf is None or not additional.mbps:
            continue
        needs = f"PF {pf.name}: the claim needs {additional.mbps} Mb/s"
        if pf.link_mbps is None:
            whys.append(f"{needs}; its link speed is unknown (link down?)")
        elif current.mbps + additional.mbps > pf.link_mbps:
            free = max(0, pf.link_mbps - current.mbps)
            whys.append(f"{needs}; {free} of {parts.get(pci, pf.link_mbps)} are unreserved")
    why = "; ".join(whys) or "minimum rates are weights, by which some VF would get less than its reservation"
    return Rejection(node=inventory.node, reason=Reason.INSUFFICIENT, message=why)


def _with_vfs(
    claim: AllocatedClaim,
    placed: Sequence[PlacedInterface],
    node: NodeName,
    hardware: Hardware,
    ledger: Ledger,
) -> LedgerClaim | Rejection:
    """Choose VFs: those prepared before that still exist, those that have the MAC, then by lowest index."""
    pfs = {pf.pci: pf for pf in hardware.pfs}
    prepared = ledger.claims.get(claim.uid)
    earlier = [interface.vf for interface in prepared.interfaces] if prepared else [None] * len(placed)
    existing = [vf if vf is not None and _vf(hardware, vf) else None for vf in earlier]
    in_use = {*ledger.holders(), *ledger.prepared_vfs()}
    free = {pci: list(_free_vfs(pfs[pci], in_use)) for pci in {place.pf for place in placed}}
    having = [
        _take_having(place, free[place.pf]) if ref is None else None
        for place, ref in zip(placed, existing, strict=True)
    ]
    interfaces = []
    for entry, place, ref, own in zip(claim.interfaces, placed, existing, having, strict=True):
        found = _vf(hardware, ref) if ref is not None else own
        vf = found or (free[place.pf].pop(0) if free[place.pf] and ref is None else None)
        if vf is None:
            pf = pfs[place.pf]
            count = sum(candidate.pool == CLAIMS_POOL for candidate in pf.vfs)
            why = f"PF {pf.name}: none of its {count} VFs for claims is free for request {entry.request}"
            return Rejection(node=node, reason=Reason.INSUFFICIENT, message=why)
        interfaces.append(_prepared(entry, place, vf))
    refusal = _address_refusal(interfaces, node, hardware, ledger.without_claim(claim.uid))
    return refusal or LedgerClaim(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        pod=claim.pod,
        pod_claim=claim.pod_claim,
        interfaces=tuple(interfaces),
        memlock=claim.memlock,
        memlock_required=claim.memlock_required,
        from_template=claim.from_template,
    )


def _take_having(place: PlacedInterface, free: list[Vf]) -> Vf | None:
    """Take the free VF that has the MAC which an interface asks for: another one could not have it beside."""
    mac = place.options.mac
    having = next((vf for vf in free if mac and mac in (vf.mac, vf.admin_mac)), None)
    if having is not None:
        free.remove(having)
    return having


def _prepared(entry: ClaimedInterface, place: PlacedInterface, vf: Vf) -> PreparedInterface:
    return PreparedInterface(
        request=entry.request,
        device=entry.device,
        share_id=entry.share_id,
        vf=VfRef(place.pf, vf.index),
        pci=vf.pci,
        placed=place,
        rdma_device=vf.rdma_device or "",
        class_cap_mbps=entry.class_cap_mbps,
    )


def _vf(hardware: Hardware, ref: VfRef) -> Vf | None:
    pf = hardware.pf(ref.pf)
    return pf.vf(ref.index) if pf else None


def _free_vfs(pf: PfState, in_use: Collection[VfRef]) -> Iterator[Vf]:
    """Yield the free VFs for claims: those that could not be given lately come last."""
    for vf in sorted(pf.vfs, key=lambda vf: vf.failures):
        if vf.pool == CLAIMS_POOL and VfRef(pf.pci, vf.index) not in in_use and is_free(vf):
            yield vf


def exchanged(
    claims: Iterable[LedgerClaim], vfs: Collection[VfRef], hardware: Hardware, ledger: Ledger
) -> tuple[LedgerClaim, ...]:
    """Return the claims prepared with any of these VFs, with other free VFs of the same PFs instead.

    A claim is left out if its PF has no other VF; it stays as it is. The pods of the claims must not have
    interfaces of them.
    """
    in_use = {*ledger.holders(), *ledger.prepared_vfs(), *vfs}

    def alternative(interface: PreparedInterface) -> PreparedInterface:
        pf = hardware.pf(interface.vf.pf)
        vf = next(_free_vfs(pf, in_use), None) if pf is not None and interface.vf in vfs else None
        if pf is None or vf is None:
            return interface
        ref = VfRef(pf.pci, vf.index)
        in_use.add(ref)
        return replace(interface, vf=ref, pci=vf.pci, rdma_device=vf.rdma_device or "")

    found = (replace(claim, interfaces=tuple(map(alternative, claim.interfaces))) for claim in claims)
    return tuple(claim for claim in found if claim != ledger.claims[claim.uid])


def prepared_interfaces(
    prepared: Sequence[tuple[PreparedInterface, str, int]],
    node: NodeName,
    hardware: Hardware,
    ledger: Ledger,
) -> tuple[AllocatedInterface, ...] | Rejection:
    """Return the interfaces of an ADD on VFs prepared for claims; `CONFLICT` if one cannot be given now.

    prepared: each with its name in the pod, and its entry in the pod's request.
    """
    inventory = hardware.inventory(node)
    interfaces = []
    for interface, ifname, entry in prepared:
        vf, pf = _vf(hardware, interface.vf), inventory.pf(interface.vf.pf)
        why = "it does not exist any more" if vf is None else foreign_reason(vf)
        if vf is None or pf is None or why:
            subject = (
                f"VF {interface.vf.index} of PF {interface.vf.pf}, prepared for request {interface.request}"
            )
            return Rejection(node=node, reason=Reason.CONFLICT, message=f"{subject}, cannot be given: {why}")
        interfaces.append(allocated(vf, pf, interface.placed, ifname, entry))
    if conflict := taken_address(requests_of(interfaces), hardware, ledger):
        return Rejection(node=node, reason=Reason.CONFLICT, message=conflict.why, mentions=conflict.mentions)
    return tuple(interfaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsOffer:
    """A PF for claims.

    name: of its device.
    mbps: the most that reservations may add up to.
    least_mbps: the least that each interface reserves.
    vfs: how many can be given, including those in use.
    link_up: whether it has carrier.
    """

    name: str
    pf: PfState
    mbps: int
    least_mbps: int
    vfs: int
    link_up: bool


def offers(
    hardware: Hardware, ledger: Ledger, last_links: Mapping[PciAddress, int], rules: Sequence[PfRule]
) -> tuple[ClaimsOffer, ...]:
    """Return the PFs that new claims may be on, by name; of one that is split, the part for claims.

    Those that wait for their former use to end are left out, and those without a VF or a known link speed.

    last_links: the last known speed of each link, Mb/s.
    """
    foreign, used = foreign_usage(hardware, ledger), used_locally(hardware, ledger)
    found = []
    for name, pf in sorted(claim_pfs(hardware).items()):
        waits = any(not vf.pool for vf in pf.vfs) or _rule(pf, rules).use is not PfUse.CLAIMS
        if pf.claims_mbps is None and waits:
            continue
        elsewhere = foreign.get(pf.pci, NOTHING_USED)
        link = pf.link_mbps or last_links.get(pf.pci, 0)
        vfs = sum(vf.pool == CLAIMS_POOL for vf in pf.vfs)
        vfs -= sum(use.held_vfs for use in elsewhere.devices if use.resource == CLAIMS_POOL)
        least_mbps = link * LEAST_PERCENT // 100 if pf.rates.weights else 0
        capacity_mbps = _capacity(pf, link, max(vfs, 1), least_mbps)
        current = used.get(pf.pci, NOTHING_USED)
        by_annotation = current.mbps - mbps_by_claims(current)  # of a PF for claims by exclusive devices
        mbps = capacity_mbps - by_annotation
        if pf.claims_mbps is not None:
            mbps = min(pf.claims_mbps, capacity_mbps, link - by_annotation)
        mbps -= mbps_by_claims(elsewhere)
        if vfs <= 0 or mbps < max(least_mbps, 1):
            continue  # the API server takes no capacity that is less than the start of its policy's range
        offer = ClaimsOffer(
            name=name, pf=pf, mbps=mbps, least_mbps=least_mbps, vfs=vfs, link_up=pf.link_mbps is not None
        )
        found.append(offer)
    return tuple(found)


def _capacity(pf: PfState, link_mbps: int, vfs: int, least_mbps: int) -> int:
    """Return the most that reservations may add up to; if they are weights, the sum that any of them keep."""
    if not pf.rates.weights or not least_mbps:
        return link_mbps
    return certain_mbps(link_mbps, pf.rates.weights, vfs, least_mbps)
