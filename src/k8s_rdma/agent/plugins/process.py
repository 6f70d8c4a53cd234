"""A plugin's process: fed, heard out within bounds, and ended with all its children when it is given up.

It dies with us, too: an ADD that outlived the agent might lease what the next agent has already given back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_STDOUT_BYTES = 8 << 20
"""A result with a thousand routes takes a hundredth of it; without a bound, one plugin takes all memory."""
KEPT_STDERR_BYTES = 8000
"""The last ones: however much it logs, what it failed of comes at the end."""

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""A program of util-linux, as a pre-exec hook is not safe in a threaded Python."""
_LOOK_AGAIN_S = 0.0005
"""It takes a millisecond; what it runs takes longer than this until it reads."""

_STDIN, _STDOUT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of it. overflow: it was killed, as it printed more than `MOST_STDOUT_BYTES`.

    status: as `subprocess.Popen.returncode`. stderr: its end.
    """

    status: int
    stdout: bytes
    stderr: bytes
    overflow: bool


async def converse(command: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command in a process group of its own until it and whatever it prints have ended.

    OSError when it cannot be run, TimeoutError after timeout_s. Then, and when this call is cancelled, its
    process group is killed, and those who left that with its output in hand are waited for no longer.

    stdin is fed when the process is sure to die with us: should we die before, it reads nothing.
    """
    loop = asyncio.get_running_loop()
    transport, listening = await loop.subprocess_exec(
        _Listening,
        *DIES_WITH_US,
        *command,
        env=env,
        cwd="/",
        process_group=0,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await _sure_to_die_with_us(transport.get_pid(), listening.exited)
            feed = cast("asyncio.WriteTransport", transport.get_pipe_transport(_STDIN))
            feed.write(stdin)
            feed.close()
            await listening.over.wait()
    finally:
        if not listening.over.is_set():
            _kill(transport.get_pid())
            await listening.exited.wait()
        transport.close()
    return Ended(
        status=cast("int", transport.get_returncode()),
        stdout=bytes(listening.stdout),
        stderr=bytes(listening.stderr),
        overflow=listening.overflow,
    )


async def _sure_to_die_with_us(pid: int, exited: asyncio.Event) -> None:
    """Until the process runs what comes after `DIES_WITH_US`, or has failed to: nothing tells of either."""
    while not exited.is_set() and _runs(pid) == DIES_WITH_US[0]:  # noqa: ASYNC110 - of a file
        await asyncio.sleep(_LOOK_AGAIN_S)


def _runs(pid: int) -> str | None:
    """The program that a process is (proc(5), `/proc/pid/exe`); None when it is gone.

    Not by its `comm`, which is ours for a moment yet when the spawn returns: exec lets the parent go on once
    the program is there, and names the process later (`begin_new_exec` in fs/exec.c, 6.1).
    """
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except (FileNotFoundError, ProcessLookupError):
        return None


class _Listening(asyncio.SubprocessProtocol):
    """Keeps what is said. over: it ended, and nobody can say anything more."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflow = False
        self.exited = asyncio.Event()
        self.over = asyncio.Event()
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast("asyncio.SubprocessTransport", transport).get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != _STDOUT:
            self.stderr += data
            del self.stderr[:-KEPT_STDERR_BYTES]
        elif not self.overflow:
            self.stdout += data
            self.overflow = len(self.stdout) > MOST_STDOUT_BYTES
            if self.overflow:
                self.stdout.clear()
                _kill(self._pid)

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.over.set()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
