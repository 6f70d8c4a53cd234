"""Ledger: the receipts of a node's allocations, its prepared ResourceClaims, and queries on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from typing import NewType

from k8s_rdma.core.devices.pod_devices import SlotInUse
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import NetnsRef, VfConfig, VfHome, VfRate, VfRef
from k8s_rdma.core.types import ContainerId, Enforce, PciAddress, PodUid, VfDriver
from k8s_rdma.errors import LedgerError

ClaimUid = NewType("ClaimUid", str)
"""The UID of a ResourceClaim."""


@unique
class Phase(StrEnum):
    """The progress of an attachment.

    PREPARED: the receipt is on disk, the kernel may have been changed in part; undone at the next start.
    ATTACHED: everything holds.
    RELEASING: being new_slots back; completed at the next start.
    """

    PREPARED = "prepared"
    ATTACHED = "attached"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True, order=True)
class Attachment:
    """The subject of a CNI ADD and DEL (CNI specification 1.1.0, section 2); unique on a node.

    network: the network configuration's name.
    """

    network: str
    container: ContainerId
    ifname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod by name and UID."""

    namespace: str
    name: str
    uid: PodUid

    @property
    def full_name(self) -> str:
        """The name with its namespace, `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedInterface:
    """A VF given to a pod, and its state before; rates in Mb/s, 0 as in `InterfaceRequest`.

    pci: the VF's own address.
    entry: its index in the pod's request.
    options: as requested.
    config, previous: the settings that the PF is to hold for it besides rates, and its former values of
        these; None if no setting was requested.
    kernel_driver: its driver at home; empty in receipts of agents that gave netdevs only.
    rdma_device: its name at home, if it has one.
    pool: the exclusive resource whose device it is; empty if it was requested by annotation.
    set_min_tx_rate_mbps, set_max_tx_rate_mbps: the rates programmed on it; None in receipts of agents that
        programmed the requested rates.
    software_max_tx_rate_mbps: the limit of its netdev's queueing discipline in the pod; 0 for no limit.
    gpu: the GPU to which it belongs, as kubelet has it; empty without one, or in receipts of agents
        that did not note it.
    """

    vf: VfRef
    pci: str
    ifname: str
    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    home: VfHome
    set_min_tx_rate_mbps: int | None = None
    set_max_tx_rate_mbps: int | None = None
    software_max_tx_rate_mbps: int = 0
    entry: int = 0
    enforce: Enforce = Enforce.AUTO
    options: InterfaceOptions = NO_OPTIONS
    config: VfConfig | None = None
    previous: VfConfig | None = None
    kernel_driver: str = ""
    rdma_device: str = ""
    pool: str = ""
    gpu: str = ""

    @property
    def mac(self) -> str:
        """The interface's MAC in the pod."""
        return self.options.mac or self.home.mac

    @property
    def is_netdev(self) -> bool:
        """Report whether the pod gets a network device, and not a PCI function."""
        return self.options.driver is VfDriver.KERNEL

    def uses_slot(self, slot: SlotInUse) -> bool:
        """Report whether it belongs to a slot of its pod; interfaces by claims have CDI devices."""
        return (
            self.pool != CLAIMS_POOL
            and slot.pool in ("", self.pool)
            and slot.one_device in ("", self.rdma_device, self.pci)
        )

    def rate(self) -> VfRate:
        """Return the rates programmed on its VF."""
        least, maximum = self.set_min_tx_rate_mbps, self.set_max_tx_rate_mbps
        return VfRate(
            self.vf.index,
            self.min_tx_rate_mbps if least is None else least,
            self.max_tx_rate_mbps if maximum is None else maximum,
        )

    def placed(self) -> PlacedInterface:
        """Return the interface as it counts on its PF: as programmed, if that is more than requested."""
        reserved = max(self.min_tx_rate_mbps, self.rate().min_tx_rate_mbps)
        return PlacedInterface(
            pf=self.vf.pf,
            min_tx_rate_mbps=reserved,
            max_tx_rate_mbps=self.max_tx_rate_mbps,
            pool=self.pool,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegatedPlugin:
    """The call of another plugin, kept so that it is undone with the same configuration.

    netconf: the configuration that it reads on stdin.
    plugin: its name.
    cni_path: the directories in which plugins are searched.
    cni_args: `CNI_ARGS` as the runtime gave them.
    """

    plugin: str
    netconf: bytes
    cni_path: str
    cni_args: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """A change of an attachment's rates while its pod runs.

    generation: of the placement that has these rates.
    interfaces: the receipt's, with the rates to program.
    """

    generation: int
    interfaces: tuple[AllocatedInterface, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of one attachment, written before the first change.

    boot_id: `/proc/sys/kernel/random/boot_id` of then. After another boot, the kernel keeps no changes.
    interfaces: empty if only `delegate` was called for the pod.
    ipam: for interfaces that name no network of their own.
    ipams: for interfaces that do, by that name, if the network gives addresses.
    delegate: the plugin that gives the pod its ordinary interface, if we called it.
    device_info_file: the file of the node that describes the pod's devices, if any.
    unanswered: interfaces for which another plugin's ADD failed or was not begun, so that it is not known to
        hold anything there; the delegate's is the attachment's own.
    slots: the slots that kubelet gave the pod's containers; each belongs to one sandbox at a time.
    generation: of the pod's placement whose rates are programmed.
    change: a change of rates that is under way; `interfaces` have the rates before it until it is complete.
    """

    attachment: Attachment
    pod: Pod
    netns: NetnsRef
    boot_id: str
    phase: Phase
    interfaces: tuple[AllocatedInterface, ...]
    ipam: DelegatedPlugin | None = None
    ipams: tuple[tuple[str, DelegatedPlugin | None], ...] = ()
    delegate: DelegatedPlugin | None = None
    device_info_file: str = ""
    unanswered: tuple[str, ...] = ()
    slots: tuple[SlotInUse, ...] = ()
    generation: int = 0
    change: RateChange | None = None

    def is_outdated(self, generation: int) -> bool:
        """Report whether it has interfaces with rates of an earlier generation of its pod's placement."""
        return bool(self.interfaces) and self.generation < generation

    def completed(self) -> Receipt:
        """Return the receipt with the rates and the generation of its change."""
        if self.change is None:
            return self
        change = self.change
        return replace(self, interfaces=change.interfaces, generation=change.generation, change=None)

    def placed(self) -> tuple[PlacedInterface, ...]:
        """Return the interfaces as they count on their PFs: during a change, with the larger reservation."""
        if self.change is None:
            return tuple(interface.placed() for interface in self.interfaces)
        return tuple(
            max(interface.placed(), target.placed(), key=lambda placed: placed.min_tx_rate_mbps)
            for interface, target in zip(self.interfaces, self.change.interfaces, strict=True)
        )

    def with_admitted(self, placement: Placement) -> Receipt:
        """Return the receipt with each interface's larger reservation, its own or the placement's."""
        mins_mbps = {
            (placed.entry_at(index), placed.pf): placed.min_tx_rate_mbps
            for index, placed in enumerate(placement.interfaces)
        }
        interfaces = (
            replace(
                interface,
                min_tx_rate_mbps=max(
                    counted.min_tx_rate_mbps, mins_mbps.get((interface.entry, interface.vf.pf), 0)
                ),
            )
            for interface, counted in zip(self.interfaces, self.placed(), strict=True)
        )
        return replace(self, interfaces=tuple(interfaces), change=None)

    @property
    def network(self) -> str:
        """The network's name."""
        return self.attachment.network

    @property
    def all_ipams(self) -> tuple[DelegatedPlugin, ...]:
        """The IPAM plugins of all its networks."""
        return tuple(ipam for ipam in (self.ipam, *dict(self.ipams).values()) if ipam is not None)

    def ipam_of(self, interface: AllocatedInterface) -> DelegatedPlugin | None:
        """Return the IPAM plugin of an interface, if it has one."""
        if not interface.is_netdev:
            return None
        return dict(self.ipams).get(interface.options.network, self.ipam)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedInterface:
    """A VF prepared for one result of a claim's allocation.

    request: the claim's, with a subrequest behind a slash.
    device: the PF by its name in the ResourceSlice.
    share_id: of the allocation.
    vf, pci, rdma_device: the VF, its address, and its RDMA device by name at home.
    placed: the interface as it counts on the PF.
    class_cap_mbps: the greatest cap that its DeviceClass allows, 0 for any; it limits the caps of a running
        pod as well.
    """

    request: str
    device: str
    share_id: str
    vf: VfRef
    pci: str
    placed: PlacedInterface
    rdma_device: str = ""
    class_cap_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClaim:
    """The VFs prepared for a ResourceClaim's pod, from NodePrepareResources to NodeUnprepareResources.

    pod_claim: the claim's name in the pod's `spec.resourceClaims`.
    memlock, memlock_required: as in `core.devices.pod_devices.SlotInUse`.
    from_template: whether the claim was made from a ResourceClaimTemplate.
    """

    uid: ClaimUid
    namespace: str
    name: str
    pod: Pod
    pod_claim: str
    interfaces: tuple[PreparedInterface, ...]
    memlock: int = 0
    memlock_required: bool = False
    from_template: bool = False

    def device_names(self) -> tuple[str, ...]:
        """Return the names of the interfaces' CDI devices: unique on the node, and never reused."""
        counts = Counter(interface.request for interface in self.interfaces)
        numbers: Counter[str] = Counter()
        names = []
        for request in (interface.request for interface in self.interfaces):
            numbers[request] += 1
            number = f".{numbers[request]}" if counts[request] > 1 else ""
            names.append(f"{self.uid}.{request.replace('/', '.')}{number}")
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The receipts and prepared claims of a node. Immutable: a change is a new ledger."""

    receipts: Mapping[Attachment, Receipt] = field(default_factory=dict)
    claims: Mapping[ClaimUid, LedgerClaim] = field(default_factory=dict)

    def with_claim(self, claim: LedgerClaim) -> Ledger:
        """Add or replace a prepared claim. LedgerError if another pod or claim has one of its VFs."""
        prepared = self.without_claim(claim.uid).prepared_vfs()
        for interface in claim.interfaces:
            holder = self.holder_beside(interface.vf, claim.pod.uid)
            if holder is not None or interface.vf in prepared:
                msg = (
                    f"VF {interface.vf.index} of PF {interface.vf.pf} is in use, cannot be prepared for "
                    f"claim {claim.namespace}/{claim.name}"
                )
                raise LedgerError(msg)
        return replace(self, claims={**self.claims, claim.uid: claim})

    def without_claim(self, uid: ClaimUid) -> Ledger:
        """Return the ledger without this prepared claim, if there is one."""
        claims = {key: claim for key, claim in self.claims.items() if key != uid}
        return replace(self, claims=claims)

    def prepared_for(self, uid: PodUid) -> tuple[PreparedInterface, ...]:
        """Return the interfaces prepared for a pod by its claims, ordered by the pod's names for these."""
        claims = [claim for claim in self.claims.values() if claim.pod.uid == uid]
        claims.sort(key=lambda claim: (claim.pod_claim, claim.name))
        return tuple(interface for claim in claims for interface in claim.interfaces)

    def prepared_vfs(self) -> dict[VfRef, LedgerClaim]:
        """Return the claim of each VF that is prepared for one."""
        return {interface.vf: claim for claim in self.claims.values() for interface in claim.interfaces}

    def holder_beside(self, vf: VfRef, pod: PodUid) -> Receipt | None:
        """Return the receipt of another pod that holds a VF."""
        holder = self.holders().get(vf)
        receipt = self.receipts[holder] if holder is not None else None
        return None if receipt is None or receipt.pod.uid == pod else receipt

    def generations(self) -> dict[PodUid, int]:
        """Return the latest generation of each pod's rates."""
        result: dict[PodUid, int] = {}
        for receipt in self.receipts.values():
            result[receipt.pod.uid] = max(receipt.generation, result.get(receipt.pod.uid, 0))
        return result

    def with_admitted(self, placements: Mapping[PodUid, Placement]) -> Ledger:
        """Return the ledger as if the raises that are admitted were programmed already.

        placements: of pods; they count if they are of later generations than the pods' rates here.
        """
        ledger = self
        for receipt in self.receipts.values():
            placement = placements.get(receipt.pod.uid)
            if placement is not None and receipt.is_outdated(placement.generation):
                ledger = ledger.with_receipt(receipt.with_admitted(placement))
        return ledger

    def with_receipt(self, receipt: Receipt) -> Ledger:
        """Add or replace a receipt. LedgerError when something else has one of its VFs."""
        prepared = self.prepared_vfs()
        holders = self.holders()
        for interface in receipt.interfaces:
            holder = holders.get(interface.vf, receipt.attachment)
            if holder != receipt.attachment:
                msg = (
                    f"VF {interface.vf.index} of PF {interface.vf.pf} is held by container "
                    f"{holder.container}, cannot go to container {receipt.attachment.container}"
                )
                raise LedgerError(msg)
            claim = prepared.get(interface.vf)
            if claim is not None and claim.pod.uid != receipt.pod.uid:
                is_readable = claim.namespace == receipt.pod.namespace  # the pod's owner reads it
                owner = f"claim {claim.namespace}/{claim.name}"
                msg = (
                    f"VF {interface.vf.index} of PF {interface.vf.pf} is prepared for "
                    f"{owner if is_readable else 'a claim of another namespace'}, cannot go to container "
                    f"{receipt.attachment.container}"
                )
                raise LedgerError(msg)
        return replace(self, receipts={**self.receipts, receipt.attachment: receipt})

    def without_attachments(self, *attachments: Attachment) -> Ledger:
        """Return the ledger without these attachments' receipts, if there are any."""
        receipts = {key: receipt for key, receipt in self.receipts.items() if key not in attachments}
        return replace(self, receipts=receipts)

    def losing_slots(self, new: Receipt) -> tuple[Receipt, ...]:
        """Receipts of other sandboxes that have slots of the new one, without these.

        Kubelet gives a slot on when its pod is over, which may be before the pod's DEL.
        """
        new_slots = {slot.device for slot in new.slots}
        return tuple(
            replace(receipt, slots=tuple(slot for slot in receipt.slots if slot.device not in new_slots))
            for receipt in self.receipts.values()
            if receipt.attachment.container != new.attachment.container
            and any(slot.device in new_slots for slot in receipt.slots)
        )

    def slots(self) -> dict[SlotInUse, tuple[AllocatedInterface, ...]]:
        """Return the interfaces of each slot: those of the sandbox that has it.

        A sandbox whose attachments are incomplete has no slot: interfaces that are being made or ended belong
        to no slot.
        """
        sandboxes: dict[ContainerId, list[AllocatedInterface]] = {}
        for receipt in self.receipts.values():
            if receipt.phase is Phase.ATTACHED:
                sandboxes.setdefault(receipt.attachment.container, []).extend(receipt.interfaces)
        return {
            slot: tuple(
                candidate
                for candidate in sandboxes.get(receipt.attachment.container, ())
                if candidate.uses_slot(slot)
            )
            for receipt in self.receipts.values()
            for slot in receipt.slots
        }

    def holders(self) -> dict[VfRef, Attachment]:
        """Return the attachment that holds each allocated VF."""
        return {
            interface.vf: receipt.attachment
            for receipt in self.receipts.values()
            for interface in receipt.interfaces
        }

    def interfaces_by_pf(self) -> dict[PciAddress, dict[int, AllocatedInterface]]:
        """Return the allocated interfaces of each PF by their VF's index.

        To look for each VF of a node by its `VfRef` takes ten times as long.
        """
        result: dict[PciAddress, dict[int, AllocatedInterface]] = {}
        for receipt in self.receipts.values():
            for interface in receipt.interfaces:
                result.setdefault(interface.vf.pf, {})[interface.vf.index] = interface
        return result

    def of_container(self, container: ContainerId) -> tuple[Receipt, ...]:
        """Return the receipts of one sandbox."""
        return tuple(receipt for key, receipt in self.receipts.items() if key.container == container)

    def of_pod(self, uid: PodUid) -> tuple[Receipt, ...]:
        """Return the receipts of one pod, of all its sandboxes."""
        return tuple(receipt for receipt in self.receipts.values() if receipt.pod.uid == uid)

    def allocations(self) -> dict[PodUid, tuple[PlacedInterface, ...]]:
        """Return the interfaces that each pod has, or that are prepared for it, if there are any."""
        result: dict[PodUid, tuple[PlacedInterface, ...]] = {}
        for receipt in self.receipts.values():
            if not receipt.interfaces:
                continue
            result[receipt.pod.uid] = result.get(receipt.pod.uid, ()) + receipt.placed()
        if self.claims:
            holders = self.holders()
            for vf, claim in self.prepared_vfs().items():
                if vf not in holders:
                    placed = tuple(interface.placed for interface in claim.interfaces if interface.vf == vf)
                    result[claim.pod.uid] = result.get(claim.pod.uid, ()) + placed
        return result
