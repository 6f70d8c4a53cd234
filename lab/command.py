"""A command in a guest: its input, its output, its end."""

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
        """The log on the host, which grows while the command runs."""

    def output(self) -> str:
        """Return the output until now, both streams."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def running(self, *, within_s: float = 0) -> bool:
        """Report whether it has not ended; if it has not, wait for it so long."""
        return self._channel.await_status(self._number, within_s) is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its status when it has ended; if it does not in time, raise CommandTimedOut: it goes on."""
        status = self._channel.await_status(self._number, timeout_s)
        if status is None:
            raise CommandTimedOut(
                f"{shlex.join(self._argv)}: runs still after {timeout_s:g} s\n{self.output()}"
            )
        return status

    def signal(self, number: int) -> None:
        """Send a signal to its whole process group, unless it has ended."""
        self._channel.send(id=self._number, signal=number)

    def stop(self, timeout_s: float = TERMINATED_WITHIN_S) -> int:
        """Ask it to end (SIGTERM), kill it if it does not in time; return its status."""
        self.signal(signal.SIGTERM)
        if (status := self._channel.await_status(self._number, timeout_s)) is not None:
            return status
        return self.kill()

    def kill(self) -> int:
        """Send SIGKILL to its whole process group; return its status."""
        self.signal(signal.SIGKILL)
        return self.wait(KILLED_WITHIN_S)


def ended(argv: tuple[str, ...], completed: Completed, *, check: bool) -> Completed:
    """Return the same; raise CommandFailed with its output if it is to be checked and failed."""
    if check and completed.returncode != 0:
        said = "".join(filter(None, (completed.stdout, completed.stderr)))
        raise CommandFailed(f"{shlex.join(argv)}: status {completed.returncode}\n{said}")
    return completed


def request(
    number: int, argv: tuple[str, ...], env: Mapping[str, str] | None, cwd: str, *, tty: bool = False
) -> dict[str, object]:
    """Return a request for the agent, without the streams. tty: stdin is a terminal, which it controls."""
    return {"id": number, "argv": list(argv), "env": dict(env or {}), "cwd": cwd, "tty": tty}
