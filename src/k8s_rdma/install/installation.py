"""Executable and network configuration together, in the order in which they never fail a pod of the node.

The executable is there before a configuration names it, and goes when none has named it for a while. Whoever
is killed between any two changes, or loses power, leaves one network or the other, whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import all_locked
from k8s_rdma.install.network import ConfDirectory, Decision, Network, decide
from k8s_rdma.install.program import InstalledProgram, left_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from k8s_rdma.install.directory import NodeDirectory
    from k8s_rdma.install.network import Found, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass found and did.

    replaced: whether the executable was put there. rewritten: whether our file was put there, changed or
    taken away. own: what is in it now. other: the file that it was made of, or that has our plugin by hand.
    problems: why not all is as it should be.
    """

    replaced: bool = False
    rewritten: bool = False
    own: bytes | None = None
    other: str = ""
    by_hand: bool = False
    problems: tuple[str, ...] = ()


class Installation:
    """On one node."""

    def __init__(self, *, binaries: NodeDirectory, confs: NodeDirectory, wanted: Wanted) -> None:
        """Nothing is looked at yet. binaries, confs: the runtime's directories of plugins and of networks."""
        self.program = InstalledProgram(binaries)
        self.conf = ConfDirectory(confs, wanted.file)
        self._wanted = wanted
        self._directories = binaries, confs
        self._kept = binaries if wanted.network is Network.NONE else confs

    @property
    def has_network(self) -> bool:
        """Whether there is a file of ours to keep."""
        return self._wanted.network is not Network.NONE

    def paths(self, outcome: Outcome) -> tuple[Path, ...]:
        """What is in place: the executable, and the file that has our plugin."""
        if not self.has_network:
            return self.program.paths
        return (
            *self.program.paths,
            self.conf.path.with_name(outcome.other) if outcome.by_hand else self.conf.path,
        )

    def serves(self, outcome: Outcome) -> bool:
        """Whether pods get our plugin now, be it by a network of before."""
        has_network = outcome.own is not None or outcome.by_hand
        return self.program.there() and (has_network or not self.has_network)

    def locked(self, wait_s: float) -> AbstractContextManager[None]:
        """Be the only one who keeps the same there within the block. OSError, or K8sRdmaError for another."""
        return self._kept.locked(wait_s)

    def locked_to_remove(self, wait_s: float) -> AbstractContextManager[None]:
        """As `locked`, and none who keeps the executable alone, or a network: it would put back what goes."""
        there = [each for each in self._directories if each is self._kept or each.path.is_dir()]
        return all_locked(there, wait_s)

    def install(self, program: Path) -> Outcome:
        """Make all of it as it should be; K8sRdmaError when a directory cannot be read or written.

        Where there is no executable, nor can be, our file is taken away: it would fail all pods.
        """
        replaced, problems = self._install_program(program)
        if not self.has_network:
            return Outcome(replaced=replaced, problems=problems)
        found = self.conf.look()
        decision = self._decide(found, problems)
        rewritten = self.conf.apply(decision, found)
        told = (*problems, f"{self.conf.path.parent}: {decision.problem}") if decision.problem else problems
        return Outcome(
            replaced=replaced,
            rewritten=rewritten,
            own=decision.own,
            other=decision.other,
            by_hand=decision.by_hand,
            problems=told,
        )

    def remove(self, grace_s: float, told: Callable[[str], None]) -> None:
        """Take all of it away; K8sRdmaError when that fails, and then the executable is there still.

        A network that names the executable counts also where none is kept: without it no pod would start.
        grace_s: between our file and the executable, for calls that were begun by the former.
        """
        if self.conf.remove():
            told(f"removed {self.conf.path}")
            if self.program.there() and grace_s > 0:
                told(f"the executable goes in {grace_s:g} s, when calls that were begun have ended")
                time.sleep(grace_s)
        if files := self.conf.others_with_ours():
            raise K8sRdmaError(left_for(self.program.paths[0], files))
        if self.program.remove():
            told(f"removed {self.program.paths[0]}")

    def _install_program(self, program: Path) -> tuple[bool, tuple[str, ...]]:
        try:
            return self.program.install(program), ()
        except K8sRdmaError as error:
            return False, (error.message,)

    def _decide(self, found: Found, problems: tuple[str, ...]) -> Decision:
        if problems and not self.program.there():
            return Decision(own=None)
        return decide(found, self._wanted)
