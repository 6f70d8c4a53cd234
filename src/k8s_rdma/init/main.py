"""The process `k8s-rdma init`: selects PFs once their drivers are there, and sets them up in parallel."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from k8s_rdma import process
from k8s_rdma.errors import KernelError
from k8s_rdma.init.job import MachineInterfaces, StoppableClock, Target, wait_until
from k8s_rdma.init.pf_setup import PfOutcome, PfResult, make_ready, plan
from k8s_rdma.init.used_vfs import ledger_held
from k8s_rdma.init.vf_settings import address_conflicts
from k8s_rdma.linux.discovery.functions import AbsentPf, Discovery, FoundPf, Missing, Selected, SkippedPf
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, Sysfs, is_absent
from k8s_rdma.linux.vf.sriov_links import KernelSriovLinks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from k8s_rdma.config.init import InitConfig


_log = structlog.get_logger()
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

MAX_PARALLEL = 16
"""PFs; each waits for its own firmware most of the time."""
LOOK_EVERY_S = 0.5


def run(config: InitConfig, *, dry_run: bool = False) -> Sequence[PfOutcome]:
    """Make the machine's PFs ready; return the outcomes, as `make_all_ready` does.

    dry_run: plan only, and do not wait for drivers.
    """
    process.configure_logging("init")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    machine = MachineInterfaces(
        sysfs=Sysfs(config.sys_root),
        queries=NetlinkQueries,
        links=KernelSriovLinks,
        clock=StoppableClock(stop),
        boot_id=BOOT_ID.read_text().strip(),
    )
    return make_all_ready(machine, config, dry_run=dry_run)


def make_all_ready(
    machine: MachineInterfaces, config: InitConfig, *, dry_run: bool = False
) -> Sequence[PfOutcome]:
    """Make every selected PF ready, in parallel; a failure of one does not affect others.

    Return one outcome for each PF of the machine, and one for each that is named and does not exist.

    dry_run: plan only.
    """
    started, work = time.monotonic(), plan if dry_run else make_ready
    if dry_run:
        config = msgspec.structs.replace(config, driver_timeout_s=0, rdma_timeout_s=0)
    selecting = select_pfs(machine, config)
    for absent in selecting.absent:
        _log.warning("rule_matches_nothing", problem=str(absent))
    with ExitStack() as undo:
        pods = undo.enter_context(ledger_held(Path(config.state_dir) / "ledger.db", machine.boot_id))
        if pods.unknown:
            _log.warning("ledger_unreadable", error=pods.unknown)
        workers = undo.enter_context(ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="pf"))
        ends = [
            # # In a context of its own, so that its log messages have the process's fields.
            workers.submit(copy_context().run, work, machine, config, pods, target)
            for target in selecting.targets
        ]
        outcomes = [*(end.result() for end in ends), *_skipped(selecting)]
    _log.info("init_ended", duration_s=round(time.monotonic() - started, 3), **_counts(outcomes))
    return outcomes


def _skipped(selecting: Selecting) -> Iterator[PfOutcome]:
    """Yield PFs that are left alone, and those that cannot be seen; each with its reason."""
    for skipped in selecting.skipped:
        result = PfResult.FAILED if is_fault(skipped) else PfResult.SKIPPED
        yield PfOutcome(pf=skipped.pf.name, result=result, message=skipped.why, advice=skipped.advice)
    for pf in selecting.unmeant:
        message = f"no rule of hardware.pfs selects it; it can have {pf.total_vfs} VFs"
        yield PfOutcome(pf=pf.name, result=PfResult.SKIPPED, message=message)
    for absent in selecting.absent:
        # One configuration serves unlike nodes; the name of another naming scheme is a mistake.
        result = PfResult.FAILED if absent.likely else PfResult.NOT_THERE
        advice = f"write {absent.likely} in hardware.pfs[].names" if absent.likely else ""
        yield PfOutcome(pf="", result=result, message=str(absent), advice=advice)


def _counts(outcomes: Sequence[PfOutcome]) -> dict[str, int]:
    return {result.name.lower(): sum(outcome.result is result for outcome in outcomes) for result in PfResult}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selecting:
    """targets: in order of their PCI address. skipped: those that could have been, and why not.

    absent, unmeant: see `Discovery`.
    """

    targets: tuple[Target, ...]
    skipped: tuple[SkippedPf, ...]
    absent: tuple[AbsentPf, ...]
    unmeant: tuple[FoundPf, ...]


def select_pfs(machine: MachineInterfaces, config: InitConfig) -> Selecting:
    """Wait for drivers and netdevs, then for RDMA devices if they are demanded.

    KernelError if the machine cannot be scanned.
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
        targets=tuple(_with_conflicts(machine, [_target(selected) for selected in found.selected])),
        skipped=found.skipped,
        absent=found.absent,
        unmeant=found.unmeant,
    )


def is_fault(skipped: SkippedPf) -> bool:
    """Report whether leaving out this PF is a fault.

    It is a fault if a rule names the PF. It is also a fault if the PF has no driver, or lacks a device that
    its driver should have made. It is no fault if the PF is lent to a program or another namespace, or if
    only a broad rule selects it.
    """
    return skipped.rule.names_it or is_unfinished(skipped)


def is_unfinished(skipped: SkippedPf) -> bool:
    """Report whether the driver, or its netdev, is still missing."""
    match skipped.missing:
        case Missing.DRIVER | Missing.AGREEMENT:
            return True
        case Missing.NETDEV:
            return skipped.pf.netdevs is None and skipped.pf.driver not in USERSPACE_DRIVERS
        case _:
            return False


def lacks_rdma(skipped: SkippedPf) -> bool:
    """Report whether the PF lacks only an RDMA device, whose driver may load after the netdev's."""
    return skipped.missing is Missing.RDMA


def _with_conflicts(machine: MachineInterfaces, targets: Sequence[Target]) -> Iterator[Target]:
    """Yield the targets, each with why no addresses for its VFs can be made."""
    with machine.links() as links:
        found = {target.pci: links.link(target.name) for target in targets if target.rule.num_vfs != 0}
        addresses = {pci: links.permanent_address(link) for pci, link in found.items() if link}
    by_name = {target.name: addresses[target.pci] for target in targets if target.pci in addresses}
    conflicts = address_conflicts(by_name)
    for target in targets:
        yield replace(target, conflict=conflicts.get(target.name, ""))


class _Scan:
    """Scans the machine; `found` is the result of the last scan."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.found = Discovery((), (), ())

    def none_is(self, incomplete: Callable[[SkippedPf], bool]) -> bool:
        """Look, and say whether no PF that is left out is so."""
        try:
            self.found = self._observer.discover()
        except OSError as error:
            if is_absent(error):  # # during the scan, because its driver leaves or comes
                return False
            msg = f"sysfs: {error}"
            raise KernelError(msg) from error
        return not any(map(incomplete, self.found.skipped))


def _target(selected: Selected) -> Target:
    pf = selected.pf
    if pf.link_type is None:
        msg = f"PF {pf.name} ({pf.pci}): is neither Ethernet nor InfiniBand; exclude it in hardware.pfs"
        raise KernelError(msg)
    rule = selected.rule
    if pf.bond and not rule.names_it:  # another number of VFs takes the removal of all, and ends a VF LAG
        rule = dataclasses.replace(rule, num_vfs=pf.num_vfs)
    return Target(name=pf.name, pci=pf.pci, link_type=pf.link_type, rule=rule)
