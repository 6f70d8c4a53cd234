"""The command line in a process that has loaded it, and forks for each command (`forking_program.py`).

Loading is nine tenths of a short command's processor time. A fork is a process with arguments, standard
streams, environment and directory of its own, in the network namespace of the thread that runs it. Tests of
an interpreter's start or end, and of processes that they signal, start `sys.executable` instead.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.linux.netns import current_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("forking_program.py")
STREAMS = ("stdin", "stdout", "stderr")


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
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as status:
        namespace = current_namespace()
        try:
            request = json.dumps([arguments, dict(environment), str(directory or Path.cwd())]).encode()
            socket.send_fds(_channel(), [request], [*streams, namespace, writing])
        finally:
            os.close(writing)
            os.close(namespace)
        return int(status.read())


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
