"""`k8s-rdma init`: the outcome of each PF as a table, and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from k8s_rdma.cli.console import Page
from k8s_rdma.cli.tables import NONE, Column, Table
from k8s_rdma.errors import visible
from k8s_rdma.init.main import run
from k8s_rdma.init.pf_setup import PfOutcome, PfResult, all_well

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.config.init import InitConfig

NO_CARD = (
    "No network card of this machine can have VFs: SR-IOV is off in the BIOS or in the card's firmware, the "
    "machine has VFs alone that its host passed into it, or this is another node than was meant."
)

_STYLES = {
    PfResult.READY: "green",
    PfResult.CHANGED: "green",
    PfResult.PLANNED: "cyan",
    PfResult.REFUSED: "yellow",
    PfResult.FAILED: "bold red",
    PfResult.SKIPPED: "dim",
    PfResult.NOT_THERE: "yellow",
}
_COLUMNS = (
    Column("PF"),
    Column("ASKED", right=True, rank=2),
    Column("BEFORE", right=True, rank=1),
    Column("NOW", right=True),
    Column("RESULT"),
    Column("MESSAGE", prose=True),
    Column("WHAT TO DO", prose=True),
)


def init(config: InitConfig, *, dry_run: bool) -> int:
    """Make the machine's PFs ready, and print the outcomes; return the exit status, 1 for a fault.

    dry_run: print the plan, and change nothing; the exit status is 0.
    """
    outcomes = run(config, dry_run=dry_run)
    show(outcomes, Page(markup=False))
    return 0 if dry_run or all_well(outcomes, keep_used_vfs=config.keep_used_vfs) else 1


def show(outcomes: Sequence[PfOutcome], page: Page) -> None:
    """Print a row for each PF, and a sentence if there is no card."""
    if all(outcome.result is PfResult.NOT_THERE for outcome in outcomes):
        page.print(NO_CARD)
    if outcomes:
        page.print(_table(outcomes))


def _table(outcomes: Sequence[PfOutcome]) -> Table:
    rows = Table(*_COLUMNS)
    for outcome in outcomes:
        requested = "all" if outcome.requested is None else str(outcome.requested)
        is_known = outcome.previous is not None
        rows.add(
            visible(outcome.pf) or NONE,
            requested if is_known else NONE,
            str(outcome.previous) if is_known else NONE,
            NONE if outcome.current is None else str(outcome.current),
            Text(outcome.result.value, style=_STYLES[outcome.result]),
            visible(outcome.message),
            visible(outcome.advice),
        )
    return rows
