"""The table that ends a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from k8s_rdma.errors import visible
from k8s_rdma.init.outcome import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from k8s_rdma.init.outcome import Outcome

_STYLES = {
    Result.READY: "green",
    Result.CHANGED: "green",
    Result.KEPT: "yellow",
    Result.FAILED: "bold red",
    Result.LEFT_OUT: "dim",
    Result.NOT_THERE: "yellow",
}


NO_CARD = (
    "No network card of this machine can have VFs: SR-IOV is off in the BIOS or in the card's firmware, or "
    "this is another node than was meant."
)


def summary(outcomes: Sequence[Outcome]) -> RenderableType:
    """A row a PF, and a sentence where there is none."""
    no_card = all(outcome.result is Result.NOT_THERE for outcome in outcomes)
    return Group(*([NO_CARD] if no_card else []), *([_table(outcomes)] if outcomes else []))


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="VFs of this machine's PFs", title_justify="left")
    for heading in ("PF", "asked", "before", "now", "result", "", "what to do"):
        table.add_column(heading, justify="right" if heading in {"asked", "before", "now"} else "left")
    for outcome in outcomes:
        table.add_row(*_row(outcome))
    return table


def _row(outcome: Outcome) -> tuple[str, ...]:
    style = _STYLES[outcome.result]
    unknown = outcome.before is None
    return (
        escape(visible(outcome.pf)),
        "" if unknown else "all" if outcome.asked is None else str(outcome.asked),
        "" if unknown else str(outcome.before),
        "" if outcome.now is None else str(outcome.now),
        f"[{style}]{outcome.result}[/]",
        escape(visible(outcome.said)),
        escape(visible(outcome.advice)),
    )
