"""The agent's ledger on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

LEDGER = Subject("ledger", "Ledger")
OK = LEDGER.ok()
NONE = LEDGER.note("none")
UNUSABLE = LEDGER.error("unusable")
NEWER = LEDGER.error("newer")
UNFINISHED = LEDGER.warning("unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """exists: whether there is a file. fault: why an agent could not use it; empty when it could.

    newer: whether that is as a newer agent alone can. receipts: how many there are; unfinished: of those, not
    in the phase `held`, in words. source: the agent that has it open, so that it was not read here; empty
    without.
    """

    path: str
    exists: bool
    fault: str = ""
    newer: bool = False
    receipts: int = 0
    unfinished: tuple[str, ...] = ()
    source: str = ""


def check_ledger(facts: LedgerFacts) -> Iterator[Finding]:
    """Report whether an agent could start with it, and what it would find."""
    if facts.source:
        yield OK("the agent that runs has it open and in order", about=facts.path, source=facts.source)
    elif not facts.exists:
        yield NONE("there is none: no agent has run here", about=facts.path, source=facts.path)
    elif facts.newer:
        yield NEWER(
            facts.fault,
            about=facts.path,
            source=facts.path,
            expected="an agent of that version, or pods that hold nothing that it alone knows",
            fix="run the newer agent again; docs/agent-updates.md, Roll back",
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
            f"of {facts.receipts} receipts these are not at their end: {'; '.join(facts.unfinished)}",
            about=facts.path,
            source=facts.path,
            expected="an agent, which completes or undoes them when it starts",
            fix="start the agent",
        )
    else:
        yield OK(f"in order, {facts.receipts} receipts", about=facts.path, source=facts.path)
