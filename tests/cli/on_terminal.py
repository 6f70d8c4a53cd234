"""The command line on terminals of given widths."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from typing import TYPE_CHECKING

from cli.asking import ENVIRONMENT, Ran
from warm_program import run_on

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HEIGHT = 50


async def on_terminals(widths: Collection[int], *arguments: str) -> dict[int, Ran]:
    """Run a command on a terminal of each width, which shows standard output and error as one."""
    ran = await runs([(width, arguments) for width in widths])
    return dict(zip(widths, ran, strict=True))


async def runs(commands: Sequence[tuple[int, Sequence[str]]], **environment: str) -> list[Ran]:
    """Run commands one after the other, each on a terminal of its width."""
    shown = {**ENVIRONMENT, "TERM": "xterm", **environment}
    return [await _shown(width, arguments, shown) for width, arguments in commands]


async def _shown(width: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Ran:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
    reading = asyncio.create_task(asyncio.to_thread(_read, ours))
    try:
        status = await asyncio.to_thread(run_on, arguments, environment, (theirs, theirs, theirs))
    finally:
        os.close(theirs)
        data = await reading
        os.close(ours)
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", data.decode()).replace("\r\n", "\n")
    return Ran(status, text, "")


def _read(terminal: int) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(terminal, 65536)
        except OSError:  # EIO: no process has the other end open any more
            return data
