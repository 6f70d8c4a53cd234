"""Setup of one PF: decide the number of VFs, create, configure, bind and name them; retries, outcomes.

Every driver accepts this order: no driver on the VFs until the PF is up, has its link, and has the VFs'
addresses, because a VF's driver asks for those once, when it is bound. (igbvf, bound to a VF of a PF without
link, takes a random MAC, or ten seconds until it has a link of its own.)
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum, unique
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma.init.job import (
    Job,
    MachineInterfaces,
    SetupError,
    StoppedError,
    Target,
    refused_read,
    refused_write,
    wait_until,
)
from k8s_rdma.init.used_vfs import Pods, used_vfs
from k8s_rdma.init.vf_settings import MOST_VFS, Configuration
from k8s_rdma.linux.vf.binding import PciDriver
from k8s_rdma.linux.vf.creation import SriovPf, VfFunction
from k8s_rdma.linux.vf.sriov_links import NetdevsOf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from k8s_rdma.config.init import InitConfig
    from k8s_rdma.linux.netlink.rtnl import Link

_log = structlog.get_logger()
TELL_EVERY_S = 5.0

_LONGEST = 15
"""IFNAMSIZ without its NUL (Linux `include/uapi/linux/if.h`)."""
_BY_KERNEL = re.compile(r"(eth|ib)\d+")

_RENAMED = "4"
"""NET_NAME_RENAMED of `name_assign_type` (Linux `Documentation/ABI/testing/sysfs-class-net`)."""


@unique
class PfResult(StrEnum):
    """Result for a PF.

    READY: as requested, without a change.
    CHANGED: as requested, by a change.
    PLANNED: would be changed.
    REFUSED: not as requested because its VFs are used; it works on with its present VFs.
    FAILED: not as requested.
    SKIPPED: not selected in the end.
    NOT_THERE: a rule names it, and there is no such PF.
    """

    READY = "no change"
    CHANGED = "changed"
    PLANNED = "would change"
    REFUSED = "refused"
    FAILED = "failed"
    SKIPPED = "left out"
    NOT_THERE = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class PfOutcome:
    """requested: VFs, None for all. previous, current: VFs before and now; None if it cannot have any.

    message: the changes, or the reason for a failure.
    advice: the remedy; empty if there is none.
    """

    pf: str
    result: PfResult
    message: str
    advice: str = ""
    requested: int | None = None
    previous: int | None = None
    current: int | None = None


@dataclass(slots=True, kw_only=True)
class PfProgress:
    """Counts that grow with each change, so that a later failure does not hide them.

    created: VFs that there are since, None while their number is unchanged.
    settings: on VFs.
    bound: VFs given to their driver.
    named: netdevs.
    notes: one sentence each.
    """

    created: int | None = None
    settings: int = 0
    bound: int = 0
    named: int = 0
    brought_up: bool = False
    notes: tuple[str, ...] = ()

    def changes(self) -> tuple[str, ...]:
        """Return the changes as text: `7 made`, `7 bound`."""
        counts = (
            ("made", self.created or 0),
            ("settings", self.settings),
            ("bound", self.bound),
            ("named", self.named),
        )
        removed = ("all removed",) if self.created == 0 else ()
        link_up = ("PF up",) if self.brought_up else ()
        return (*removed, *(f"{count} {change}" for change, count in counts if count), *link_up)

    def describe(self) -> str:
        """Return the changes and the notes."""
        return "; ".join(filter(None, [", ".join(self.changes()), *self.notes]))


class PfSetup:
    """The setup of one PF; a second try goes on where the first one ended."""

    def __init__(self, job: Job, pods: Pods) -> None:
        """Read which VFs are used. Later changes of them are our own."""
        self._job = job
        vfs = job.sriov.vfs()
        self.previous_vfs = len(vfs)
        self.progress = PfProgress()
        self._used: Mapping[int, str] = used_vfs(job.target.pci, vfs, pods, job.links)
        self._waited_for: set[int] = set()

    def decision(self) -> int | RefusedSetup:
        """Decide the number of VFs, without a change; OSError if the PF cannot be read."""
        sriov, rule = self._job.sriov, self._job.target.rule
        if self._job.target.conflict:
            return RefusedSetup(
                why=f"its VFs would have addresses that others have: {self._job.target.conflict}",
                advice="give the card a permanent address of its own by its maker's tool, or leave it out of "
                "hardware.pfs",
                in_use=bool(self._used),
            )
        return decide(requested=rule.num_vfs, total=sriov.total(), current=sriov.count(), used=self._used)

    def attempt(self) -> RefusedSetup | None:
        """Make it ready. SetupError, another KernelError or OSError when something stands against that."""
        job = self._job
        current, count = job.sriov.count(), self.decision()
        if isinstance(count, RefusedSetup):
            return count
        with probing_restored(job):
            if count != current:
                create_vfs(job, current, count)
                self.progress.created = count
            self._ready()
        return None

    def _ready(self) -> None:
        job = self._job
        self._bring_up()
        mtu = job.target.rule.mtu
        if mtu is not None:
            self.progress.settings += set_mtu(job, mtu, [job.link()])
        vfs = self._with_netdevs([vf for vf in job.sriov.vfs() if vf.index not in self._used])
        if any(not vf.driver for vf in vfs):
            wait_for_link(job)
        configuration = Configuration(job, vfs)
        settings = configuration.apply()
        self.progress.settings += settings
        if settings:
            job.log.info("vfs_configured", settings=settings)
        stale = configuration.stale(self._addresses(vfs))
        bound = self._bind([vf for vf in vfs if not vf.netdevs or vf.index in stale])
        self.progress.notes = self._notes(configuration)
        if settings or bound:
            configuration.check(self._addresses(bound))
        if job.config.name_vfs:
            self.progress.named += name_netdevs(job, bound)
        if mtu is not None:
            links = NetdevsOf(job.links.links())
            self.progress.settings += set_mtu(job, mtu, [link for vf in vfs for link in links.netdevs_of(vf)])

    def _bring_up(self) -> None:
        link = self._job.link()
        if not link.is_up:
            self._job.links.bring_up(link)
            self.progress.brought_up = True

    def _with_netdevs(self, vfs: Sequence[VfFunction]) -> Sequence[VfFunction]:
        """Wait for drivers to make missing netdevs, and return the VFs; those are bound again next time."""
        slow = [vf for vf in vfs if vf.driver and not vf.netdevs and vf.index not in self._waited_for]
        if not slow:
            return vfs
        self._waited_for |= {vf.index for vf in slow}
        wait_for_netdevs(self._job, slow, {})
        return [self._job.sriov.again(vf) for vf in vfs]

    def _bind(self, vfs: Sequence[VfFunction]) -> Sequence[VfFunction]:
        """Bind VFs and return them with their new netdevs."""
        if not vfs:
            return ()
        job = self._job
        self._waited_for |= {vf.index for vf in vfs}
        let_probe(job, True)
        bound = wait_for_netdevs(job, vfs, bind(job, vfs))
        self.progress.bound += len(bound)
        job.log.info("vfs_bound", vfs=len(bound))
        return bound

    def _addresses(self, vfs: Sequence[VfFunction]) -> dict[int, str]:
        """Return the hardware addresses of netdevs by VF."""
        links = NetdevsOf(self._job.links.links())
        return {vf.index: link.mac for vf in vfs for link in links.netdevs_of(vf)}

    def _notes(self, configuration: Configuration) -> tuple[str, ...]:
        notes = []
        if self._used:
            notes.append(f"used, and left as they are: {who_uses(self._used)}")
        notes += [
            f"its driver sets no {kind} on VFs, which keep what it gives them"
            for kind in sorted(configuration.unsupported)
        ]
        return tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSetup:
    """The reason why a PF keeps its VFs as they are, and the remedy.

    in_use: that VFs are used is all that stands against it; the PF works on with those it has.
    """

    why: str
    advice: str
    in_use: bool = False


def decide(*, requested: int | None, total: int, current: int, used: Mapping[int, str]) -> int | RefusedSetup:
    """Decide the number of VFs; equal to `current` for no change.

    Another number than `current` requires the removal of all VFs (Linux `drivers/pci/iov.c`,
    `sriov_numvfs_store`), so that it is refused while any is used.

    requested: None for all.
    total: the most that the PF can have (`sriov_totalvfs`).
    used: the user of a VF, by its index.
    """
    count = total if requested is None else requested
    if count > total:
        return RefusedSetup(
            why=f"{count} VFs requested, its sriov_totalvfs is {total}",
            advice=f"set numVfs to {total} or less, or raise the limit in the NIC's firmware "
            "(Mellanox: mlxconfig NUM_OF_VFS) and reboot",
        )
    if count > MOST_VFS:
        return RefusedSetup(why=f"{count} VFs requested", advice=f"set numVfs to {MOST_VFS} or less")
    if count != current and used:
        return RefusedSetup(
            why=f"{current} VFs cannot become {count} while some are used: {who_uses(used)}",
            advice="stop their users (drain the node, clear a driver_override), then run init again",
            in_use=True,
        )
    return count


def who_uses(used: Mapping[int, str]) -> str:
    """`pod default/a (VF 0, 2), vfio-pci (VF 5)`."""
    by_user = sorted((user, index) for index, user in used.items())
    return ", ".join(
        f"{user} (VF {', '.join(str(index) for _, index in vfs)})"
        for user, vfs in groupby(by_user, key=itemgetter(0))
    )


def wait_for_link(job: Job) -> None:
    """Wait for the PF's own link, because VFs get theirs slowly without it; a time-out is only logged."""
    path = f"class/net/{job.target.name}/carrier"
    if not wait_until(job.clock, job.config.carrier_timeout_s, lambda: job.sysfs.value_if_any(path) == "1"):
        job.log.warning("pf_without_link", waited_s=job.config.carrier_timeout_s)


def bind(job: Job, vfs: Iterable[VfFunction]) -> dict[int, str]:
    """Have VFs taken by their driver, again if they have one; return the failures, by index.

    VFs are bound one after the other, so that netdevs are numbered like VFs.
    """
    failed: dict[int, str] = {}
    written_at = job.clock.monotonic()
    for index, vf in enumerate(vfs):
        if job.clock.monotonic() - written_at >= TELL_EVERY_S:
            written_at = job.clock.monotonic()
            job.log.info("vfs_bound", vfs=index)
        job.clock.wait(0)
        try:
            PciDriver(job.sysfs, vf.pci).bind_anew()
        except OSError as error:
            failed[vf.index] = str(refused_write(f"driver of {vf.pci}", error))
    return failed


def wait_for_netdevs(
    job: Job, vfs: Sequence[VfFunction], failed: Mapping[int, str]
) -> tuple[VfFunction, ...]:
    """Wait until each VF has a netdev, and return the VFs; SetupError names one without a netdev in time."""
    missing = deque(vfs)
    progress_at = job.clock.monotonic()

    def complete() -> bool:
        nonlocal progress_at
        while missing and job.sriov.again(missing[0]).netdevs:
            missing.popleft()
        if missing and job.clock.monotonic() - progress_at >= TELL_EVERY_S:
            progress_at = job.clock.monotonic()
            job.log.info("waiting_for_netdevs", missing=len(missing), of=len(vfs))
        return not missing

    if not wait_until(job.clock, job.config.vf_timeout_s + job.config.timeout_per_vf_s * len(vfs), complete):
        lacking = [vf for vf in missing if not job.sriov.again(vf).netdevs]
        raise _without_netdevs(job, lacking or vfs, len(vfs), failed)
    return tuple(map(job.sriov.again, vfs))


def _without_netdevs(
    job: Job, missing: Sequence[VfFunction], total: int, failed: Mapping[int, str]
) -> SetupError:
    first = job.sriov.again(missing[0])
    state = failed.get(first.index) or (f"driver {first.driver}" if first.driver else "no driver")
    if override := first.driver_override:
        state += f", and its driver_override lets only {override} be bound to it"
        advice = f"clear it (driverctl unset-override {first.pci}), or load {override} on the host"
    elif first.driver or first.index in failed:
        advice = "see its driver's lines in dmesg"
    else:
        advice = f"load its driver on the host: modprobe {job.sriov.modalias(first)}"
    return SetupError(
        f"PF {job.target.name}: {len(missing)} of {total} VFs without a netdev, the first VF {first.index} "
        f"({first.pci}): {state}",
        advice=advice,
    )


def set_mtu(job: Job, mtu: int, links: Iterable[Link]) -> int:
    """Set the MTU of links that have another, the PF's before its VFs', and return how many these were."""
    changed = [link for link in links if link.mtu != mtu]
    for link in changed:
        if not job.links.set_mtu(link, mtu):
            raise SetupError(
                f"PF {job.target.name}: the driver of {link.name} does not take MTU {mtu}",
                advice="set hardware.pfs[].mtu to one that the card takes: maxmtu in `ip -d link show "
                f"{job.target.name}`; on InfiniBand 2044 or 4092",
                lasting=True,
            )
    return len(changed)


def name_netdevs(job: Job, vfs: Iterable[VfFunction]) -> int:
    """Name netdevs that the kernel numbered as udev would on a host of its own; return their number.

    A name that is taken, too long, or refused (for example because the netdev is up) is left out, which is no
    failure.
    """
    links = NetdevsOf(job.links.links())
    return sum(_name(job, vf.index, *links.netdevs_of(vf)) for vf in vfs if len(links.netdevs_of(vf)) == 1)


def _name(job: Job, vf: int, link: Link) -> bool:
    new = f"{job.target.name}v{vf}"
    if link.is_up or not _BY_KERNEL.fullmatch(link.name) or len(new) > _LONGEST or job.links.link(new):
        return False
    if job.sysfs.value_if_any(f"class/net/{link.name}/name_assign_type") == _RENAMED:
        return False
    try:
        job.links.rename(link, new)
    except KernelError as error:
        job.log.warning("vf_not_named", vf=vf, netdev=link.name, wanted=new, error=str(error))
        return False
    return True


@contextmanager
def probing_restored(job: Job) -> Iterator[None]:
    """Restore afterwards whether VFs are probed automatically."""
    probes = job.sriov.probes_vfs()
    try:
        yield
    finally:
        if job.sriov.probes_vfs() != probes:
            let_probe(job, probes)


def let_probe(job: Job, probe: bool) -> None:
    """Let VFs get a driver when they are made or probed, or keep them from it."""
    try:
        job.sriov.let_probe_vfs(probe)
    except OSError as error:
        operation = f"PF {job.target.name}: sriov_drivers_autoprobe {int(probe)}"
        raise refused_write(operation, error) from error


def create_vfs(job: Job, previous: int, count: int) -> None:
    """Replace unused VFs by `count` VFs without a driver.

    Without drivers that takes the kernel milliseconds a VF. If it fails, the former number is restored.
    """
    let_probe(job, False)
    if previous:
        _write(job, 0)
    try:
        _write_count(job, count)
    except SetupError as error:
        _restore_vfs(job, previous, error)
        raise
    job.log.info("vfs_made", before=previous, vfs=count)


def _restore_vfs(job: Job, previous: int, error: SetupError) -> None:
    """Create the previous VFs again, with their drivers."""
    try:
        let_probe(job, True)
        if job.sriov.count() != previous:
            _write(job, 0)
            _write(job, previous)
    except SetupError as undoing:
        msg = f"{error}; restoring the previous VFs failed too: {undoing}"
        raise SetupError(msg, advice=error.advice) from error


def _write_count(job: Job, count: int) -> None:
    _write(job, count)
    created = job.sriov.count()
    if created != count:
        raise SetupError(
            f"PF {job.target.name}: {count} VFs requested, its driver created {created}",
            advice="see its lines in dmesg, and set numVfs to a number that it can create",
        )


def _write(job: Job, count: int) -> None:
    try:
        job.sriov.create_vfs(count)
    except OSError as error:
        raise refused_write(f"PF {job.target.name}: sriov_numvfs {count}", error) from error


def make_ready(machine: MachineInterfaces, config: InitConfig, pods: Pods, target: Target) -> PfOutcome:
    """Set up one PF and return its outcome; raise unforeseen errors only."""
    log = _log.bind(pf=target.name, pci=target.pci)
    started = machine.clock.monotonic()
    with _job(machine, config, target, log) as job:
        outcome = _outcome(job, pods)
    say = {PfResult.FAILED: log.error, PfResult.REFUSED: log.warning}.get(outcome.result, log.info)
    say(
        "pf_ended",
        result=outcome.result,
        said=outcome.message,
        advice=outcome.advice,
        before=outcome.previous,
        now=outcome.current,
        duration_s=round(machine.clock.monotonic() - started, 3),
    )
    return outcome


def plan(machine: MachineInterfaces, config: InitConfig, pods: Pods, target: Target) -> PfOutcome:
    """Return the outcome with which `make_ready` would begin, without a change."""
    with _job(machine, config, target, _log) as job:
        setup = None
        try:
            setup = PfSetup(job, pods)
            count = setup.decision()
        except (K8sRdmaError, OSError) as error:
            failure = error if isinstance(error, K8sRdmaError) else refused_read(f"PF {target.name}", error)
            return _failed(job, setup, failure)
        if isinstance(count, RefusedSetup):
            return _ended(job, setup, count)
        if count == setup.previous_vfs:
            return _outcome_of(job, setup, PfResult.READY, f"has its {count} VFs", "")
        instead = f" in place of {setup.previous_vfs}" if setup.previous_vfs else ""
        return _outcome_of(job, setup, PfResult.PLANNED, f"would make {count} VFs{instead}", "")


@contextmanager
def _job(
    machine: MachineInterfaces, config: InitConfig, target: Target, log: FilteringBoundLogger
) -> Iterator[Job]:
    with machine.links() as links:
        yield Job(
            target=target,
            sysfs=machine.sysfs,
            sriov=SriovPf(machine.sysfs, target.pci),
            links=links,
            clock=machine.clock,
            config=config,
            log=log,
        )


def _outcome(job: Job, pods: Pods) -> PfOutcome:
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


def _ended(job: Job, setup: PfSetup, refused: RefusedSetup | None) -> PfOutcome:
    progress = setup.progress
    if refused is None:
        result = PfResult.CHANGED if progress.changes() else PfResult.READY
        return _outcome_of(job, setup, result, progress.describe(), "")
    return _outcome_of(
        job, setup, PfResult.REFUSED if refused.in_use else PfResult.FAILED, refused.why, refused.advice
    )


def _failed(job: Job, setup: PfSetup | None, failure: K8sRdmaError) -> PfOutcome:
    changes = setup.progress.changes() if setup else ()
    message = f"{failure} (done before: {', '.join(changes)})" if changes else str(failure)
    return _outcome_of(
        job, setup, PfResult.FAILED, message, failure.advice if isinstance(failure, SetupError) else ""
    )


def _outcome_of(job: Job, setup: PfSetup | None, result: PfResult, message: str, advice: str) -> PfOutcome:
    try:
        current = job.sriov.count()
    except OSError:
        current = None
    return PfOutcome(
        pf=job.target.name,
        result=result,
        message=message,
        advice=advice,
        requested=job.target.rule.num_vfs,
        previous=setup.previous_vfs if setup else None,
        current=current,
    )


def all_well(outcomes: Iterable[PfOutcome], *, keep_used_vfs: bool) -> bool:
    """Report whether the run succeeded."""
    bad = {PfResult.FAILED} if keep_used_vfs else {PfResult.FAILED, PfResult.REFUSED}
    return all(outcome.result not in bad for outcome in outcomes)
