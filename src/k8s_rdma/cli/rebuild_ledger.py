"""`k8s-rdma agent --rebuild-ledger`: its results on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.agent.rebuild_ledger import rebuild_ledger
from k8s_rdma.cli.console import Page
from k8s_rdma.cli.tables import Column, Table
from k8s_rdma.errors import visible

if TYPE_CHECKING:
    from k8s_rdma.config.agent import AgentConfig


def rebuild(config: AgentConfig) -> int:
    """Rebuild the ledger, and print the outcomes.

    The exit status is 1 if part of it could not be rebuilt, although the new ledger is in place.
    """
    outcomes = rebuild_ledger(config)
    page = Page(markup=False)
    if outcomes:
        table = Table(Column("ATTACHMENT"), Column("MESSAGE", prose=True))
        for outcome in outcomes:
            table.add(visible(outcome.subject), visible(outcome.message))
        page.print(table)
    rebuilt = sum(outcome.receipt is not None for outcome in outcomes)
    page.print(f"{rebuilt} attachments rebuilt; the agent can be started")
    return 0 if all(outcome.complete for outcome in outcomes) else 1
