from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, interface, receipt
from k8s_rdma.core.ledger import DelegatedPlugin, Phase
from k8s_rdma.errors import LedgerError
from k8s_rdma.linux.receipts import Receipts

if TYPE_CHECKING:
    from pathlib import Path

IPAM = DelegatedPlugin(plugin="host-local", netconf=b'{"name":"n"}', cni_path="/opt/cni/bin", cni_args="A=b")


def test_receipts_come_back_as_they_were_when_opened_again(tmp_path: Path) -> None:
    first = receipt("a", interface(PF0, 0, "rdma0", 5, 9), ipam=IPAM)
    second = receipt("b", interface(PF1, 1), phase=Phase.PREPARED)
    receipts = Receipts(tmp_path / "state" / "ledger.db")
    receipts.put(first)
    receipts.put(second)
    receipts.put(replace(second, phase=Phase.ATTACHED))
    receipts.close()
    reopened = Receipts(tmp_path / "state" / "ledger.db")
    ledger = reopened.load()
    reopened.close()
    assert dict(ledger.receipts) == {
        first.attachment: first,
        second.attachment: replace(second, phase=Phase.ATTACHED),
    }


def test_receipts_forget_what_was_removed(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "ledger.db")
    receipts.put(receipt("a"))
    receipts.remove(receipt("a").attachment)
    receipts.remove(receipt("a").attachment)
    assert not receipts.load().receipts
    receipts.close()


def test_receipts_refuse_a_second_agent(tmp_path: Path) -> None:
    first = Receipts(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="is another agent running on this node"):
        Receipts(tmp_path / "ledger.db")
    first.close()


def test_receipts_name_the_row_that_cannot_be_understood(tmp_path: Path) -> None:
    Receipts(tmp_path / "ledger.db").close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("INSERT INTO receipts VALUES ('net', 'c9', 'eth0', ?)", (b'{"attachment":1}',))
    database.close()
    receipts = Receipts(tmp_path / "ledger.db")
    with pytest.raises(
        LedgerError, match=r"row net/c9/eth0: receipt: Expected `object`, got `int` - at `\$.attachment`"
    ):
        receipts.load()
    receipts.close()


def test_receipts_say_what_is_wrong_when_the_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database at all, but text" * 100)
    with pytest.raises(LedgerError, match="file is not a database"):
        Receipts(tmp_path / "ledger.db")
