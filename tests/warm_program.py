"""The program in a process that has loaded all of it, and forks for each command (`forking_program.py`).

Loading is nine tenths of a short command's processor time, and 0.3 to 0.6 s of each agent, server, extender
and device plugin. A fork is a process with arguments, standard streams, environment, directory and user of
its own, in the network namespace of the thread that starts it. Tests of an interpreter's start or end, of
loaded modules, of memory, and of command lines in /proc start `sys.executable` instead.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TypeAlias

from k8s_rdma.linux.netns import current_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("forking_program.py")
STREAMS = ("stdin", "stdout", "stderr")
_MAX_REPORT = 32

_allowed = False


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    stdin: str = "",
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command until its end. directory: its working directory, by default the current one."""
    with ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in STREAMS]
        files[0].write(stdin.encode())
        files[0].seek(0)
        numbers = [file.fileno() for file in files]
        status = run_on(arguments, environment, numbers, directory=directory)
        for file in files:
            file.seek(0)
        _, out, err = (file.read().decode() for file in files)
        return subprocess.CompletedProcess(arguments, status, out, err)


def run_on(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    *,
    directory: Path | None = None,
) -> int:
    """Run a command with these standard streams until its end; return its status as subprocess does."""
    with start(arguments, environment, streams, directory=directory) as process:
        return process.wait()


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    *,
    directory: Path | None = None,
    user: int | None = None,
) -> Process:
    """Start a process with these standard streams.

    user: whose it is, and its group, without other groups; the caller's by default.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    namespace = current_namespace()
    try:
        request = json.dumps([arguments, dict(environment), str(directory or Path.cwd()), user]).encode()
        socket.send_fds(_channel(), [request], [*streams, namespace, theirs.fileno()])
    finally:
        theirs.close()
        os.close(namespace)
    return Process(ours)


Started: TypeAlias = "Process | subprocess.Popen[bytes]"


def start_logged(
    arguments: Sequence[str | Path], log: IO[bytes], *, enter: Sequence[str] = (), user: int | None = None
) -> Started:
    """Start `k8s-rdma` with these arguments; a fork if `allow` was called and it is not run by a command.

    enter: a command that runs it elsewhere or otherwise, such as `env` with variables. user: as of `start`.
    """
    words = [str(argument) for argument in arguments]
    with Path(os.devnull).open("rb") as null:
        if _allowed and not enter:
            return start(words, os.environ, (null.fileno(), log.fileno(), log.fileno()), user=user)
        command = [*enter, sys.executable, "-m", "k8s_rdma", *words]
        drop = {} if user is None else {"user": user, "group": user, "extra_groups": ()}
        return subprocess.Popen(command, stdin=null, stdout=log, stderr=log, **drop)


def allow() -> None:
    """Let `start_logged` fork from now on. Benchmarks do not: a fork has other memory and another start."""
    global _allowed  # noqa: PLW0603 - of this process
    _allowed = True


class Process:
    """A fork, to be used as `subprocess.Popen`.

    returncode: as there; None until `poll` or `wait` has found that it has ended.
    """

    def __init__(self, reports: socket.socket) -> None:
        """Wait until it runs. reports: those of `forking_program.py`."""
        pid, [self._pidfd], _, _ = socket.recv_fds(reports, _MAX_REPORT, 1)
        self.pid = int(pid)
        self.returncode: int | None = None
        reports.setblocking(False)
        self._reports = reports.detach()
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def __del__(self) -> None:
        os.close(self._reports)
        os.close(self._pidfd)

    def poll(self) -> int | None:
        """Return its status if it has ended."""
        with self._turn, suppress(BlockingIOError):
            if self.returncode is None:
                self.returncode = int(os.read(self._reports, _MAX_REPORT))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, `timeout` seconds at most; TimeoutExpired. Threads may do so at the same time."""
        while (status := self.poll()) is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            select.select([self._reports], [], [])
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _channel() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", PROGRAM, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours
