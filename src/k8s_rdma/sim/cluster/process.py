"""One stand-in as a process: it says when it is ready, and stops cleanly on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


def run(service: AbstractAsyncContextManager[str], ready_file: Path | None = None) -> None:
    """Run a service until the process is told to stop.

    The service gives, once it is ready, one word about where it is; `ready <word>` is then printed, and
    written to `ready_file`. What the service raises ends the process.
    """
    asyncio.run(_run(service, ready_file))


async def _run(service: AbstractAsyncContextManager[str], ready_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with service as where:
        _announce(f"ready {where}\n", ready_file)
        await stop.wait()


def _announce(line: str, ready_file: Path | None) -> None:
    if ready_file is not None:  # whole or not there, for whoever waits for it
        written = ready_file.with_name(f".{ready_file.name}.new")
        written.write_text(line)
        written.replace(ready_file)
    sys.stdout.write(line)
    sys.stdout.flush()
