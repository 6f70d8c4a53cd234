"""The ledger as doctor reads it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from k8s_rdma.doctor.collectors.ledger import ledger_facts
from k8s_rdma.linux.receipts import Receipts


def test_ledger_is_read_without_being_touched(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)):
        pass
    before = path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())
    facts = ledger_facts(path, agent_socket="")
    assert (facts.exists, facts.fault, facts.receipts) == (True, "", 0)
    assert (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())) == before


@pytest.mark.parametrize(
    ("version", "said", "newer"), [(99, "of version 99", True), (None, "corrupt", False)]
)
def test_ledger_that_no_agent_could_use_is_a_fault(tmp_path, version, said, newer):
    path = tmp_path / "ledger.db"
    if version is None:
        path.write_bytes(b"no database" * 100)
    else:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")
    facts = ledger_facts(path, agent_socket="")
    assert said in facts.fault
    assert facts.newer is newer
    assert str(path) in facts.fault


def test_ledger_that_is_not_there_is_no_fault(tmp_path):
    assert ledger_facts(tmp_path / "ledger.db", agent_socket="").exists is False
