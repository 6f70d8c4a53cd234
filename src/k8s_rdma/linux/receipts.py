"""The ledger on disk: SQLite, one writer.

A new receipt is synced to the disk before this module returns (`synchronous=FULL`, sqlite.org/pragma.html);
marks that follow it need not be, since a start repeats what they would have told.
"""

from __future__ import annotations

import sqlite3
from dataclasses import astuple
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import Ledger, Phase
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.wire.receipt import decode_receipt, encode_receipt

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.ledger import Attachment, Receipt

_SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (
    network TEXT NOT NULL,
    container TEXT NOT NULL,
    ifname TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (network, container, ifname)
) STRICT, WITHOUT ROWID
"""


class Receipts:
    """The receipts in a database file; used from one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and lock it: a second agent on the same node is refused."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(_SCHEMA)
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            msg = f"ledger {path}: cannot be opened: {error}; is another agent running on this node?"
            raise LedgerError(msg) from error

    def load(self) -> Ledger:
        """Everything on disk. LedgerError names the row that cannot be understood; nothing is dropped."""
        ledger = Ledger()
        try:
            rows = self._db.execute("SELECT network, container, ifname, document FROM receipts").fetchall()
        except sqlite3.Error as error:
            msg = f"ledger {self._path}: cannot be read: {error}"
            raise LedgerError(msg) from error
        for network, container, ifname, document in rows:
            try:
                ledger = ledger.with_receipt(decode_receipt(document))
            except (MalformedError, LedgerError) as error:
                msg = f"ledger {self._path}: row {network}/{container}/{ifname}: {error}"
                raise LedgerError(msg) from error
        return ledger

    def put(self, receipt: Receipt) -> None:
        """Write or replace a receipt; synced when it is a new claim."""
        durable = receipt.phase is Phase.PREPARED
        self._write(
            "INSERT OR REPLACE INTO receipts (network, container, ifname, document) VALUES (?, ?, ?, ?)",
            (*astuple(receipt.attachment), encode_receipt(receipt)),
            durable=durable,
        )

    def remove(self, attachment: Attachment) -> None:
        """Forget an attachment. If a crash loses this mark, the next start finds nothing left to undo."""
        self._write(
            "DELETE FROM receipts WHERE network = ? AND container = ? AND ifname = ?",
            astuple(attachment),
            durable=False,
        )

    def _write(self, statement: str, values: tuple[object, ...], *, durable: bool) -> None:
        try:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            msg = f"ledger {self._path}: cannot be written: {error}"
            raise LedgerError(msg) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()
