"""What an agent opens when it starts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.agent.config import AgentConfig
from k8s_rdma.agent.main import open_ledger_store
from k8s_rdma.linux.receipts import CorruptLedgerError, Receipts

if TYPE_CHECKING:
    from pathlib import Path


def test_ledger_that_cannot_be_read_is_not_in_use_afterwards(tmp_path: Path) -> None:
    config = AgentConfig(node="w1", run_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"))
    path = tmp_path / "state" / "ledger.db"
    Receipts(path).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO receipts VALUES ('net', 'c9', 'eth0', ?)", (b'{"attachment":1}',))
    with pytest.raises(CorruptLedgerError) as refused:
        open_ledger_store(config)
    with closing(Receipts(path)):
        assert refused.tb is not None  # which holds all that was opened
