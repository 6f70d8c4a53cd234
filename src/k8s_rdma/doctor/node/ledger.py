"""The agent's ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

LEDGER = Subject("ledger", "Ledger")
LEDGER_OK = LEDGER.ok()
NONE = LEDGER.note("none")
UNUSABLE = LEDGER.error("unusable")
NEWER = LEDGER.error("newer")
UNFINISHED = LEDGER.warning("unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """The agent's ledger.

    exists: whether there is a file.
    fault: why an agent could not use it; empty if it could.
    newer: whether the reason is that only a newer agent can use it.
    receipts: the number of receipts.
    unfinished: those of them that are not in the phase `held`, in words.
    source: the agent that has it open, so that it was not read here; empty otherwise.
    """

    path: str
    exists: bool
    fault: str = ""
    newer: bool = False
    receipts: int = 0
    unfinished: tuple[str, ...] = ()
    source: str = ""


@LEDGER.check(LedgerFacts)
def check_ledger(facts: LedgerFacts) -> Iterator[Finding]:
    """Check that an agent can start with the ledger, and the receipts in it."""
    if facts.source:
        yield LEDGER_OK("the running agent has it open and in order", about=facts.path, source=facts.source)
    elif not facts.exists:
        yield NONE("no agent has run here", about=facts.path, source=facts.path)
    elif facts.newer:
        yield NEWER(
            facts.fault,
            about=facts.path,
            source=facts.path,
            expected="an agent of that version, or no pods that need its features",
            fix="run the newer agent again: docs/agent-updates.md",
        )
    elif facts.fault:
        yield UNUSABLE(
            facts.fault,
            about=facts.path,
            source=facts.path,
            expected="a ledger that the agent can read",
            fix="k8s-rdma agent --config /etc/k8s-rdma/agent.yaml --rebuild-ledger",
        )
    elif facts.unfinished:
        yield UNFINISHED(
            f"{facts.receipts} receipts, unfinished: {'; '.join(facts.unfinished)}",
            about=facts.path,
            source=facts.path,
            expected="an agent, which completes or undoes them when it starts",
            fix="start the agent",
        )
    else:
        yield LEDGER_OK(f"in order, {facts.receipts} receipts", about=facts.path, source=facts.path)
