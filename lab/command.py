"""A command in a guest: what it is given, where what it says goes, how it ends."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.errors import CommandFailed, CommandTimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lab.channel import Channel

KILLED_WITHIN_S = 20.0
TERMINATED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended. returncode: negative for the signal that killed it."""

    returncode: int
    stdout: str
    stderr: str


class Background:
    """A command that goes on in the guest."""

    def __init__(self, channel: Channel, number: int, argv: tuple[str, ...], log: Path) -> None:
        self._channel = channel
        self._number = number
        self._argv = argv
        self.log = log
        """On the host; growing while it runs."""

    def output(self) -> str:
        """What it has said until now, both streams."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def running(self, *, within_s: float = 0) -> bool:
        """Whether it has not ended; if it has not, it is waited for so long."""
        return self._channel.await_status(self._number, within_s) is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Its status when it has ended; CommandTimedOut, and it goes on, if it does not in time."""
        status = self._channel.await_status(self._number, timeout_s)
        if status is None:
            raise CommandTimedOut(
                f"{shlex.join(self._argv)}: runs still after {timeout_s:g} s\n{self.output()}"
            )
        return status

    def signal(self, number: int) -> None:
        """To its whole process group; nothing if it has ended."""
        self._channel.send(id=self._number, signal=number)

    def stop(self, timeout_s: float = TERMINATED_WITHIN_S) -> int:
        """Ask it to end (SIGTERM), kill it if it does not in time; its status."""
        self.signal(signal.SIGTERM)
        if (status := self._channel.await_status(self._number, timeout_s)) is not None:
            return status
        return self.kill()

    def kill(self) -> int:
        """SIGKILL to its whole process group; its status."""
        self.signal(signal.SIGKILL)
        return self.wait(KILLED_WITHIN_S)


def ended(argv: tuple[str, ...], completed: Completed, *, check: bool) -> Completed:
    """The same; CommandFailed, with what it said, if it is to be checked and failed."""
    if check and completed.returncode != 0:
        said = "".join(filter(None, (completed.stdout, completed.stderr)))
        raise CommandFailed(f"{shlex.join(argv)}: status {completed.returncode}\n{said}")
    return completed


def request(
    number: int, argv: tuple[str, ...], env: Mapping[str, str] | None, cwd: str, *, tty: bool = False
) -> dict[str, object]:
    """As the agent wants it, without the streams. tty: its stdin is a terminal, which it gets for its own."""
    return {"id": number, "argv": list(argv), "env": dict(env or {}), "cwd": cwd, "tty": tty}
