"""The form of the ledger's file, and how one of an older program gets it.

The version (`PRAGMA user_version`) is that of table and documents together. It grows with every field that a
program which knows nothing of it would lose, and with it what has to be undone.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.wire.receipt import decode_receipt, encode_receipt

if TYPE_CHECKING:
    import sqlite3

VERSION = 4
"""0: a file without a ledger, or that of a program before versions, whose attachments had no network.
2: of one that knew no slots. 3: of one that knew no caps of software: it would not keep them."""

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


def bring_up_to_date(db: sqlite3.Connection, what: str) -> None:
    """Make the file one of this version; within the caller's transaction, so that it is that or as it was.

    what: the file in words. LedgerError when a newer program wrote it, MalformedError when a row cannot be
        understood.
    """
    [(version,)] = db.execute("PRAGMA user_version")
    if version > VERSION:
        msg = (
            f"{what}: of version {version}, and this program knows versions up to {VERSION}: a newer program "
            "wrote it; run that one, or drain the node with it before you go back, and remove the file then"
        )
        raise LedgerError(msg)
    if version == VERSION:
        return
    if db.execute("SELECT name FROM sqlite_schema WHERE name = 'receipts'").fetchone():
        _migrate(db)
    else:
        db.execute(_SCHEMA)
    db.execute(f"PRAGMA user_version = {VERSION}")


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
