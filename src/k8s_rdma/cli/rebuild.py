"""`k8s-rdma agent --rebuild-ledger`: does it, and shows what became of each attachment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from k8s_rdma.agent.rebuild_ledger import rebuild_ledger
from k8s_rdma.errors import visible

if TYPE_CHECKING:
    from k8s_rdma.agent.config import AgentConfig

WIDE = 200
"""Columns where nobody looks: a line of a log is not to be broken."""


def rebuild(config: AgentConfig) -> int:
    """The exit status: 1 when not everything could be rebuilt, though the new ledger is in place."""
    outcomes = rebuild_ledger(config)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    if outcomes:
        table = Table("attachment", "outcome", box=SIMPLE_HEAD)
        for each in outcomes:
            table.add_row(escape(visible(each.what)), escape(visible(each.said)))
        console.print(table)
    rebuilt = sum(each.receipt is not None for each in outcomes)
    console.print(f"{rebuilt} attachments rebuilt; the agent can be started", markup=False)
    return 0 if all(each.complete for each in outcomes) else 1
