"""The command line on terminals of given widths.

A process that has loaded the program forks for each terminal, because loading takes longer than most answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

from cli.asking import ENVIRONMENT, Ran

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_PROGRAM = r"""
import fcntl, json, os, pty, re, struct, sys, termios
from k8s_rdma.cli import doctor, explain, holders, main, top, whatif

def shown(width, arguments):
    pid, terminal = pty.fork()
    if not pid:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        sys.argv = ["k8s-rdma", *arguments]
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        try:
            main.main()
            sys.exit(0)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))
    data = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: no process has the other end open any more
            break
        data += chunk
    os.close(terminal)
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", data.decode()).replace("\r\n", "\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text

print(json.dumps([shown(width, arguments) for width, arguments in json.loads(sys.argv[1])]))
"""


async def on_terminals(widths: Collection[int], *arguments: str) -> dict[int, Ran]:
    """Run a command on a terminal of each width, which shows standard output and error as one."""
    ran = await runs([(width, arguments) for width in widths])
    return dict(zip(widths, ran, strict=True))


async def runs(commands: Sequence[tuple[int, Sequence[str]]], **environment: str) -> list[Ran]:
    """Run commands, each on a terminal of its width."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, json.dumps(commands)),
        stdout=asyncio.subprocess.PIPE,
        env={**ENVIRONMENT, "TERM": "xterm", **environment},
    )
    out, _ = await process.communicate()
    return [Ran(status, text, "") for status, text in json.loads(out)]
