"""The demo's processes: their start, their logs and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOP_TIMEOUT_S = 10


@dataclass
class Processes:
    """Everything that runs, by name, in the order of its start; output goes to `logs/<name>.log`."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(
        self,
        name: str,
        *arguments: str,
        netns: Path | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Run `python -m <arguments>` in a namespace; a session of its own keeps Ctrl-C away from it.

        descriptors: of open files that it inherits.
        """
        prefix = [] if netns is None else ["nsenter", f"--net={netns}", "--"]
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                pass_fds=descriptors,
                start_new_session=True,
            )

    def check(self) -> None:
        """Require that all run; K8sRdmaError with the end of the log of a process that ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                tail = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-8:]
                msg = f"demo: {name} ended with status {process.returncode}"
                raise K8sRdmaError(msg, details="\n  ".join(tail))

    def kill(self, name: str) -> None:
        """Kill a process, as `kill -9` does."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> list[str]:
        """End all together, and then the first, which all others use; return those that had to be killed."""
        names = list(self.running)
        stubborn = [*self._end(names[1:]), *self._end(names[:1])]
        self.running.clear()
        return stubborn

    def _end(self, names: Sequence[str]) -> list[str]:
        """End processes, and return those that had to be killed."""
        for name in names:
            self.running[name].terminate()
        end = time.monotonic() + STOP_TIMEOUT_S
        stubborn = []
        for name in names:
            process = self.running[name]
            try:
                process.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                stubborn.append(name)
        return stubborn


def leftover_processes() -> list[int]:
    """List the processes in this PID namespace except this one, its init."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # ended, and orphaned by a parent that was killed
    own = os.getpid()
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if number != own]
