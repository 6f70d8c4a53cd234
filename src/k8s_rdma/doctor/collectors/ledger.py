"""Facts of the agent's ledger."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from k8s_rdma.core.ledger import Phase
from k8s_rdma.doctor.node.ledger import LedgerFacts
from k8s_rdma.errors import LedgerError
from k8s_rdma.linux.receipts import NewerLedgerError, Receipts

_LEDGER_FILES = ("", "-wal")


def ledger_facts(path: Path, *, agent_socket: str) -> LedgerFacts:
    """Read a copy of the ledger. OSError if it cannot be read.

    A copy is read because the doctor must not lock the ledger, nor upgrade an older program's file.

    agent_socket: the agent that has it open; empty if no agent answers.
    """
    if agent_socket or not path.exists():
        return LedgerFacts(path=str(path), exists=bool(agent_socket), source=agent_socket)
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-") as directory:
        copy = Path(directory) / path.name
        for suffix in _LEDGER_FILES:
            if (file := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
        try:
            with closing(Receipts(copy)) as receipts:
                found = tuple(receipts.load().receipts.values())
        except LedgerError as error:
            return LedgerFacts(
                path=str(path),
                exists=True,
                fault=str(error).replace(str(copy), str(path)),
                newer=isinstance(error, NewerLedgerError),
            )
    unfinished = (receipt for receipt in found if receipt.phase is not Phase.ATTACHED)
    return LedgerFacts(
        path=str(path),
        exists=True,
        receipts=len(found),
        unfinished=tuple(
            f"{receipt.pod.namespace}/{receipt.pod.name} ({receipt.phase})" for receipt in unfinished
        ),
    )
