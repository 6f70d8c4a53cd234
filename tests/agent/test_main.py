"""Files that an agent opens when it starts."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.agent.main import open_ledger_store
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.linux.receipts import CorruptLedgerError, Receipts

if TYPE_CHECKING:
    from collections.abc import Callable
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


AGENT_THAT_FAILS = """
import sys
from pathlib import Path
import msgspec
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.agent.main import run
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.receipts import Receipts
config = msgspec.json.decode(sys.argv[1], type=AgentConfig)
try:
    run(config)
except BaseException as error:
    failure = error  # its traceback holds all that was opened
print(failure)
Receipts(Path(config.state_dir) / "ledger.db").close()
"""


def directory_as_marker(directory: Path) -> dict[str, object]:
    (directory / "run/exclusive-devices").mkdir(parents=True)
    return {}


def faulty_policies(directory: Path) -> dict[str, object]:
    (directory / "policies.yaml").write_text("namespaces: 1")
    return {"policyFile": str(directory / "policies.yaml")}


def file_as_attachments(directory: Path) -> dict[str, object]:
    (directory / "run").mkdir()
    (directory / "run/attachments").write_text("")
    (directory / "state").mkdir()
    Receipts(directory / "state/ledger.db").close()
    return {}


def directory_as_socket(directory: Path) -> dict[str, object]:
    (directory / "run/cni.sock").mkdir(parents=True)
    return {}


@pytest.mark.parametrize(
    ("obstruct", "why"),
    [
        (directory_as_marker, "marker of exclusive devices"),
        (faulty_policies, "policies.yaml"),
        (file_as_attachments, "attachments"),
        (directory_as_socket, "cni.sock"),
    ],
)
def test_ledger_is_closed_when_the_agent_cannot_start(
    tmp_path: Path, obstruct: Callable[[Path], dict[str, object]], why: str
) -> None:
    """By each step after its opening: of the host, of the other parts, of the recovery, of the sockets."""
    config = {
        "node": "w1",
        "kernel": "virtual",
        "runDir": str(tmp_path / "run"),
        "stateDir": str(tmp_path / "state"),
        **obstruct(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", AGENT_THAT_FAILS, json.dumps(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert why in ended.stdout, ended.stderr
    assert "in use" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
