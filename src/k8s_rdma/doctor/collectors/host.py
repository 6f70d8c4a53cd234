"""Files, processes and programs of the node, for doctor."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.config.bounded_files import read_found_file
from k8s_rdma.linux.host_root import HostRoot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PROGRAM_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process. arguments: the first is the program as it was called."""

    pid: int
    name: str
    arguments: tuple[str, ...]

    def option(self, *names: str) -> str | None:
        """Return the value of an option, `--config X` or `--config=X`, if it was passed."""
        for place, argument in enumerate(self.arguments):
            name, equals, value = argument.partition("=")
            if name in names and (equals or place + 1 < len(self.arguments)):
                return value if equals else self.arguments[place + 1]
        return None


class Host(HostRoot):
    """Reads files and processes of the node. Every failure is an OSError."""

    def read(self, path: str) -> str:
        """Read a file's text."""
        return read_found_file(self.path_of(path)).decode(errors="surrogateescape")

    def read_if_any(self, path: str) -> str | None:
        """Read a file, if it exists."""
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def processes(self, names: frozenset[str]) -> Iterator[Process]:
        """Yield processes with these names (`comm`); skip those that end meanwhile."""
        for pid in sorted(int(name) for name in self.names("/proc") if name.isdecimal()):
            name = (self._process_file(pid, "comm") or "").strip()
            if name in names:
                arguments = (self._process_file(pid, "cmdline") or "").split("\0")
                yield Process(pid=pid, name=name, arguments=tuple(filter(None, arguments)))

    def program(self, pid: int) -> str | None:
        """Read the path of a process's executable, unless the kernel hides it."""
        try:
            return str(self.path_of(f"/proc/{pid}").joinpath("exe").readlink())
        except OSError:
            return None

    def memlock(self, pid: int) -> int | None:
        """Read the soft limit of a process, in bytes, if it has a limit. OSError if it cannot be read."""
        found = re.search(r"^Max locked memory +(\S+)", self.read(f"/proc/{pid}/limits"), re.MULTILINE)
        if not found:
            msg = f"/proc/{pid}/limits: no line Max locked memory"
            raise OSError(msg)
        return None if found[1] == "unlimited" else int(found[1])

    def run(self, command: Sequence[str], *, stdin: bytes = b"", environment: dict[str, str]) -> bytes:
        """Run a program in the node's root file system and return its output. OSError also if it fails."""
        inside = [] if self.root == Path("/") else ["chroot", str(self.root)]
        try:
            completed = subprocess.run(
                [*inside, *command],
                input=stdin,
                env=environment | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                capture_output=True,
                check=True,
                timeout=_PROGRAM_TIMEOUT_S,
            )
        except subprocess.SubprocessError as error:
            output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or b""
            msg = f"{error}: {output.decode(errors='replace').strip()[-300:]}"
            raise OSError(msg) from error
        return completed.stdout

    def _process_file(self, pid: int, name: str) -> str | None:
        try:
            return self.read_if_any(f"/proc/{pid}/{name}")
        except ProcessLookupError:
            return None
