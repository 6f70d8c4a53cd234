"""Attempts at each PF with their outcomes, and the table that ends a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

import structlog
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from k8s_rdma.errors import K8sRdmaError, visible
from k8s_rdma.init.job import Job, SetupError, StoppedError, refused_read
from k8s_rdma.init.pf_setup import PfSetup
from k8s_rdma.linux.vf.creation import SriovPf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.job import Machine, Target
    from k8s_rdma.init.pf_setup import Refused
    from k8s_rdma.init.vf_users import Pods


@unique
class Result(StrEnum):
    """What became of a PF.

    READY: as asked, and nothing was to be done. CHANGED: as asked now. REFUSED: not as asked since its VFs
    are used; it works on with those it has. FAILED: not as asked. SKIPPED: not selected in the end.
    NOT_THERE: a rule names it, and there is no such PF.
    """

    READY = "no change"
    CHANGED = "changed"
    REFUSED = "refused"
    FAILED = "failed"
    SKIPPED = "left out"
    NOT_THERE = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """requested: VFs, None for all. previous, now: VFs it had and has; None where it cannot have any.

    message: what was done, or why not. advice: what to do; empty when there is nothing.
    """

    pf: str
    result: Result
    message: str
    advice: str = ""
    requested: int | None = None
    previous: int | None = None
    now: int | None = None


def all_well(outcomes: Iterable[Outcome], *, keep_used_vfs: bool) -> bool:
    """Report whether the process ended well."""
    bad = {Result.FAILED} if keep_used_vfs else {Result.FAILED, Result.REFUSED}
    return all(outcome.result not in bad for outcome in outcomes)


_STYLES = {
    Result.READY: "green",
    Result.CHANGED: "green",
    Result.REFUSED: "yellow",
    Result.FAILED: "bold red",
    Result.SKIPPED: "dim",
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
    unknown = outcome.previous is None
    return (
        escape(visible(outcome.pf)),
        "" if unknown else "all" if outcome.requested is None else str(outcome.requested),
        "" if unknown else str(outcome.previous),
        "" if outcome.now is None else str(outcome.now),
        f"[{style}]{outcome.result}[/]",
        escape(visible(outcome.message)),
        escape(visible(outcome.advice)),
    )


_log = structlog.get_logger()


def make_ready(machine: Machine, config: InitConfig, pods: Pods, target: Target) -> Outcome:
    """What became of one PF. Only what no one foresaw is raised."""
    log = _log.bind(pf=target.name, pci=target.pci)
    started = machine.clock.now()
    with machine.links() as links:
        job = Job(
            target=target,
            sysfs=machine.sysfs,
            sriov=SriovPf(machine.sysfs, target.pci),
            links=links,
            clock=machine.clock,
            config=config,
            log=log,
        )
        outcome = _outcome(job, pods)
    say = {Result.FAILED: log.error, Result.REFUSED: log.warning}.get(outcome.result, log.info)
    say(
        "pf_ended",
        result=outcome.result,
        said=outcome.message,
        advice=outcome.advice,
        before=outcome.previous,
        now=outcome.now,
        duration_s=round(machine.clock.now() - started, 3),
    )
    return outcome


def _outcome(job: Job, pods: Pods) -> Outcome:
    setup = None
    for attempts_left in reversed(range(job.config.tries)):
        try:
            setup = setup or PfSetup(job, pods)
            return _ended(job, setup, setup.attempt())
        except K8sRdmaError as error:
            failure = error
        except OSError as error:
            failure = refused_read(f"PF {job.target.name}", error)
        if _is_last(failure, attempts_left) or not _rested(job, failure, attempts_left):
            break
    return _failed(job, setup, failure)


def _is_last(failure: K8sRdmaError, attempts_left: int) -> bool:
    return (
        not attempts_left
        or isinstance(failure, StoppedError)
        or (isinstance(failure, SetupError) and failure.lasting)
    )


def _rested(job: Job, failure: K8sRdmaError, attempts_left: int) -> bool:
    """Wait before the next try; False when that was cut short."""
    pause_s = job.config.backoff_s * 2 ** (job.config.tries - 1 - attempts_left)
    job.log.warning("pf_try_failed", error=str(failure), tries_left=attempts_left, next_in_s=pause_s)
    try:
        job.clock.wait(pause_s)
    except StoppedError:
        return False
    return True


def _ended(job: Job, setup: PfSetup, refused: Refused | None) -> Outcome:
    progress = setup.progress
    if refused is None:
        result = Result.CHANGED if progress.changes() else Result.READY
        return _outcome_of(job, setup, result, progress.describe(), "")
    return _outcome_of(
        job, setup, Result.REFUSED if refused.in_use else Result.FAILED, refused.why, refused.advice
    )


def _failed(job: Job, setup: PfSetup | None, failure: K8sRdmaError) -> Outcome:
    changes = setup.progress.changes() if setup else ()
    message = f"{failure} (done before: {', '.join(changes)})" if changes else str(failure)
    return _outcome_of(
        job, setup, Result.FAILED, message, failure.advice if isinstance(failure, SetupError) else ""
    )


def _outcome_of(job: Job, setup: PfSetup | None, result: Result, message: str, advice: str) -> Outcome:
    try:
        now = job.sriov.count()
    except OSError:
        now = None
    return Outcome(
        pf=job.target.name,
        result=result,
        message=message,
        advice=advice,
        requested=job.target.rule.num_vfs,
        previous=setup.previous_vfs if setup else None,
        now=now,
    )
