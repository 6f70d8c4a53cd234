"""The ledger in memory, on disk, and in files that the CNI executable reads or leaves: changed here alone.

Blocking and confined to one thread (the agent's worker). Files in `<runDir>`:

`attachments/<container id>`: a file per container that has something of ours, or whose ADD is under way.
With the directory there and no file in it, a DEL has nothing to do, even while the agent is dead. So a
marker is there before the first change and after the last, and a missing directory means nothing.

`exclusive-devices`: there where pods may hold exclusive devices, which are attached to them though their
annotations say nothing. Then the agent is asked about every pod, or none starts.

`deletions/<container>:<interface>:<network>`: a DEL that no agent answered, left by the CNI executable
(`cni/deletion.c`). It comes there whole, and then the runtime is told that the attachment has ended. So it
is over as soon as the file is there, which stays until the end is carried out; the name alone says which.
The file's content, the call as `wire.frame` has it, only helps: it brings the configuration of then.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import LedgerError, MalformedError, printable
from k8s_rdma.wire.cni_environment import CniEnvironment, parse_environment
from k8s_rdma.wire.frame import MAX_ENV_BYTES, MAX_STDIN_BYTES, REQUEST_HEADER, decode_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from k8s_rdma.core.ids import ContainerId
    from k8s_rdma.core.ledger import Attachment, Ledger, Receipt
    from k8s_rdma.linux.receipts import Receipts


_log = structlog.get_logger()

_DELETIONS = "deletions that were left"

_MARKERS = ("markers of attached containers", "; the agent makes the directory anew when it is restarted")
"""The subject of a failure's message, and its ending where the file is not there."""

DIRECTORY = "deletions"
"""In `runDir`."""

DRAFT = "."
"""What the executable still writes begins with it, as no container's ID does."""

MAX_BYTES = REQUEST_HEADER.size + MAX_ENV_BYTES + MAX_STDIN_BYTES

EXCLUSIVE_DEVICES = "exclusive-devices"


class LedgerStore:
    """Markers come before a container's first receipt, or an ADD that may make one, and go after the last.

    A deletion that was left of an attachment goes after its receipt, and before the next one.
    """

    def __init__(self, receipts: Receipts, markers: Markers, deferred_deletes: DeferredDeletes) -> None:
        """Load it; what is marked stays as it was until `mark_all`."""
        self._receipts = receipts
        self._markers = markers
        self._deferred_deletes = deferred_deletes
        self._marked_in_vain = False
        self._pending: Counter[ContainerId] = Counter()
        self.ledger: Ledger = receipts.load()

    def mark_all(self) -> None:
        """Have the markers be those of receipts and pending ADDs. LedgerError when they cannot be made so."""
        self._markers.replace_all({key.container for key in self.ledger.receipts} | self._pending.keys())
        self._marked_in_vain = False

    def mend(self) -> None:
        """The same where some went wrong or were taken away, and nothing left of others; as far as can be."""
        self._deferred_deletes.keep_only(self.ledger.receipts)
        if self._marked_in_vain or self._markers.is_lost:
            with suppress(LedgerError):
                self.mark_all()

    def begin_add(self, container: ContainerId) -> None:
        """Mark a container until `end_add`: we are asked about a DEL that overtakes its ADD. LedgerError."""
        self._markers.add(container)
        self._pending[container] += 1

    def end_add(self, container: ContainerId) -> None:
        """Unmark a container of which nothing is recorded, unless another ADD of it is pending."""
        self._pending[container] -= 1
        if not self._pending[container]:
            del self._pending[container]
        self._unmark(container)

    def claim(self, receipt: Receipt, other_receipts: Ledger, inherited: Collection[Attachment]) -> None:
        """Record a claim, the end of what it inherits, and whose slots are its now.

        other_receipts: the ledger without what is inherited. LedgerError: all is as before.
        """
        container, losing = receipt.attachment.container, other_receipts.losing_slots(receipt)
        ledger = other_receipts.with_receipt(receipt)
        for loser in losing:
            ledger = ledger.with_receipt(loser)
        self._deferred_deletes.drop(receipt.attachment)
        self._markers.add(container)
        try:
            self._receipts.put(receipt, *losing, instead_of=inherited)
        except LedgerError:
            self._unmark(container)
            raise
        self.ledger = ledger
        for each in inherited:
            self._unmark(each.container)

    def record(self, receipt: Receipt) -> Receipt:
        """Replace a receipt, but for its slots; as it is now. LedgerError: all is as before."""
        receipt = self._with_its_slots(receipt)
        ledger = self.ledger.with_receipt(receipt)
        self._receipts.put(receipt)
        self.ledger = ledger
        return receipt

    def note(self, receipt: Receipt) -> None:
        """The same, although it may not get on disk, as a full one must not keep VFs in pods.

        Without it a start finds the receipt as it was, and what followed is done once more.
        """
        receipt = self._with_its_slots(receipt)
        self.ledger = self.ledger.with_receipt(receipt)
        with suppress(LedgerError):
            self._receipts.put(receipt)

    def forget(self, attachment: Attachment) -> None:
        """Drop a receipt. LedgerError: all is as before."""
        self._receipts.remove(attachment)
        self.ledger = self.ledger.without_attachments(attachment)
        with suppress(LedgerError):  # `mend` will
            self._deferred_deletes.drop(attachment)
        self._unmark(attachment.container)

    def require_writable(self) -> None:
        """LedgerError when nothing could be recorded now."""
        self._receipts.require_writable()
        self._markers.require()

    def _with_its_slots(self, receipt: Receipt) -> Receipt:
        """As the ledger has it: another pod's ADD may have got some since the caller read the receipt."""
        now = self.ledger.receipts.get(receipt.attachment, receipt)
        return replace(receipt, slots=now.slots)

    def _unmark(self, container: ContainerId) -> None:
        """A marker too many makes the executable ask us in vain, no more: it may go later."""
        if container in self._pending or self.ledger.of_container(container):
            return
        try:
            self._markers.discard(container)
        except LedgerError:
            self._marked_in_vain = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredDelete:
    """The call as it came to the executable. stdin: the network configuration."""

    call: CniEnvironment
    stdin: bytes


class DeferredDeletes:
    """The directory. Blocking, and used by the agent's worker alone."""

    def __init__(self, directory: Path) -> None:
        """`directory` is made by `take`."""
        self._directory = directory
        self._withheld = directory.with_suffix(".withheld")

    def load(self) -> None:
        """Have the executable leave what it cannot tell us. LedgerError when it cannot be made to."""
        with suppress(OSError):
            self._withheld.rename(self._directory)
        self._create_directory()

    def refuse(self) -> None:
        """Have DELs fail while no agent answers: nobody knows what a pod has, but by what it still has.

        What was left until now stays for the next `take`.
        """
        with suppress(OSError):
            self._directory.rename(self._withheld)

    def contains(self, attachment: Attachment) -> bool:
        """Whether the runtime was told that this attachment has ended."""
        return os.path.lexists(self._path(attachment))

    def read(self, attachment: Attachment) -> DeferredDelete | None:
        """The DEL that was left of an attachment; None where none was, or not as this agent reads it."""
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
        """What was left of it is carried out, or void. LedgerError when the file cannot be removed."""
        if self.contains(attachment):
            self._remove(self._path(attachment))

    def files_of_others(self, attachments: Iterable[Attachment]) -> set[str]:
        """What was left of any others, also before `refuse`, by the names of the files."""
        return (deferred_deletes_in(self._directory) | deferred_deletes_in(self._withheld)) - set(
            map(_name, attachments)
        )

    def keep_only(self, attachments: Iterable[Attachment]) -> None:
        """Remove what was left of any others, as far as that can be done now, and take more."""
        with suppress(LedgerError):
            self._create_directory()
        for name in deferred_deletes_in(self._directory) - set(map(_name, attachments)):
            with suppress(LedgerError):
                self._remove(self._directory / name)
                _log.info("left_deletion_of_nothing", file=printable(name))

    def _create_directory(self) -> None:
        """Only our own user looks in: network configurations may hold credentials."""
        with _as_ledger_error(_DELETIONS):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _remove(self, path: Path) -> None:
        with _as_ledger_error(_DELETIONS):
            path.unlink(missing_ok=True)

    def _path(self, attachment: Attachment) -> Path:
        return self._directory / _name(attachment)


def _name(attachment: Attachment) -> str:
    """A file's name, as an attachment of the ledger has no slash in any of its parts (`wire.netconf`)."""
    return f"{attachment.container}:{attachment.ifname}:{attachment.network}"


def deferred_deletes_in(directory: Path) -> set[str]:
    """Names of the files that are whole; none where they are not ours to see."""
    with suppress(OSError):
        return {name for name in os.listdir(directory) if not name.startswith(DRAFT)}  # noqa: PTH208
    return set()


def mark_exclusive_devices(run_dir: Path, *, present: bool) -> None:
    """Say whether pods may hold exclusive devices; it stands while no agent runs. LedgerError."""
    marker = run_dir / EXCLUSIVE_DEVICES
    with _as_ledger_error("marker of exclusive devices"):
        if not present:
            marker.unlink(missing_ok=True)
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        marker.touch()


class Markers:
    """The marker directory."""

    def __init__(self, directory: Path) -> None:
        """`directory` is made by `replace_all`, when it can tell the truth."""
        self._directory = directory

    def replace_all(self, containers: Iterable[ContainerId]) -> None:
        """Make the directory hold exactly these markers (after a reboot it is empty, the ledger is not).

        LedgerError when it cannot be made to.
        """
        with _as_ledger_error(*_MARKERS):
            self._replace_all(set(containers))

    def add(self, container: ContainerId) -> None:
        """Mark a container; before anything is changed for it. LedgerError when it cannot be marked."""
        with _as_ledger_error(*_MARKERS):
            (self._directory / container).touch()

    def discard(self, container: ContainerId) -> None:
        """Unmark a container; after everything of it is undone. LedgerError when it cannot be unmarked."""
        with _as_ledger_error(*_MARKERS):
            (self._directory / container).unlink(missing_ok=True)

    def count(self) -> int:
        """How many containers are marked."""
        return len(list(self._directory.iterdir())) if self._directory.is_dir() else 0

    @property
    def is_lost(self) -> bool:
        """Whether somebody took the directory away: then no container can be marked."""
        return not self._directory.is_dir()

    def require(self) -> None:
        """LedgerError when the directory is not there any more."""
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
    """if_absent: what else is said of a file or directory that is not there."""
    try:
        yield
    except OSError as error:
        msg = f"{operation}: {error.filename}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            msg += if_absent
        raise LedgerError(msg) from error
