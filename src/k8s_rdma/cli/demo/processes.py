"""The demo's processes: started in their namespaces, ended by their own process handles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    ) -> None:
        """Run `python -m <arguments>` in a namespace; a session of its own keeps Ctrl-C away from it."""
        prefix = [] if netns is None else ["nsenter", f"--net={netns}", "--"]
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def check(self) -> None:
        """K8sRdmaError with the end of its log when a process has ended that should not have."""
        for name, process in self.running.items():
            if process.poll() is not None:
                tail = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-8:]
                msg = f"demo: {name} ended with status {process.returncode}"
                raise K8sRdmaError(msg, details="\n  ".join(tail))

    def kill(self, name: str) -> None:
        """`kill -9`."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> list[str]:
        """End everything in reverse order; the names of those that had to be killed."""
        stubborn = []
        for name, process in reversed(list(self.running.items())):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                stubborn.append(name)
        self.running.clear()
        return stubborn
