"""The ledger on disk: SQLite, one writer.

A new receipt is synced to the disk before this module returns (`synchronous=FULL`, sqlite.org/pragma.html);
marks that follow it need not be, since a start repeats what they would have told.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import Ledger, Phase
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.linux.receipts_schema import INSERT, bring_up_to_date, lower_version, raise_version
from k8s_rdma.wire.receipt import decode_receipt, encode_receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from k8s_rdma.core.ledger import Attachment, Receipt

REBUILD = "k8s-rdma agent --rebuild-ledger"

_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WORDS = {
    sqlite3.SQLITE_FULL: "its file system is full; free some space there",
    sqlite3.SQLITE_READONLY: "it cannot be written to; make file and file system writable",
}


class CorruptLedgerError(LedgerError):
    """The ledger's file cannot be understood; a new one can be made of what kernel and runtime know."""


class Receipts:
    """The receipts in a database file; used from one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and lock it: a second agent on the same node is refused.

        A ledger of an older program is brought up to date. LedgerError says what is wrong with any other.
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
        """Everything on disk; nothing is dropped.

        CorruptLedgerError names the row that cannot be understood, or that contradicts another.
        """
        with self._failures("cannot be read"):
            [(found,)] = self._db.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise self._corrupt(found)
            rows = self._db.execute("SELECT network, container, ifname, document FROM receipts").fetchall()
        ledger = Ledger()
        for network, container, ifname, document in rows:
            try:
                ledger = ledger.with_receipt(decode_receipt(document))
            except (MalformedError, LedgerError) as error:
                raise self._corrupt(f"row {network}/{container}/{ifname}: {error}") from error
        return ledger

    def put(self, receipt: Receipt, *beside: Receipt, instead_of: Iterable[Attachment] = ()) -> None:
        """Write or replace a receipt, and in the same moment others; synced when it is a new claim.

        beside: others to be replaced. instead_of: others to be forgotten.

        LedgerError when it could not be written; then the file is as it was.
        """
        durable = receipt.phase is Phase.PREPARED
        with self._failures("cannot be written"), self._transaction(durable=durable):
            forgotten = [each for each in instead_of if self._delete(each)]
            raise_version(self._db, (receipt, *beside))
            for each in (receipt, *beside):
                self._db.execute(INSERT, (*astuple(each.attachment), encode_receipt(each)))
            if forgotten:
                lower_version(self._db)

    def remove(self, attachment: Attachment) -> None:
        """Forget an attachment. If a crash loses this mark, the next start finds nothing left to undo."""
        with self._failures("cannot be written"), self._transaction(durable=False):
            self._delete(attachment)
            lower_version(self._db)

    def require_writable(self) -> None:
        """LedgerError unless a receipt could be written now; tried by a write that changes nothing."""
        with self._failures("cannot be written"), self._transaction(durable=False):
            [(version,)] = self._db.execute("PRAGMA user_version").fetchall()
            self._db.execute(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _lower_version(self) -> None:
        """As far as that can be done: a full disk keeps no agent from its pods, and `load` names the row."""
        with (
            suppress(LedgerError, MalformedError),
            self._failures("cannot be written"),
            self._transaction(durable=False),
        ):
            lower_version(self._db)

    def _delete(self, attachment: Attachment) -> bool:
        """Whether it was there."""
        deleted = self._db.execute(
            "DELETE FROM receipts WHERE network = ? AND container = ? AND ifname = ?", astuple(attachment)
        )
        return deleted.rowcount > 0

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[None]:
        """All or nothing; one commit, and synced if it is to be durable."""
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
    def _failures(self, what: str) -> Iterator[None]:
        """Failures of the file system and of SQLite as a LedgerError that says what to do."""
        try:
            yield
        except OSError as error:
            msg = f"ledger {self._path}: {what}: {error.strerror}"
            raise LedgerError(msg) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without its extension
            if code in _CORRUPT:
                raise self._corrupt(str(error)) from error
            if code in _IN_USE:
                msg = f"ledger {self._path}: in use; is another agent running on this node?"
                raise LedgerError(msg) from error
            msg = f"ledger {self._path}: {what}: {_WORDS.get(code, error)}"
            raise LedgerError(msg, details=str(error)) from error

    def _corrupt(self, why: str) -> CorruptLedgerError:
        return CorruptLedgerError(
            f"ledger {self._path}: corrupt: {why}; `{REBUILD}` keeps it aside and makes a new one of what "
            "the kernel and the container runtime know"
        )
