"""The process `k8s-rdma init`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from rich.console import Console

from k8s_rdma import logs
from k8s_rdma.init.attempts import Outcome, Result, all_well, make_ready, summary
from k8s_rdma.init.job import Machine, StoppableClock
from k8s_rdma.init.pf_selection import is_fault, select_pfs
from k8s_rdma.init.vf_users import ledger_held
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.creation import KernelSriovLinks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.pf_selection import Selecting

_log = structlog.get_logger()
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
WIDTH = 160
"""Columns of the table where nobody says how wide the paper is, as in a container's log."""

MAX_PARALLEL = 16
"""PFs; each waits for its own firmware most of the time."""


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
