"""Installation of executable and network configuration, in the order that never fails a pod of the node.

The executable is there before a configuration names it, and goes after no configuration has named it for a
while. If a process is killed between any two changes, or power is lost, one network or the other stays,
whole. `install-cni --follow` keeps both in place for as long as it runs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import InstalledProgram, NodeDirectory, all_locked, left_for
from k8s_rdma.install.network import (
    ConfDirectory,
    Decision,
    DesiredConflist,
    InstalledConflists,
    decide,
)
from k8s_rdma.install.network_mode import NetworkMode
from k8s_rdma.linux.changes import DirectoryChanges
from k8s_rdma.process import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


_log = structlog.get_logger()

POLL_S = 10.0
"""The interval between checks without an event: the target of a link changes without an event, and the kernel
limits the number of watches for each user."""
SETTLE_S = 0.05
"""Delay after an event: a file written in place is empty first, then partial."""
LOCK_RETRY_S = 1.0
LONGEST_PAUSE_S = 60.0
CALM_S = 600.0
"""The time after our last change from which another change of our file is no longer taken for a conflict."""


async def follow(
    installation: Installation, program: Path, directories: Sequence[Path], *, until_in_place: bool = False
) -> None:
    """Keep it in place until SIGTERM or SIGINT; then all stays as it is.

    until_in_place: or until pods get our plugin, if that comes first.
    K8sRdmaError when a directory is gone that can never be seen again.
    """
    stop = stop_on_signals()
    with ExitStack() as stack:
        await _lock(installation, stack, stop)
        if not stop.is_set():
            keeper = _Reconciler(installation, program, until_in_place=until_in_place)
            await _reconcile_forever(keeper, directories, stop)
    _log.info("cni_left_in_place", program=str(installation.program.paths[0]))


async def _lock(installation: Installation, stack: ExitStack, stop: asyncio.Event) -> None:
    """Become the only one at work: one that is being replaced by us ends, in time; a directory is made."""
    reported = ""
    while not stop.is_set():
        try:
            stack.enter_context(installation.locked(0))
        except (K8sRdmaError, OSError) as error:
            if reported != str(error):
                _log.warning("cni_waiting", why=str(error))
            reported = str(error)
            await _first_of(LOCK_RETRY_S, stop)
        else:
            return


async def _reconcile_forever(keeper: _Reconciler, directories: Sequence[Path], stop: asyncio.Event) -> None:
    stirred = asyncio.Event()
    with _watching(directories, stirred) as watch:
        while not stop.is_set():
            stirred.clear()
            watch()
            _require(directories)
            pause_s = keeper.reconcile()
            if keeper.is_complete:
                return
            await _first_of(pause_s, stop)
            await _first_of(POLL_S, stop, stirred)
            if stirred.is_set():
                await _first_of(SETTLE_S, stop)


def _require(directories: Sequence[Path]) -> None:
    """Raise if a directory is gone: one mounted into a container stays there when the node's is replaced."""
    for directory in directories:
        try:
            links = directory.stat().st_nlink
        except OSError:
            continue
        if not links:
            raise K8sRdmaError(f"{directory}: removed from the node while it is mounted here; start again")


class _Reconciler:
    """Reconciles the directories, and logs changes.

    is_complete: whether the task is finished.
    """

    def __init__(self, installation: Installation, program: Path, *, until_in_place: bool) -> None:
        self.is_complete = False
        self._installation = installation
        self._program = program
        self._until_in_place = until_in_place
        self._last: tuple[tuple[str, ...], str] | None = None
        self._wrote: bytes | None = None
        self._wrote_at = -CALM_S
        self._undone = 0

    def reconcile(self) -> float:
        """Install, and return the seconds until the next reconciliation."""
        try:
            outcome = self._installation.install(self._program)
        except K8sRdmaError as error:
            self._report(error.message)
            return 0
        if outcome.replaced:
            _log.info("cni_program_installed", program=str(self._installation.program.paths[0]))
        pause_s = self._rewrote(outcome) if outcome.rewritten else 0.0
        self._report(*outcome.problems, by_hand=outcome.rival if outcome.by_hand else "")
        self.is_complete = self._until_in_place and self._installation.serves(outcome)
        return pause_s

    def _rewrote(self, outcome: InstallOutcome) -> float:
        """Log the write and return the pause before the next pass: another program may undo ours."""
        event = "cni_conf_removed" if outcome.own is None else "cni_conf_written"
        _log.info(event, file=str(self._installation.conf.path), made_of=outcome.rival)
        now_s = time.monotonic()
        again = self._undone + 1 if outcome.own == self._wrote and now_s - self._wrote_at < CALM_S else 0
        self._wrote, self._wrote_at, self._undone = outcome.own, now_s, again
        if not again:
            return 0.0
        pause_s = min(2.0 ** (again - 1), LONGEST_PAUSE_S)
        _log.warning(
            "cni_conf_undone", file=str(self._installation.conf.path), times=again, next_look_s=pause_s
        )
        return pause_s

    def _report(self, *problems: str, by_hand: str = "") -> None:
        """by_hand: another file that has our plugin; empty if our file has it."""
        if (problems, by_hand) == self._last:
            return
        if problems:
            _log.warning("cni_not_in_place", problems=problems)
        else:
            writer = {"by_hand": by_hand} if by_hand else {}
            _log.info("cni_in_place", program=str(self._installation.program.paths[0]), **writer)
        self._last = problems, by_hand


@contextmanager
def _watching(directories: Sequence[Path], stirred: asyncio.Event) -> Iterator[Callable[[], None]]:
    """Watch files within the block, with the watches that the kernel has left; poll the others.

    Call the result before every check, because a directory may have been created again.
    """
    try:
        changes = DirectoryChanges(contents=True)
    except OSError as error:
        _polled(error)
        yield lambda: None
        return
    polled = False

    def watch() -> None:
        nonlocal polled
        try:
            changes.watch(directories)
        except OSError as error:
            if not polled:
                _polled(error)
            polled = True

    def heard() -> None:
        changes.forget()
        stirred.set()

    loop = asyncio.get_running_loop()
    with changes:
        loop.add_reader(changes, heard)
        try:
            yield watch
        finally:
            loop.remove_reader(changes)


def _polled(error: OSError) -> None:
    _log.warning("cni_dirs_polled", every_s=POLL_S, error=error.strerror)


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, or the time is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOutcome:
    """Result of one pass.

    replaced: whether the executable was put there.
    rewritten: whether our file was put there, changed or removed.
    own: its present content.
    rival: the file that it was made of, or that has our plugin by hand.
    problems: the reasons why not all is as it should be.
    """

    replaced: bool = False
    rewritten: bool = False
    own: bytes | None = None
    rival: str = ""
    by_hand: bool = False
    problems: tuple[str, ...] = ()


class Installation:
    """The installation of the CNI plugin on one node."""

    def __init__(self, *, binaries: NodeDirectory, confs: NodeDirectory, desired: DesiredConflist) -> None:
        """Set the paths only. binaries, confs: the runtime's directories of plugins and of networks."""
        self.program = InstalledProgram(binaries)
        self.conf = ConfDirectory(confs, desired.file)
        self._desired = desired
        self._directories = binaries, confs
        self._watched = binaries if desired.network is NetworkMode.NONE else confs

    @property
    def has_network(self) -> bool:
        """Report whether we keep a network's file."""
        return self._desired.network is not NetworkMode.NONE

    def paths(self, outcome: InstallOutcome) -> tuple[Path, ...]:
        """Return the paths of the executable, and of the file that has our plugin."""
        if not self.has_network:
            return self.program.paths
        return (
            *self.program.paths,
            self.conf.path.with_name(outcome.rival) if outcome.by_hand else self.conf.path,
        )

    def serves(self, outcome: InstallOutcome) -> bool:
        """Report whether pods get our plugin now, also by an earlier network."""
        has_network = outcome.own is not None or outcome.by_hand
        return self.program.exists() and (has_network or not self.has_network)

    def locked(self, wait_s: float) -> AbstractContextManager[None]:
        """Be the only one who keeps the same there within the block. OSError, or K8sRdmaError for another."""
        return self._watched.locked(wait_s)

    def locked_to_remove(self, wait_s: float) -> AbstractContextManager[None]:
        """Lock all directories against every other `install-cni`, which would restore the removed files."""
        present = [
            directory
            for directory in self._directories
            if directory is self._watched or directory.path.is_dir()
        ]
        return all_locked(present, wait_s)

    def install(self, program: Path) -> InstallOutcome:
        """Make all of it as it should be; K8sRdmaError if a directory cannot be read or written.

        If there is no executable, and cannot be, our file is removed, because it would fail all pods.
        """
        replaced, problems = self._install_program(program)
        if not self.has_network:
            return InstallOutcome(replaced=replaced, problems=problems)
        found = self.conf.read()
        decision = self._decide(found, problems)
        rewritten = self.conf.apply(decision, found)
        messages = (
            (*problems, f"{self.conf.path.parent}: {decision.problem}") if decision.problem else problems
        )
        return InstallOutcome(
            replaced=replaced,
            rewritten=rewritten,
            own=decision.own,
            rival=decision.rival,
            by_hand=decision.by_hand,
            problems=messages,
        )

    def remove(self, grace_s: float, report: Callable[[str], None]) -> None:
        """Remove all of it; if that fails (K8sRdmaError), the executable is still there.

        A network that names the executable counts also if we keep no network, because without it no pod would
        start.

        grace_s: between our file and the executable, for calls that were begun by the former.
        """
        if self.conf.remove():
            report(f"removed {self.conf.path}")
            if self.program.exists() and grace_s > 0:
                report(f"the executable goes in {grace_s:g} s, when calls that were begun have ended")
                time.sleep(grace_s)
        if files := self.conf.others_with_ours():
            raise K8sRdmaError(left_for(self.program.paths[0], files))
        if self.program.remove():
            report(f"removed {self.program.paths[0]}")

    def _install_program(self, program: Path) -> tuple[bool, tuple[str, ...]]:
        try:
            return self.program.install(program), ()
        except K8sRdmaError as error:
            return False, (error.message,)

    def _decide(self, found: InstalledConflists, problems: tuple[str, ...]) -> Decision:
        if problems and not self.program.exists():
            return Decision(own=None)
        return decide(found, self._desired)
