"""The process `k8s-rdma init`: it sets up PFs once their drivers are there.

It tries each PF until it is ready, and ends with a table of the outcomes.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from k8s_rdma import logs
from k8s_rdma.errors import K8sRdmaError, KernelError, visible
from k8s_rdma.init.job import (
    Job,
    Machine,
    SetupError,
    StoppableClock,
    StoppedError,
    Target,
    refused_read,
    wait_until,
)
from k8s_rdma.init.pf_setup import PfSetup
from k8s_rdma.init.vf_users import ledger_held
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.discovery.pfs import Discovery, FoundPf, Missing, Selected, SkippedPf
from k8s_rdma.linux.pci import USERSPACE_DRIVERS
from k8s_rdma.linux.sysfs import Sysfs, is_absent
from k8s_rdma.linux.vf.creation import KernelSriovLinks, SriovPf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.pf_setup import Refused
    from k8s_rdma.init.vf_users import Pods

_log = structlog.get_logger()
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

WIDTH = 160
"""Columns of the table where nobody says how wide the paper is, as in a container's log."""

MAX_PARALLEL = 16
"""PFs; each waits for its own firmware most of the time."""
LOOK_EVERY_S = 0.5
NO_CARD = (
    "No network card of this machine can have VFs: SR-IOV is off in the BIOS or in the card's firmware, or "
    "this is another node than was meant."
)


def run(config: InitConfig) -> bool:
    """Make the machine's PFs ready and print what came of it; whether all is well."""
    logs.configure("init")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    machine = Machine(
        sysfs=Sysfs(config.sys_root),
        queries=NetlinkQueries,
        links=KernelSriovLinks,
        clock=StoppableClock(stop),
        boot_id=BOOT_ID.read_text().strip(),
    )
    outcomes = make_all_ready(machine, config)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(summary(outcomes))
    return all_well(outcomes, keep_used_vfs=config.keep_used_vfs)


def make_all_ready(machine: Machine, config: InitConfig) -> Sequence[Outcome]:
    """Every PF that is selected, in parallel; a failure of one is its own.

    One outcome a PF of the machine, and one for each that is named and is not there.
    """
    started = time.monotonic()
    selecting = select_pfs(machine, config)
    for problem in selecting.problems:
        _log.warning("rule_matches_nothing", problem=problem)
    with ExitStack() as undo:
        pods = undo.enter_context(ledger_held(Path(config.state_dir) / "ledger.db", machine.boot_id))
        if pods.unknown:
            _log.warning("ledger_unreadable", error=pods.unknown)
        workers = undo.enter_context(ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="pf"))
        ends = [
            # In a context of its own, so that what is logged there says which process it is.
            workers.submit(copy_context().run, make_ready, machine, config, pods, target)
            for target in selecting.targets
        ]
        outcomes = [*(end.result() for end in ends), *_skipped(selecting)]
    _log.info("init_ended", duration_s=round(time.monotonic() - started, 3), **_counts(outcomes))
    return outcomes


def _skipped(selecting: Selecting) -> Iterator[Outcome]:
    """PFs that are seen and nothing is done with, and what is not seen; each with its reason."""
    for each in selecting.skipped:
        result = Result.FAILED if is_fault(each) else Result.SKIPPED
        yield Outcome(pf=each.pf.name, result=result, message=each.why)
    for pf in selecting.unmeant:
        yield Outcome(pf=pf.name, result=Result.SKIPPED, message="no rule of hardware.pfs selects it")
    for problem in selecting.problems:
        yield Outcome(pf="", result=Result.NOT_THERE, message=problem)


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {result.name.lower(): sum(outcome.result is result for outcome in outcomes) for result in Result}


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


_STYLES = {
    Result.READY: "green",
    Result.CHANGED: "green",
    Result.REFUSED: "yellow",
    Result.FAILED: "bold red",
    Result.SKIPPED: "dim",
    Result.NOT_THERE: "yellow",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selecting:
    """targets: in order of their PCI address. skipped: those that could have been, and why not.

    problems: a sentence on each rule that names what is not there. unmeant: PFs that no rule matches.
    """

    targets: tuple[Target, ...]
    skipped: tuple[SkippedPf, ...]
    problems: tuple[str, ...]
    unmeant: tuple[FoundPf, ...]


def select_pfs(machine: Machine, config: InitConfig) -> Selecting:
    """Wait for drivers and netdevs, then for RDMA devices where they are demanded.

    KernelError when the machine cannot be looked at.
    """
    waits = (
        ("driver", config.driver_timeout_s, is_unfinished),
        ("RDMA device", config.rdma_timeout_s, lacks_rdma),
    )
    with machine.queries() as queries:
        scan = _Scan(Observer(machine.sysfs, queries, config.hardware.to_core()))
        for subject, timeout_s, incomplete in waits:
            if not wait_until(machine.clock, timeout_s, partial(scan.none_is, incomplete), LOOK_EVERY_S):
                _log.warning("pfs_incomplete", without=subject, waited_s=timeout_s)
    found = scan.found
    return Selecting(
        targets=tuple(map(_target, found.selected)),
        skipped=found.skipped,
        problems=found.problems,
        unmeant=found.unmeant,
    )


def is_fault(skipped: SkippedPf) -> bool:
    """Whether a PF that is left out should not have been.

    Who names a PF wants it. A PF without driver, or without what its driver should have made, is broken;
    one that is lent to a program or another namespace, or that only a broad rule meant, is not.
    """
    return skipped.rule.names_it or is_unfinished(skipped)


def is_unfinished(skipped: SkippedPf) -> bool:
    """Report whether its driver is still to come, or still to make its netdev."""
    match skipped.missing:
        case Missing.DRIVER | Missing.AGREEMENT:
            return True
        case Missing.NETDEV:
            return skipped.pf.netdevs is None and skipped.pf.driver not in USERSPACE_DRIVERS
        case _:
            return False


def lacks_rdma(skipped: SkippedPf) -> bool:
    """Report whether an RDMA device is what it lacks; its driver may come later than that of the netdev."""
    return skipped.missing is Missing.RDMA


def all_well(outcomes: Iterable[Outcome], *, keep_used_vfs: bool) -> bool:
    """Report whether the process ended well."""
    bad = {Result.FAILED} if keep_used_vfs else {Result.FAILED, Result.REFUSED}
    return all(outcome.result not in bad for outcome in outcomes)


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


class _Scan:
    """Looks at the machine; `found` is what the last one saw."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.found = Discovery((), (), ())

    def none_is(self, incomplete: Callable[[SkippedPf], bool]) -> bool:
        """Look, and say whether no PF that is left out is so."""
        try:
            self.found = self._observer.discover()
        except OSError as error:
            if is_absent(error):  # while it was being looked at, as its driver leaves or comes
                return False
            msg = f"sysfs: {error}"
            raise KernelError(msg) from error
        return not any(map(incomplete, self.found.skipped))


def _target(selected: Selected) -> Target:
    pf = selected.pf
    if pf.link_type is None:
        msg = f"PF {pf.name} ({pf.pci}): is neither Ethernet nor InfiniBand; exclude it in hardware.pfs"
        raise KernelError(msg)
    return Target(name=pf.name, pci=pf.pci, link_type=pf.link_type, rule=selected.rule)
