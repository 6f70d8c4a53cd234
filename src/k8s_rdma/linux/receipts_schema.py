"""The form of the ledger's file, how one of an older program gets it, and which older programs take it back.

Versions are of table and documents together. A new one comes with every field that a program which knows
nothing of it would lose, and with it what has to be undone. The file bears (`PRAGMA user_version`) the one of
the oldest programs that lose nothing of its rows: a node whose pods have nothing that is new can go back to
an older program, pods and all, and any other is refused by it.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from k8s_rdma.core.rates import Enforce
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.wire.receipt import decode_receipt, encode_receipt

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from k8s_rdma.core.ledger import Receipt

VERSION = 4
"""0: a file without a ledger, or that of a program before versions, whose attachments had no network.
2: of one that knew no slots. 3: of one that knew no caps of software: it would not keep them."""

OLDEST = 3
"""What any receipt needs: programs before it would lose slots, and the names of RDMA devices at home."""

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


class NewerLedgerError(LedgerError):
    """Pods hold what only a newer program takes back; nothing is wrong with the file."""


def bring_up_to_date(db: sqlite3.Connection, what: str) -> None:
    """Make the file one of now; within the caller's transaction, so that it is that or as it was.

    what: the file in words. NewerLedgerError when it is a newer program's, MalformedError when a row cannot
        be understood.
    """
    version = _version(db)
    if version > VERSION:
        msg = (
            f"{what}: of version {version}, and this program knows versions up to {VERSION}: pods hold what "
            "only a newer program takes back; run that one, end these pods or drain the node, then go back"
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
    """That of the oldest programs which lose nothing of a receipt."""
    capped = any(
        each.software_max_tx_rate_mbps or each.enforce is Enforce.SOFTWARE for each in receipt.interfaces
    )
    return 4 if capped else OLDEST


def raise_version(db: sqlite3.Connection, written: Iterable[Receipt]) -> None:
    """Have programs refuse the file that would lose something of these; within the caller's transaction."""
    needed = max(map(version_for, written), default=OLDEST)
    if needed > _version(db):
        _set_version(db, needed)


def lower_version(db: sqlite3.Connection) -> None:
    """Have programs take the file that lose nothing of what is left; within the caller's transaction."""
    if _version(db) > OLDEST:
        left = (decode_receipt(document) for (document,) in db.execute("SELECT document FROM receipts"))
        _set_version(db, max(map(version_for, left), default=OLDEST))


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
