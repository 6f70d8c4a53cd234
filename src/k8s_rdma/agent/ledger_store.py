"""The ledger in memory, on disk, and in files shared with the CNI executable; changed here alone.

Blocking and confined to one thread (the agent's worker). Files in `<runDir>`:

`attachments/<container id>`: a file per container that has a receipt, or whose ADD is under way.
With the directory there and no file in it, a DEL succeeds at once, even while the agent is dead. So a
marker is there before the first change and after the last, and a missing directory has no meaning.

`claims/<pod UID>`: a file per pod with prepared ResourceClaims, so that the executable asks the agent
about its ADD, whatever its annotations. It is there before kubelet is answered, and goes with the last
of them; in a directory that exists if claims were ever prepared since the boot. It repeats the claims, so
that a lost ledger can be rebuilt. A pod with claims that are not prepared for it is refused, and its file
lists them until claims of these names are prepared for it, or it is gone. Such claims are another pod's, as
kubelet prepares a claim once, for the first of its pods; or kubelet has not unprepared them, so that it may
start the pod all the same. A claim that is known by its name alone is listed until kubelet unprepares it: a
later one may have that name.

`exclusive-devices`: there where pods may hold exclusive devices, which are attached to them though their
annotations do not ask for them. Then the agent is asked about every pod, or no pod starts.

`deletions/<container>:<interface>:<network>`: a DEL that no agent answered, left by the CNI executable
(`cni/deletion.c`). It is written atomically, and then the runtime gets a success. So the attachment
has ended as soon as the file exists, and the file stays until the DEL is carried out; its name identifies the
attachment.
The file's content, the call as `wire.cni_socket` has it, only helps: it brings the configuration of then.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import msgspec
import structlog

from k8s_rdma.core.types import ContainerId, PodUid
from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError, Reason, printable
from k8s_rdma.linux.atomic_file import write_file
from k8s_rdma.linux.receipts import ClaimMark, Receipts, decode_mark, encode_mark
from k8s_rdma.wire.cni_request import CniEnvironment, parse_environment
from k8s_rdma.wire.cni_socket import MAX_ENV_BYTES, MAX_STDIN_BYTES, REQUEST_HEADER, decode_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from k8s_rdma.core.ledger import (
        Attachment,
        ClaimUid,
        Ledger,
        LedgerClaim,
        PreparedInterface,
        Receipt,
    )


_log = structlog.get_logger()

_DELETIONS = "deletions that were left"

_CLAIM_MARKERS = ("markers of pods with claims",)

_MARKERS = ("markers of attached containers", "; the agent makes the directory anew when it is restarted")
"""The subject of a failure's message, and the advice if the file is missing."""

DIRECTORY = "deletions"
"""The directory of deferred DELs in `runDir`."""

CLAIMS_DIRECTORY = "claims"
"""The directory of markers of pods with prepared claims in `runDir`."""

DRAFT = "."
"""The prefix of files that the executable still writes; no container's ID begins with it."""

MAX_BYTES = REQUEST_HEADER.size + MAX_ENV_BYTES + MAX_STDIN_BYTES

EXCLUSIVE_DEVICES = "exclusive-devices"


class UnendedPodError(K8sRdmaError):
    """A claim is still prepared for a pod that the API server has no more, until its end on the node."""


class ClaimMarkers:
    """The directory of markers of pods that have prepared claims."""

    def __init__(self, directory: Path) -> None:
        """Note the path; the directory is made with the first marker."""
        self._directory = directory

    def write(self, pod: PodUid, mark: ClaimMark) -> None:
        """Mark a pod. LedgerError when that fails."""
        with _as_ledger_error(*_CLAIM_MARKERS):
            write_file(self._directory / pod, encode_mark(mark))

    def discard(self, pod: PodUid) -> None:
        """Unmark a pod. LedgerError when that fails."""
        with _as_ledger_error(*_CLAIM_MARKERS):
            (self._directory / pod).unlink(missing_ok=True)

    @property
    def is_directory_lost(self) -> bool:
        """Report whether the directory was removed."""
        return not self._directory.is_dir()

    def read(self, pod: PodUid) -> ClaimMark | None:
        """Read a pod's mark; None if it is missing. LedgerError if it cannot be known."""
        with _as_ledger_error(*_CLAIM_MARKERS):
            try:
                data = (self._directory / pod).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        try:
            return decode_mark(data)
        except MalformedError as error:
            msg = f"marker of pod {pod}: {error.message}"
            raise LedgerError(msg) from error

    def pods(self) -> tuple[PodUid, ...]:
        """List the marked pods. LedgerError when that fails."""
        with _as_ledger_error(*_CLAIM_MARKERS):
            if self.is_directory_lost:
                return ()
            names = (path.name for path in self._directory.iterdir())
            return tuple(PodUid(name) for name in names if not name.startswith(DRAFT))


class LedgerStore:
    """Keeps the ledger and the files that follow it in step.

    A container's marker is there before its first receipt, or an ADD that may make one, and goes after the
    last. A deferred DEL of an attachment is dropped after its receipt, and before the next one.
    deferred_deletes: DELs that found no agent.

    All but `set_consumers` is for one thread: the ledger changes nowhere else.
    """

    def __init__(
        self,
        receipts: Receipts,
        markers: Markers,
        deferred_deletes: DeferredDeletes,
        claim_markers: ClaimMarkers,
    ) -> None:
        """Load the ledger; markers stay as they are until `mark_all`."""
        self._receipts = receipts
        self._markers = markers
        self._claim_markers = claim_markers
        self.deferred_deletes = deferred_deletes
        self._marked_in_vain = False
        self._pending: Counter[ContainerId] = Counter()
        self._consumers: Mapping[PodUid, Set[str]] = {}
        self._marking = Lock()
        self.ledger: Ledger = receipts.load()

    def close(self) -> None:
        """Close the ledger's file."""
        self._receipts.close()

    def mark_all(self) -> None:
        """Make the markers match receipts, pending ADDs and prepared claims. LedgerError when that fails.

        A marker of a pod without prepared claims stays: they were lost, and its ADD is to be refused.
        """
        with self._marking:
            for pod in {claim.pod.uid for claim in self.ledger.claims.values()}:
                self._mark(pod, self.ledger)
            self._mark_sharing_pods()
        self._markers.replace_all({key.container for key in self.ledger.receipts} | self._pending.keys())
        self._marked_in_vain = False

    def mend(self) -> None:
        """Repair lost markers, and drop deferred DELs of unknown attachments, as far as possible now."""
        self.deferred_deletes.keep_only(self.ledger.receipts)
        if self.ledger.claims and self._claim_markers.is_directory_lost:
            with suppress(LedgerError):
                self.mark_all()
        if self._marked_in_vain or self._markers.is_directory_lost:
            with suppress(LedgerError):
                self.mark_all()

    def begin_add(self, container: ContainerId) -> None:
        """Mark a container until `end_add`: a DEL that overtakes its ADD comes to the agent. LedgerError."""
        self._markers.add(container)
        self._pending[container] += 1

    def end_add(self, container: ContainerId) -> None:
        """Unmark a container without receipts, unless another ADD of it is pending."""
        self._pending[container] -= 1
        if not self._pending[container]:
            del self._pending[container]
        self._unmark(container)

    def prepare(self, receipt: Receipt, other_receipts: Ledger, inherited: Collection[Attachment]) -> None:
        """Record a receipt, the end of the attachments it replaces, and the receipts that lose slots to it.

        other_receipts: the ledger without the inherited attachments. After a LedgerError nothing has changed.
        """
        container, losing = receipt.attachment.container, other_receipts.losing_slots(receipt)
        ledger = other_receipts.with_receipt(receipt)
        for loser in losing:
            ledger = ledger.with_receipt(loser)
        self.deferred_deletes.drop(receipt.attachment)
        self._markers.add(container)
        try:
            self._receipts.put(receipt, *losing, instead_of=inherited)
        except LedgerError:
            self._unmark(container)
            raise
        self.ledger = ledger
        for inherited_attachment in inherited:
            self._unmark(inherited_attachment.container)

    def record(self, receipt: Receipt) -> Receipt:
        """Replace a receipt, but for its slots, and return it. After a LedgerError nothing has changed."""
        receipt = self._with_its_slots(receipt)
        ledger = self.ledger.with_receipt(receipt)
        self._receipts.put(receipt)
        self.ledger = ledger
        return receipt

    def record_together(self, receipts: Iterable[Receipt]) -> None:
        """Replace receipts in one transaction, but for their slots. Errors as with `record`."""
        updated = [self._with_its_slots(receipt) for receipt in receipts]
        ledger = self.ledger
        for receipt in updated:
            ledger = ledger.with_receipt(receipt)
        self._receipts.put(*updated)
        self.ledger = ledger

    def note(self, receipt: Receipt) -> None:
        """Replace a receipt as `record`, but ignore a failed write: a full disk must not keep VFs in pods.

        After a failed write the next start finds the earlier receipt, and repeats the steps that followed it.
        """
        receipt = self._with_its_slots(receipt)
        self.ledger = self.ledger.with_receipt(receipt)
        with suppress(LedgerError):
            self._receipts.put(receipt)

    def forget(self, attachment: Attachment) -> None:
        """Drop a receipt. After a LedgerError nothing has changed."""
        self._receipts.remove(attachment)
        self.ledger = self.ledger.without_attachments(attachment)
        with suppress(LedgerError):  # `mend` will
            self.deferred_deletes.drop(attachment)
        self._unmark(attachment.container)

    def prepare_claim(self, claim: LedgerClaim, consumers: Set[PodUid] = frozenset()) -> None:
        """Record a prepared claim, mark its pod, and have other pods refused that the claim is reserved for.

        A pod that had the claim before is refused, too: it gets no interfaces any more.

        consumers: all that it is reserved for. After a LedgerError the claim is prepared if it is on disk.
        """
        ledger = self.ledger.with_claim(claim)
        former = self.ledger.claims.get(claim.uid)
        with self._marking:
            if former is not None and former.pod.uid != claim.pod.uid:
                self._mark(former.pod.uid, ledger, {_entry(former)})
            self._receipts.put_claim(claim)
            self.ledger = ledger
            self._mark(claim.pod.uid, ledger)
            for pod in consumers - {claim.pod.uid}:
                self._mark_sharing(pod, {_entry(claim)})
            self._mark_sharing_pods()

    def forget_claim(self, claim: ClaimUid, *, abandoned: bool = False) -> None:
        """Drop a claim. After a LedgerError it stays, without its pod's marker at worst until a restart.

        Pods that shared the claim stay marked until it is prepared for them: one that came while kubelet
        unprepared it counts as prepared there (Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go).

        abandoned: whether kubelet has not unprepared the claim; then its pod is refused from now on.
        """
        prepared = self.ledger.claims.get(claim)
        if prepared is None:
            return
        ledger = self.ledger.without_claim(claim)
        with self._marking:
            self._mark(prepared.pod.uid, ledger, {_entry(prepared)} if abandoned else frozenset())
            self._receipts.remove_claim(claim)
            self.ledger = ledger

    def set_consumers(self, consumers: Mapping[PodUid, Set[str]]) -> None:
        """Mark the pods that share a claim of another one, from now on, and unmark those that are gone.

        From any thread. consumers: the unfinished pods of the node, each with its claims, `namespace/name`.
        LedgerError.
        """
        with self._marking:
            self._consumers = consumers
            self._mark_sharing_pods()
            for pod in self._claim_markers.pods():
                if pod not in consumers and not self.ledger.prepared_for(pod):
                    self._claim_markers.discard(pod)

    def _mark_sharing_pods(self) -> None:
        owners = self._owners()
        for pod, claims in self._consumers.items():
            if shared := {claim for claim in claims if claim in owners and pod not in owners[claim]}:
                self._mark_sharing(pod, shared)

    def _mark_sharing(self, pod: PodUid, shared: Set[str]) -> None:
        """Add claims to the mark of a pod that are not prepared for it."""
        previous = self._read(pod)
        if previous == ClaimMark():
            return  # its claims are lost, so it is refused anyway, also once it shares no claim any more
        mark = previous or ClaimMark()
        if not shared <= mark.shared:
            self._write(pod, msgspec.structs.replace(mark, shared=mark.shared | shared))

    def _owners(self) -> dict[str, set[PodUid]]:
        """The pods that claims are prepared for, by the claims' names."""
        owners: dict[str, set[PodUid]] = {}
        for claim in self.ledger.claims.values():
            owners.setdefault(_name_of(claim), set()).add(claim.pod.uid)
        return owners

    def _mark(self, pod: PodUid, ledger: Ledger, shared: Set[str] = frozenset()) -> None:
        """Mark a pod with its prepared claims and those that are not prepared for it; or unmark it.

        shared: these claims, besides those of its previous mark.
        """
        previous = self._read(pod)
        claims = tuple(claim for claim in ledger.claims.values() if claim.pod.uid == pod)
        foreign = (previous or ClaimMark()).shared | shared
        mark = ClaimMark(claims=claims, shared=foreign - {_entry(claim) for claim in claims})
        if mark != previous or mark == ClaimMark():
            self._write(pod, mark)

    def _read(self, pod: PodUid) -> ClaimMark | None:
        """Read a pod's mark; None if it is missing, or is to be replaced."""
        with suppress(LedgerError):
            return self._claim_markers.read(pod)
        return None

    def _write(self, pod: PodUid, mark: ClaimMark) -> None:
        if mark == ClaimMark():
            self._claim_markers.discard(pod)
        else:
            self._claim_markers.write(pod, mark)

    def _claims_of(self, pod: PodUid) -> frozenset[str]:
        """The claims that are prepared for a pod, by name: an older one of that name may be another's."""
        claims = self.ledger.claims.values()
        return frozenset(_name_of(claim) for claim in claims if claim.pod.uid == pod)

    def prepared_for(self, pod: PodUid) -> tuple[PreparedInterface, ...]:
        """Return the interfaces that are prepared for a pod's claims. LedgerError if these were lost.

        K8sRdmaError (`CONFLICT`) names a claim of the pod that is not prepared for it; UnendedPodError one
        that may be handed over to it.
        """
        prepared, mark = self.ledger.prepared_for(pod), self._claim_markers.read(pod)
        names = {"/".join(entry.split("/")[:2]) for entry in (mark or ClaimMark()).shared}
        if foreign := names - self._claims_of(pod):
            unended = all(self._may_be_handed_over(claim, pod) for claim in foreign)
            error = UnendedPodError if unended else K8sRdmaError
            raise error(self._why_foreign(min(foreign)), reason=Reason.CONFLICT)
        if not prepared and mark is not None:
            msg = (
                f"pod {pod}: its ResourceClaims were prepared, and are lost from the ledger; delete the pod, "
                "so that its claims are prepared anew"
            )
            raise LedgerError(msg)
        return prepared

    def _may_be_handed_over(self, claim: str, pod: PodUid) -> bool:
        """Report whether a claim is prepared for pods that are gone by the watch, which has this one."""
        owners = self._owners().get(claim, set())
        return bool(owners) and pod in self._consumers and owners.isdisjoint(self._consumers)

    def _why_foreign(self, claim: str) -> str:
        if claim in self._owners():
            return (
                f"ResourceClaim {claim} is prepared for another pod; an RDMA interface is of one pod: use a "
                "resourceClaimTemplateName, or delete the other pod"
            )
        return (
            f"ResourceClaim {claim} is prepared for no pod any more, and kubelet may not prepare it again "
            "for this one: delete this pod"
        )

    def require_writable(self) -> None:
        """Raise LedgerError unless a receipt could be recorded now."""
        self._receipts.require_writable()
        self._markers.require()

    def _with_its_slots(self, receipt: Receipt) -> Receipt:
        """Take the slots from the ledger: another pod's ADD may have got some since the receipt was read."""
        now = self.ledger.receipts.get(receipt.attachment, receipt)
        return replace(receipt, slots=now.slots)

    def _unmark(self, container: ContainerId) -> None:
        """Unmark a container without receipts; a marker that stays costs a vain call."""
        if container in self._pending or self.ledger.of_container(container):
            return
        try:
            self._markers.discard(container)
        except LedgerError:
            self._marked_in_vain = True


class PendingMarker:
    """The marker of a container while one ADD of it is under way; `begin` and `end` run on the worker."""

    def __init__(self, store: LedgerStore, container: ContainerId) -> None:
        self._store = store
        self._container = container
        self.is_pending = False

    def begin(self) -> None:
        """Mark the container. LedgerError when that fails."""
        self._store.begin_add(self._container)
        self.is_pending = True

    def end(self) -> None:
        """Leave the marker to the container's receipts; a second call has no effect."""
        if self.is_pending:
            self.is_pending = False
            self._store.end_add(self._container)


def _name_of(claim: LedgerClaim) -> str:
    return f"{claim.namespace}/{claim.name}"


def _entry(claim: LedgerClaim) -> str:
    """A claim in the mark of a pod that it is not prepared for; see `ClaimMark`."""
    return f"{_name_of(claim)}/{claim.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredDelete:
    """A DEL as the executable got it. stdin: the network configuration."""

    call: CniEnvironment
    stdin: bytes


class DeferredDeletes:
    """The directory of DELs that found no agent. Blocking, and used by the agent's worker alone."""

    def __init__(self, directory: Path) -> None:
        """Note the path; `load` makes `directory`."""
        self._directory = directory
        self._withheld = directory.with_suffix(".withheld")

    def load(self) -> None:
        """Let the executable defer DELs while no agent answers. LedgerError without the directory."""
        with suppress(OSError):
            self._withheld.rename(self._directory)
        self._create_directory()

    def refuse(self) -> None:
        """Let DELs fail while no agent answers: a ledger is rebuilt from the interfaces that pods still have.

        Earlier deferred DELs stay for the next `load`.
        """
        with suppress(OSError):
            self._directory.rename(self._withheld)

    def contains(self, attachment: Attachment) -> bool:
        """Report whether a DEL of this attachment was deferred, and the runtime takes it for ended."""
        return os.path.lexists(self._path(attachment))

    def read(self, attachment: Attachment) -> DeferredDelete | None:
        """Read the deferred DEL of an attachment; None if it is missing or cannot be read."""
        if not self.contains(attachment):
            return None
        try:
            with self._path(attachment).open("rb") as file:
                request = decode_request(file.read(MAX_BYTES + 1))
            return DeferredDelete(call=parse_environment(request.env), stdin=request.stdin)
        except (OSError, MalformedError) as error:
            _log.warning("left_deletion_unreadable", file=_name(attachment), error=printable(str(error)))
            return None

    def drop(self, attachment: Attachment) -> None:
        """Remove a deferred DEL that is carried out, or void. LedgerError when the file cannot be removed."""
        if self.contains(attachment):
            self._remove(self._path(attachment))

    def files_of_others(self, attachments: Iterable[Attachment]) -> set[str]:
        """List deferred DELs of any other attachments by file name, also those from before `refuse`."""
        return (deferred_deletes_in(self._directory) | deferred_deletes_in(self._withheld)) - set(
            map(_name, attachments)
        )

    def keep_only(self, attachments: Iterable[Attachment]) -> None:
        """Remove the deferred DELs of other attachments, as far as possible, and keep the directory there."""
        with suppress(LedgerError):
            self._create_directory()
        for name in deferred_deletes_in(self._directory) - set(map(_name, attachments)):
            with suppress(LedgerError):
                self._remove(self._directory / name)
                _log.info("left_deletion_of_nothing", file=printable(name))

    def _create_directory(self) -> None:
        """Make the directory, readable by our user alone: network configurations may hold credentials."""
        with _as_ledger_error(_DELETIONS):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _remove(self, path: Path) -> None:
        with _as_ledger_error(_DELETIONS):
            path.unlink(missing_ok=True)

    def _path(self, attachment: Attachment) -> Path:
        return self._directory / _name(attachment)


def _name(attachment: Attachment) -> str:
    """Name an attachment's file; no part of an attachment has a slash (`wire.cni_request`)."""
    return f"{attachment.container}:{attachment.ifname}:{attachment.network}"


def deferred_deletes_in(directory: Path) -> set[str]:
    """List the complete files of a directory; empty if it cannot be read."""
    with suppress(OSError):
        return {name for name in os.listdir(directory) if not name.startswith(DRAFT)}  # noqa: PTH208
    return set()


def mark_exclusive_devices(run_dir: Path, *, present: bool) -> None:
    """Mark whether pods may hold exclusive devices, also for times when no agent runs. LedgerError."""
    marker = run_dir / EXCLUSIVE_DEVICES
    with _as_ledger_error("marker of exclusive devices"):
        if not present:
            marker.unlink(missing_ok=True)
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        marker.touch()


class Markers:
    """The directory of markers of containers."""

    def __init__(self, directory: Path) -> None:
        """Note the path; `replace_all` makes `directory`, complete from the start."""
        self._directory = directory

    def replace_all(self, containers: Iterable[ContainerId]) -> None:
        """Make the directory hold exactly these markers; after a reboot it is empty, and the ledger is not.

        LedgerError when that fails.
        """
        with _as_ledger_error(*_MARKERS):
            self._replace_all(set(containers))

    def add(self, container: ContainerId) -> None:
        """Mark a container, before anything is changed for it. LedgerError when that fails."""
        with _as_ledger_error(*_MARKERS):
            (self._directory / container).touch()

    def discard(self, container: ContainerId) -> None:
        """Unmark a container, after everything of it is undone. LedgerError when that fails."""
        with _as_ledger_error(*_MARKERS):
            (self._directory / container).unlink(missing_ok=True)

    def count(self) -> int:
        """Count the marked containers."""
        return len(list(self._directory.iterdir())) if self._directory.is_dir() else 0

    @property
    def is_directory_lost(self) -> bool:
        """Report whether the directory was removed, so that no container can be marked."""
        return not self._directory.is_dir()

    def require(self) -> None:
        """Raise LedgerError when the directory was removed."""
        with _as_ledger_error(*_MARKERS):
            self._directory.stat()

    def _replace_all(self, desired: set[ContainerId]) -> None:
        staging = self._directory if self._directory.is_dir() else self._directory.with_suffix(".new")
        staging.mkdir(parents=True, exist_ok=True)
        for container in desired:
            (staging / container).touch()
        for marker in staging.iterdir():
            if marker.name not in desired:
                marker.unlink()
        if staging != self._directory:
            staging.rename(self._directory)


@contextmanager
def _as_ledger_error(operation: str, if_absent: str = "") -> Iterator[None]:
    """Convert an OSError into a LedgerError. if_absent: advice appended for a missing file or directory."""
    try:
        yield
    except OSError as error:
        msg = f"{operation}: {error.filename}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            msg += if_absent
        raise LedgerError(msg) from error
