"""The ledger on disk: SQLite, one writer, one row of JSON a receipt; and the versions of its schema.

A new receipt is synced to the disk before this module returns (`synchronous=FULL`, sqlite.org/pragma.html);
marks that follow it need not be, since a start repeats what they record.

Versions are of table and documents together. Fields are only ever added, with a default. A new version
comes with every field that an older program would lose, and with it what has to be undone. The file bears
(`PRAGMA user_version`) the version of the oldest program that loses nothing of its rows: a node whose pods
use nothing new can go back to an older program, pods and all, and any other is refused by it.

Attributes of a VF's home need no version: a VF whose receipt lacks them returns with a new netdev.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.ledger import Attachment, ClaimUid, Ledger, LedgerClaim, Phase, Receipt
from k8s_rdma.core.types import Enforce
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


REBUILD = "k8s-rdma agent --rebuild-ledger"

VERSION = 6
"""The current version. 0: a file without a ledger, or of a program before versions, whose attachments had no
network. 2: of a program without slots. 3: of one without caps of software, which would lose them. 4: of one
without prepared ResourceClaims, which would give their VFs and bandwidth to others. 5: of one without
changes of rates, which would not complete them, nor know earlier placements from the latest."""

OLDEST = 3
"""The version that any receipt needs: older programs would lose slots, and the home names of RDMA devices."""

_WITH_CAPS, _WITH_CLAIMS, _WITH_RATE_CHANGES = 4, 5, 6

INSERT = "INSERT OR REPLACE INTO receipts (network, container, ifname, document) VALUES (?, ?, ?, ?)"

_SCHEMA = """
CREATE TABLE receipts (
    network TEXT NOT NULL,
    container TEXT NOT NULL,
    ifname TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (network, container, ifname)
) STRICT, WITHOUT ROWID
"""

_PROMISES = """
CREATE TABLE IF NOT EXISTS promises (
    claim TEXT NOT NULL PRIMARY KEY,
    document BLOB NOT NULL
) STRICT, WITHOUT ROWID
"""

_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_EXPLANATIONS = {
    sqlite3.SQLITE_FULL: "its file system is full; free some space there",
    sqlite3.SQLITE_READONLY: "it cannot be written to; make file and file system writable",
}
_encoder = msgspec.json.Encoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_decoder = msgspec.json.Decoder(Receipt)
_claim_decoder = msgspec.json.Decoder(LedgerClaim)


class Receipts:
    """The receipts in a database file; used from one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and lock it: a second agent on the same node is refused.

        The ledger of an older program is migrated. LedgerError names the fault of any other.
        """
        self._path = path
        with self._failures("cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            with self._failures("cannot be opened"):
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode = WAL")
                with self._transaction(durable=True):
                    bring_up_to_date(self._db, f"ledger {path}")
            self._lower_version()
        except MalformedError as error:
            self._db.close()
            raise self._corrupt(str(error)) from error
        except BaseException:
            self._db.close()
            raise

    def load(self) -> Ledger:
        """Load all receipts and prepared claims, without exception.

        CorruptLedgerError names a row that is invalid, or contradicts another.
        """
        with self._failures("cannot be read"):
            [(found,)] = self._db.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise self._corrupt(found)
            rows = self._db.execute("SELECT network, container, ifname, document FROM receipts").fetchall()
        ledger = Ledger()
        for network, container, ifname, document in rows:
            try:
                ledger = ledger.with_receipt(_of_row(document, Attachment(network, container, ifname)))
            except (MalformedError, LedgerError) as error:
                raise self._corrupt(f"row {network}/{container}/{ifname}: {error}") from error
        return self._load_claims(ledger)

    def _load_claims(self, ledger: Ledger) -> Ledger:
        with self._failures("cannot be read"):
            rows = self._db.execute("SELECT claim, document FROM promises ORDER BY claim").fetchall()
        for claim, document in rows:
            try:
                prepared = decode(document, _claim_decoder, "prepared claim")
                _require(prepared.uid == claim, f"its document is of claim {prepared.uid}")
                ledger = ledger.with_claim(prepared)
            except (MalformedError, LedgerError) as error:
                raise self._corrupt(f"prepared claim {claim}: {error}") from error
        return ledger

    def put(self, receipt: Receipt, *updated: Receipt, instead_of: Iterable[Attachment] = ()) -> None:
        """Write or replace receipts in one transaction; synced to disk before what the first begins.

        updated: others to be replaced.
        instead_of: others to be forgotten.

        LedgerError when it could not be written; then the file is as it was.
        """
        durable = receipt.phase is Phase.PREPARED or receipt.change is not None
        with self._failures("cannot be written"), self._transaction(durable=durable):
            forgotten = [attachment for attachment in instead_of if self._delete(attachment)]
            raise_version(self._db, (receipt, *updated))
            for attachment in (receipt, *updated):
                self._db.execute(INSERT, (*astuple(attachment.attachment), encode_receipt(attachment)))
            if forgotten:
                lower_version(self._db)

    def remove(self, attachment: Attachment) -> None:
        """Forget an attachment. If a crash loses this mark, the next start undoes it again."""
        with self._failures("cannot be written"), self._transaction(durable=False):
            self._delete(attachment)
            lower_version(self._db)

    def put_claim(self, claim: LedgerClaim) -> None:
        """Write or replace a prepared claim, synced to disk. LedgerError as `put`."""
        with self._failures("cannot be written"), self._transaction(durable=True):
            if _version(self._db) < _WITH_CLAIMS:
                _set_version(self._db, _WITH_CLAIMS)
            self._db.execute(
                "INSERT OR REPLACE INTO promises (claim, document) VALUES (?, ?)",
                (claim.uid, _encoder.encode(claim)),
            )

    def remove_claim(self, claim: ClaimUid) -> None:
        """Forget a prepared claim, synced to disk: kubelet does not repeat it. LedgerError as `put`."""
        with self._failures("cannot be written"), self._transaction(durable=True):
            self._db.execute("DELETE FROM promises WHERE claim = ?", (claim,))
            lower_version(self._db)

    def require_writable(self) -> None:
        """Raise LedgerError unless a receipt could be written now; tested by a write without a change."""
        with self._failures("cannot be written"), self._transaction(durable=False):
            [(version,)] = self._db.execute("PRAGMA user_version").fetchall()
            self._db.execute(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _lower_version(self) -> None:
        """Lower the file's version if possible; a full disk is no failure here, `load` names bad rows."""
        with (
            suppress(LedgerError, MalformedError),
            self._failures("cannot be written"),
            self._transaction(durable=False),
        ):
            lower_version(self._db)

    def _delete(self, attachment: Attachment) -> bool:
        """Delete an attachment's row. Returns whether it was there."""
        deleted = self._db.execute(
            "DELETE FROM receipts WHERE network = ? AND container = ? AND ifname = ?", astuple(attachment)
        )
        return deleted.rowcount > 0

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[None]:
        """Run the block in one transaction, synced to disk if durable."""
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a failed write has ended it already
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        """Convert failures of file system and SQLite into a LedgerError with advice."""
        try:
            yield
        except OSError as error:
            msg = f"ledger {self._path}: {operation}: {error.strerror}"
            raise LedgerError(msg) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without its extension
            if code in _CORRUPT:
                raise self._corrupt(str(error)) from error
            if code in _IN_USE:
                msg = f"ledger {self._path}: in use; is another agent running on this node?"
                raise LedgerError(msg) from error
            msg = f"ledger {self._path}: {operation}: {_EXPLANATIONS.get(code, error)}"
            raise LedgerError(msg, details=str(error)) from error

    def _corrupt(self, why: str) -> CorruptLedgerError:
        return CorruptLedgerError(
            f"ledger {self._path}: corrupt: {why}; `{REBUILD}` keeps it aside and makes a new one of what "
            "the kernel and the container runtime know"
        )


class CorruptLedgerError(LedgerError):
    """The ledger's file is corrupt; a new one can be made from the state in kernel and runtime."""


class NewerLedgerError(LedgerError):
    """A newer program wrote the file, which is in order; only that program can release the pods' VFs."""


class ClaimMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a pod's marker (`agent.ledger_store`).

    claims: those that are prepared for the pod, to rebuild a lost ledger.
    shared: claims of the pod that are not prepared for it, `namespace/name/uid`; `namespace/name` by the
        watch of pods, which has no UIDs of claims.
    """

    claims: tuple[LedgerClaim, ...] = msgspec.field(default=(), name="promises")
    shared: frozenset[str] = frozenset()


_mark_decoder = msgspec.json.Decoder(ClaimMark)


def encode_mark(mark: ClaimMark) -> bytes:
    """Encode a marker's content."""
    return _encoder.encode(mark)


def decode_mark(data: bytes) -> ClaimMark:
    """Parse a marker's content; empty without one. MalformedError names the field that does not fit."""
    return decode(data, _mark_decoder, "marker") if data else ClaimMark()


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode the document of a row."""
    return _encoder.encode(receipt)


def decode_receipt(data: bytes) -> Receipt:
    """Parse a row; MalformedError names the field that does not fit."""
    return decode(_upgraded(data), _decoder, "receipt")


def _of_row(document: bytes, attachment: Attachment) -> Receipt:
    """Parse the row of an attachment; MalformedError also for a document that does not fit its key."""
    receipt = decode_receipt(document)
    _require(receipt.attachment == attachment, f"its document is of {'/'.join(astuple(receipt.attachment))}")
    old_vfs, new_vfs = ([i.vf for i in r.interfaces] for r in (receipt, receipt.completed()))
    _require(old_vfs == new_vfs, "its change is of other interfaces")
    return receipt


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise MalformedError(why)


def _upgraded(data: bytes) -> bytes:
    """Convert a row into the current form.

    The network's name was once beside the attachment instead of in it; then an attachment had all of the
    pod's interfaces, in the request's order.
    """
    fields = decode(data, _fields, "receipt")
    network = fields.pop("network", None)
    if network is None or not {"attachment", "interfaces"} <= fields.keys():
        return data
    attachment = decode(fields["attachment"], _fields, "receipt: attachment")
    interfaces = decode(fields["interfaces"], _list, "receipt: interfaces")
    fields["attachment"] = msgspec.Raw(_encoder.encode({"network": network, **attachment}))
    numbered = [{"entry": entry, **interface} for entry, interface in enumerate(interfaces)]
    fields["interfaces"] = msgspec.Raw(_encoder.encode(numbered))
    return _encoder.encode(fields)


def bring_up_to_date(db: sqlite3.Connection, subject: str) -> None:
    """Migrate the file to the current schema, within the caller's transaction.

    subject: the file in words.
    NewerLedgerError for a newer program's file, MalformedError for an invalid row.
    """
    version = _version(db)
    if version <= VERSION:
        db.execute(_PROMISES)
    if version > VERSION:
        msg = (
            f"{subject}: of version {version}, and this program knows versions up to {VERSION}: pods "
            "hold what only a newer program takes back; run that one, end these pods or drain the node, then "
            "go back"
        )
        raise NewerLedgerError(msg)
    if version >= OLDEST:
        return
    if db.execute("SELECT name FROM sqlite_schema WHERE name = 'receipts'").fetchone():
        _migrate(db)
    else:
        db.execute(_SCHEMA)
    _set_version(db, OLDEST)


def version_for(receipt: Receipt) -> int:
    """Return the oldest version whose programs keep all of a receipt."""
    if receipt.generation or receipt.change is not None:
        return _WITH_RATE_CHANGES
    capped = any(
        interface.software_max_tx_rate_mbps or interface.enforce is Enforce.SOFTWARE
        for interface in receipt.interfaces
    )
    return _WITH_CAPS if capped else OLDEST


def raise_version(db: sqlite3.Connection, written: Iterable[Receipt]) -> None:
    """Raise the file's version to that of new receipts, within the caller's transaction."""
    needed = max(map(version_for, written), default=OLDEST)
    if needed > _version(db):
        _set_version(db, needed)


def lower_version(db: sqlite3.Connection) -> None:
    """Lower the file's version to that of the remaining rows, within the caller's transaction."""
    [(claims,)] = db.execute("SELECT count(*) FROM promises").fetchall()
    least = _WITH_CLAIMS if claims else OLDEST
    if _version(db) > least:
        receipts = (decode_receipt(document) for (document,) in db.execute("SELECT document FROM receipts"))
        _set_version(db, max([least, *map(version_for, receipts)]))


def _version(db: sqlite3.Connection) -> int:
    [(version,)] = db.execute("PRAGMA user_version").fetchall()
    return int(version)


def _set_version(db: sqlite3.Connection, version: int) -> None:
    db.execute(f"PRAGMA user_version = {version}")


def _migrate(db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT container, ifname, document FROM receipts").fetchall()
    db.execute("DROP TABLE receipts")
    db.execute(_SCHEMA)
    for container, ifname, document in rows:
        try:
            receipt = decode_receipt(document)
        except MalformedError as error:
            msg = f"row {container}/{ifname} of an older program: {error}"
            raise MalformedError(msg) from error
        db.execute(INSERT, (*astuple(receipt.attachment), encode_receipt(receipt)))
