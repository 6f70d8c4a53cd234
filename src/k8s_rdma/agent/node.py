"""The node: its kernel, its ledger, and the only code that changes either.

Blocking and confined to one thread (the agent's worker). An attachment takes three calls, `prepare`,
`move_to_pod` and `attach`, since addresses come from other programs in between; its state between them is on
disk. A failed scan never counts as an observation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from k8s_rdma.agent.observed_caps import CapFinding, ObservedCaps, restore_caps
from k8s_rdma.agent.release import attached_already, held_elsewhere, release, revert
from k8s_rdma.agent.scanner import Scanner
from k8s_rdma.agent.vf_homes import KnownHomes
from k8s_rdma.core.allocation import (
    NOBODYS,
    Scope,
    VfCandidate,
    candidates,
    choose_vfs,
    decide,
    inherited_placement,
    outstanding,
    sibling_pfs,
    with_gpus,
)
from k8s_rdma.core.claims import AllocatedClaim, exchanged, judge, prepared_interfaces, with_uses
from k8s_rdma.core.devices.held_vfs import held_interfaces
from k8s_rdma.core.devices.pools import Pool, in_pools
from k8s_rdma.core.devices.required_rdma import with_required_rdma
from k8s_rdma.core.expected_hardware import returned, with_allocations, with_rates, without_vfs
from k8s_rdma.core.ledger import (
    AllocatedInterface,
    Attachment,
    Ledger,
    LedgerClaim,
    Phase,
    Pod,
    PreparedInterface,
    Receipt,
)
from k8s_rdma.core.losses import SeenPfs
from k8s_rdma.core.placement import Placement, Rejection
from k8s_rdma.core.plan import Addressing, concerned, configurations, hand_over
from k8s_rdma.core.reprogramming import changes_caps, changing, judge_caps, judge_rates
from k8s_rdma.core.step import Step, VfRef
from k8s_rdma.core.vf_failures import FailedTry, VfFailures
from k8s_rdma.errors import K8sRdmaError, KernelError, MalformedError, Reason
from k8s_rdma.wire.adopt import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from k8s_rdma.agent.ledger_store import LedgerStore
    from k8s_rdma.agent.sandbox import Sandbox
    from k8s_rdma.core.kernel import Hardware, Kernel, LocatedVf, PodInterface, VfCounters
    from k8s_rdma.core.pf_selection import PfRule
    from k8s_rdma.core.request import Request
    from k8s_rdma.core.types import NodeName, PciAddress, PodUid

_TRIED = "tried for this pod in vain"

T = TypeVar("T")


def rejected(rejection: Rejection, pod: Pod) -> K8sRdmaError:
    """Make the failure of an ADD that the node cannot serve."""
    message = f"node {rejection.node}: cannot give pod {pod.full_name} its RDMA interfaces: "
    return K8sRdmaError(message + rejection.message_for(pod.namespace), reason=rejection.reason)


class UngivenError(KernelError):
    """A step failed that gives a pod its interfaces.

    failed: the interfaces that the step was for, and the kernel's error. undone: whether they are home again.
    """

    def __init__(self, error: KernelError, failed: FailedTry) -> None:
        super().__init__(error.message, reason=error.reason, details=error.details)
        self.failed = failed
        self.undone = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceHolder:
    """The pod that has a VF, and the name of its interface."""

    pod: Pod
    ifname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The outcome of a VF's adoption, with its reason."""

    candidate: VfCandidate
    outcome: Outcome
    why: str


class Node:
    """One node's devices and their allocation.

    placements: those known of the node's bound, unfinished pods, which no other pod gets; set whenever more
        are known.
    caps: the state of caps that software enforces; see `restore_caps`.
    homes: the state of VFs at home, and failures to bring them there.
    addresses: of attachments by interface, with prefix lengths; only those made by this process.
    failures: of VFs that could not be given; changed on the worker's thread.
    ledger_store: the ledger, on disk and in memory.
    """

    def __init__(  # noqa: PLR0913 - all that a node is made of
        self,
        *,
        name: NodeName,
        kernel: Kernel,
        ledger_store: LedgerStore,
        boot_id: str,
        pools: Sequence[Pool] = (),
        rules: Sequence[PfRule] = (),
        require_rdma: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Scan the hardware, without a change (see `unfinished`).

        pools: the VFs of exclusive resources. rules: which PFs are for ResourceClaims.
        require_rdma: whether a VF without an RDMA device is unusable, if its PF has one. now: seconds.
        """
        self.name = name
        self._kernel = kernel
        self._boot_id = boot_id
        self._pools = pools
        self.rules = rules
        self._require_rdma = require_rdma
        self._seen_pfs = SeenPfs()
        self._now = now
        self.failures = VfFailures()
        self.scanner = Scanner(kernel, self._classified)
        self.ledger_store = ledger_store
        self.placements: Mapping[PodUid, Placement] = {}
        self.caps = ObservedCaps()
        self.homes = KnownHomes(kernel)
        self.addresses: dict[Attachment, Mapping[str, tuple[str, ...]]] = {}
        self.hardware: Hardware = self.scanner.scan()
        ledger_store.mark_all()
        ledger_store.deferred_deletes.load()

    @property
    def ledger(self) -> Ledger:
        """The current ledger."""
        return self.ledger_store.ledger

    def _classified(self, hardware: Hardware) -> Hardware:
        if self._require_rdma:
            hardware = with_required_rdma(hardware)
        hardware = self._seen_pfs.with_losses(in_pools(hardware, self._pools))
        return self._with_failures(with_uses(hardware, self.rules, self.ledger))

    def _with_failures(self, hardware: Hardware) -> Hardware:
        return self.failures.mark(hardware, self._now())

    def prepare_claim(
        self, claim: AllocatedClaim, *, scan: bool = True, instead: bool = False
    ) -> LedgerClaim | Rejection:
        """Prepare VFs for a claim and record that on disk; the kernel stays as it is.

        scan: whether the hardware is scanned again before a refusal. instead: whether these VFs replace
            those that the claim has.
        K8sRdmaError (`UNREADABLE_NODE`) when its PFs could not be read, LedgerError when it is not recorded.
        """
        ledger = self.ledger.without_claim(claim.uid) if instead else self.ledger
        prepared = self._decided(None, lambda: judge(claim, self.name, self.hardware, ledger), scan=scan)
        if not isinstance(prepared, Rejection):
            self.ledger_store.prepare_claim(prepared, claim.consumers)
        return prepared

    def refresh(self) -> bool:
        """Scan the hardware again. Returns whether anything differs from before.

        The last observation stands while the kernel cannot be queried; see `Scanner.look_again`.
        """
        previous, self.hardware = self.hardware, self.scanner.look_again(self.hardware)
        return previous != self.hardware

    def review_failures(self) -> bool:
        """Let VFs whose time is over be tried again. Returns whether any is."""
        previous, self.hardware = self.hardware, self._with_failures(self.hardware)
        return previous != self.hardware

    def note_tries(
        self, tries: Sequence[FailedTry], interfaces: Sequence[AllocatedInterface], pod: PodUid
    ) -> tuple[VfRef, ...]:
        """Note the VFs that an ADD tried in vain; return those that are set aside by that.

        interfaces: those that the pod got in the end, if any.
        """
        aside = self.failures.note(tries, interfaces, pod, self._now())
        self.hardware = self._with_failures(self.hardware)
        return aside

    def prepare(
        self,
        sandbox: Sandbox,
        request: Request,
        promised: Placement | None,
        *,
        inherited: Collection[Attachment] = (),
    ) -> Receipt | Rejection:
        """Choose VFs and record them on disk; the kernel stays as it is.

        request, promised: the attachment's part of the pod's. Without any interface in it, the receipt
            records the delegate alone, and no hardware is needed.
        inherited: attachments of the pod's earlier sandboxes, released (`detach` and what follows) but not
            forgotten. One write replaces them by the new receipt, so that no other pod gets their VFs; if
            it fails, they stay.

        K8sRdmaError (`HELD_BY_OLDER_SANDBOX`) when the pod holds interfaces in another sandbox: a pod gets
        its interfaces once, however many sandboxes ask at the same time.
        """
        sandbox = self._with_exchanged(sandbox)
        ledger = self.ledger.without_attachments(*inherited)
        self._require_once(sandbox, ledger)
        interfaces: tuple[AllocatedInterface, ...] | Rejection = ()
        if request:
            older = [self.ledger.receipts[attachment] for attachment in inherited]
            only, part = sandbox.annotated(request)
            promised = promised or inherited_placement(self.name, part, only.entries, older)
            required = None if sandbox.devices else promised
            choose = partial(self._choose, sandbox, request, promised, ledger)
            interfaces = self._decided(required, choose)
        if isinstance(interfaces, Rejection):
            return interfaces
        noted = self.homes.noted(interfaces)
        receipt = sandbox.receipt(noted, phase=Phase.PREPARED, boot_id=self._boot_id)
        receipt = replace(receipt, generation=promised.generation if promised else 0)
        self.ledger_store.prepare(receipt, ledger, inherited)
        for attachment in inherited:
            self.addresses.pop(attachment, None)
        return receipt

    def _with_exchanged(self, sandbox: Sandbox) -> Sandbox:
        """Exchange VFs of claims that are set aside or avoided, if there are others; on disk from here on."""
        self.hardware = self._with_failures(self.hardware)
        hardware = without_vfs(self.hardware, sandbox.avoided, _TRIED)
        aside = {VfRef(pf.pci, vf.index) for pf in hardware.pfs for vf in pf.vfs if vf.set_aside}
        if aside.isdisjoint(interface.vf for interface in sandbox.claimed.values()):
            return sandbox
        instead: dict[VfRef, PreparedInterface] = {}
        mine = (claim for claim in self.ledger.claims.values() if claim.pod.uid == sandbox.pod.uid)
        for claim in exchanged(mine, aside, hardware, self.ledger):
            former = self.ledger.claims[claim.uid]
            self.ledger_store.prepare_claim(claim)
            instead |= {old.vf: new for old, new in zip(former.interfaces, claim.interfaces, strict=True)}
        claimed = {index: instead.get(old.vf, old) for index, old in sandbox.claimed.items()}
        return replace(sandbox, claimed=claimed)

    def _require_once(self, sandbox: Sandbox, ledger: Ledger) -> None:
        """Raise K8sRdmaError when the pod already has any of the requested interfaces."""
        for receipt in ledger.of_pod(sandbox.pod.uid):
            if receipt.interfaces and receipt.attachment.container != sandbox.attachment.container:
                raise held_elsewhere(receipt)
            for interface in receipt.interfaces:
                if interface.entry in sandbox.entries:
                    raise attached_already(receipt, interface)

    def _decided(
        self, promised: Placement | None, decide: Callable[[], T | Rejection], *, scan: bool = True
    ) -> T | Rejection:
        """Decide by the hardware as it is now; errors as `_require_seen`. scan: again before a refusal."""
        if self.scanner.incomplete:
            self.refresh()
        self._require_seen(promised)
        decision = decide()
        if isinstance(decision, Rejection) and scan and self.refresh():
            decision = decide()  # the refusal was of an earlier state
        return self._qualified(decision) if isinstance(decision, Rejection) else decision

    def _with_claimed(
        self, sandbox: Sandbox, request: Request, promised: Placement | None, ledger: Ledger
    ) -> tuple[AllocatedInterface, ...] | Rejection:
        """Choose the interfaces of the annotation, and take those of claims as prepared."""
        vfs = {interface.vf for interface in ledger.prepared_for(sandbox.pod.uid)}
        if any(interface.vf not in vfs for interface in sandbox.claimed.values()):
            ended = "its ResourceClaim was unprepared meanwhile"
            return Rejection(node=self.name, reason=Reason.CONFLICT, message=ended)
        only, part = sandbox.annotated(request)
        chosen = self._choose(only, part, promised, ledger) if part else ()
        if isinstance(chosen, Rejection):
            return chosen
        named = [
            (interface, sandbox.ifnames[index], sandbox.entries[index])
            for index, interface in sandbox.claimed.items()
        ]
        hardware = without_vfs(self.hardware, sandbox.avoided, _TRIED)
        claimed = prepared_interfaces(named, self.name, hardware, ledger)
        if isinstance(claimed, Rejection):
            return claimed
        by_entry = {interface.entry: interface for interface in (*chosen, *claimed)}
        return tuple(by_entry[entry] for entry in sandbox.entries)

    def _require_seen(self, promised: Placement | None) -> None:
        """Raise K8sRdmaError (`UNREADABLE_NODE`) when the promised PFs could not be read."""
        if self.scanner.error:
            msg = f"node {self.name}: its hardware cannot be looked at: {self.scanner.error}; try again"
            raise K8sRdmaError(msg, reason=Reason.UNREADABLE_NODE)
        missing = {interface.pf for interface in promised.interfaces} if promised else set()
        missing -= {pf.pci for pf in self.hardware.pfs}
        if missing and self.hardware.unreadable:
            msg = f"node {self.name}: PF {', '.join(sorted(missing))} is promised and could not be read"
            raise K8sRdmaError(msg, reason=Reason.UNREADABLE_NODE, details=self._unreadable())

    def _qualified(self, rejection: Rejection) -> Rejection:
        """Qualify the rejection of a node that was read in part only: there may be room in the rest."""
        if not self.hardware.unreadable:
            return rejection
        message = f"{rejection.message}; and not everything could be looked at: {self._unreadable()}"
        return replace(rejection, reason=Reason.UNREADABLE_NODE, message=message)

    def _unreadable(self) -> str:
        return "; ".join(f"{item.subject}: {item.why}" for item in self.hardware.unreadable)

    def _choose(
        self, sandbox: Sandbox, request: Request, promised: Placement | None, ledger: Ledger
    ) -> tuple[AllocatedInterface, ...] | Rejection:
        if sandbox.claimed:
            return self._with_claimed(sandbox, request, promised, ledger)
        hardware = without_vfs(self.hardware, sandbox.avoided, _TRIED)
        pending = outstanding(self.placements, ledger, requester=sandbox.pod.uid, entries=sandbox.entries)
        admitted = ledger.with_admitted(self.placements)
        if sandbox.devices:
            return held_interfaces(
                node=self.name,
                request=request,
                devices=sandbox.devices,
                hardware=hardware,
                ledger=ledger,
                promised=promised,
                admitted=admitted,
                outstanding=pending,
                ifnames=sandbox.ifnames,
                entries=sandbox.entries,
            )
        decision = decide(
            node=self.name,
            request=request,
            promised=promised,
            hardware=hardware,
            ledger=ledger,
            admitted=admitted,
            outstanding=pending,
            sibling_pfs=sibling_pfs(ledger, requester=sandbox.pod.uid, entries=sandbox.entries),
            gpus=sandbox.gpus,
        )
        if isinstance(decision, Rejection):
            return decision
        chosen = choose_vfs(decision, hardware, ledger, sandbox.ifnames, sandbox.entries)
        if isinstance(chosen, Rejection) or not sandbox.gpus:
            return chosen
        return with_gpus(chosen, request, sandbox.gpus)

    def move_to_pod(self, receipt: Receipt) -> None:
        """Move VFs to the pod, down and without addresses, since some IPAM plugins lease through them.

        UngivenError at the first step that fails; `detach` undoes the steps before it. A plain KernelError
        if the namespace is gone.
        """
        for step in hand_over(receipt):
            self._apply(step, receipt)
        self.hardware = with_allocations(self.hardware, receipt.interfaces)

    def attach(self, receipt: Receipt, addressing: Mapping[str, Addressing]) -> Receipt:
        """Bring the pod's interfaces up with these addresses; fails as `move_to_pod`."""
        for step in configurations(receipt, addressing):
            self._apply(step, receipt)
        self.addresses[receipt.attachment] = {ifname: entry[0] for ifname, entry in addressing.items()}
        return self.ledger_store.record(replace(receipt, phase=Phase.ATTACHED))

    def _apply(self, step: Step, receipt: Receipt) -> None:
        try:
            self._kernel.apply(step)
        except KernelError as error:
            interfaces = concerned(step, receipt)
            if not interfaces or not self._kernel.namespace_alive(receipt.netns):
                raise
            raise UngivenError(error, FailedTry(interfaces=interfaces, why=error.message)) from error

    def detach(self, receipt: Receipt) -> None:
        """Bring every VF of a receipt home, wherever its ADD stopped; the receipt stays until `forget`.

        After a reboot no change is left to undo: VFs and namespaces are new, even by the same name. Tries
        everything and fails as `release`.
        """
        releasing = replace(receipt, phase=Phase.RELEASING)
        self.ledger_store.note(releasing)
        self.caps.forget(receipt)
        if receipt.boot_id != self._boot_id:
            return
        try:
            released = release(releasing, self._kernel, self._scan)
        except KernelError as error:
            self.homes.failed(receipt.attachment, error)
            raise
        self.homes.returned(receipt.attachment, released)
        self.hardware = returned(self.hardware, released.interfaces)

    def keep_for_rates(self, attachment: Attachment) -> None:
        """Note that only rates are left of an attachment: its addresses are released as well."""
        self.ledger_store.note(replace(self.ledger.receipts[attachment], ipam=None, ipams=(), delegate=None))

    def forget(self, attachment: Attachment) -> None:
        """Drop the receipt: from here on the VFs may go to others."""
        self.ledger_store.forget(attachment)
        self.homes.forget_failure(attachment)
        self.addresses.pop(attachment, None)

    def change_rates(self, pod: PodUid, placement: Placement) -> tuple[Receipt, ...]:
        """Program the rates of a later generation of a pod's placement. Returns the receipts that it changed.

        No receipt changes while the pod is being attached or ended. K8sRdmaError if the change is refused or
        fails: then the rates are as before, or the receipts keep it until `undo_rate_change`.
        """

        def judge(receipts: Sequence[Receipt]) -> tuple[Receipt, ...] | Rejection:
            old = [receipt for receipt in receipts if receipt.is_outdated(placement.generation)]
            return judge_rates(old, placement, self.hardware, self.ledger)

        return self._reprogram(pod, placement, judge)

    def change_caps(self, pod: PodUid, caps: Mapping[VfRef, int]) -> tuple[Receipt, ...]:
        """Program other caps of interfaces by ResourceClaim; otherwise as `change_rates`."""
        return self._reprogram(
            pod, None, lambda receipts: judge_caps(receipts, caps, self.hardware, self.name)
        )

    def _reprogram(
        self,
        pod: PodUid,
        placement: Placement | None,
        judge: Callable[[Sequence[Receipt]], tuple[Receipt, ...] | Rejection],
    ) -> tuple[Receipt, ...]:
        self.undo_rate_change(pod)
        receipts = self.ledger.of_pod(pod)
        if any(map(self.is_unfinished, receipts)):
            return ()
        changed = self._decided(placement, lambda: judge(receipts))
        if isinstance(changed, Rejection):
            raise K8sRdmaError(changed.message, reason=changed.reason)
        if not changed:
            return ()
        steps = self._rate_steps(changed)
        self.ledger_store.record_together(changed)
        completed = tuple(receipt.completed() for receipt in changed)
        try:
            for step in steps:
                self._kernel.apply(step)
            self.ledger_store.record_together(completed)
        except K8sRdmaError as error:
            try:
                self.undo_rate_change(pod)
            except KernelError as failure:
                msg = f"{error.message}; the rates before could not be restored: {failure.message}"
                raise K8sRdmaError(msg, reason=error.reason, details=error.details) from failure
            raise
        self.hardware = with_rates(self.hardware, completed)
        return completed

    def undo_rate_change(self, pod: PodUid) -> None:
        """Restore the rates before an incomplete change. KernelError names what fails; the change stays."""
        interrupted = [
            receipt
            for receipt in self.ledger.of_pod(pod)
            if receipt.change is not None and not self.is_unfinished(receipt)
        ]
        revert(self._rate_steps(interrupted), self._kernel)
        self.hardware = with_rates(self.hardware, interrupted)
        for receipt in interrupted:
            self.ledger_store.note(replace(receipt, change=None))

    def _rate_steps(self, receipts: Sequence[Receipt]) -> tuple[Step, ...]:
        """The steps of the receipts' changes. KernelError if a namespace cannot be read."""
        located: dict[PciAddress, LocatedVf] = {}
        for receipt in filter(changes_caps, receipts):
            located |= self._kernel.located(receipt.netns)
        return changing(receipts, located)

    def restore_caps(self, attachment: Attachment) -> tuple[CapFinding, ...] | None:
        """Restore the caps of an attachment that software enforces; return those that did not hold.

        None for an incomplete attachment, or one whose sandbox is gone.
        """
        receipt = self.ledger.receipts.get(attachment)
        if receipt is None or receipt.phase is not Phase.ATTACHED or self.orphaned(receipt):
            return None
        findings = restore_caps(receipt, self._kernel)
        self.caps.note(receipt, findings)
        return findings

    def inspect_pod(self, receipt: Receipt) -> Mapping[str, PodInterface]:
        """Observe the interfaces in an attachment's namespace, by name. KernelError on failure."""
        return self._kernel.interfaces(receipt.netns)

    def announce(self, receipt: Receipt, addresses: Mapping[str, tuple[str, ...]]) -> None:
        """Announce the addresses (CIDR form) of an attachment's interfaces to their networks."""
        self._kernel.announce(receipt.netns, addresses)

    def traffic(self) -> tuple[tuple[VfCounters, InterfaceHolder | None], ...]:
        """Sample the counters of all VFs, with their holders. KernelError if they cannot be sampled."""
        holders = {
            interface.vf: (InterfaceHolder(pod=receipt.pod, ifname=interface.ifname), receipt.netns)
            for receipt in self.ledger.receipts.values()
            if receipt.phase is not Phase.PREPARED
            for interface in receipt.interfaces
        }
        counters = self._kernel.sample({vf: netns for vf, (_, netns) in holders.items()})
        return tuple((counter, holders.get(counter.vf, (None, None))[0]) for counter in counters)

    def adoptable(self, scope: Scope, in_use: Mapping[str, str] = NOBODYS) -> tuple[VfCandidate, ...]:
        """Scan for foreign VFs in scope; see `core.allocation.candidates`.

        MalformedError when there is no such VF, KernelError when the hardware cannot be read.
        """
        return candidates(self._scan(), self.ledger, scope, in_use)

    def adopt(self, foreign: VfCandidate, in_use: Mapping[str, str] = NOBODYS) -> Adopted:
        """Reset a foreign VF, if it still is unused by the latest observation.

        Resets one VF at a time, since each reads its PF several times, and no pod should wait for all.
        """
        scope = Scope(pf=foreign.ref.pf, vf=foreign.ref.index)
        try:
            [now] = candidates(self.hardware, self.ledger, scope, in_use)
            if now.exemption:
                return Adopted(candidate=now, outcome="left alone", why=now.exemption)
            self._kernel.reset(now.ref)
            self.failures.forget(now.ref)
        except (KernelError, MalformedError) as error:
            return Adopted(candidate=foreign, outcome="failed", why=str(error))
        return Adopted(candidate=now, outcome="reset", why=now.foreign)

    def unfinished(self) -> tuple[Receipt, ...]:
        """Find receipts that the reconciler must end, after repairs of the files that follow the ledger."""
        self.ledger_store.mend()
        return tuple(filter(self.is_unfinished, self.ledger.receipts.values()))

    def is_unfinished(self, receipt: Receipt) -> bool:
        """Report whether a receipt is incomplete, of another boot, without sandbox, or has a deferred DEL."""
        deferred = self.ledger_store.deferred_deletes.contains(receipt.attachment)
        return deferred or receipt.phase is not Phase.ATTACHED or self.orphaned(receipt)

    def orphaned(self, receipt: Receipt) -> bool:
        """Report whether the sandbox of a receipt no longer exists."""
        return receipt.boot_id != self._boot_id or not self._kernel.namespace_alive(receipt.netns)

    def _scan(self) -> Hardware:
        """Scan the hardware; the last observation stands after a KernelError."""
        self.hardware = self.scanner.scan()
        return self.hardware
