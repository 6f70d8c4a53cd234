"""Programs that a scenario runs: each logs to a file, and is ended by its process id."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from warm_program import start_logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from warm_program import Started

TERM_S = 15
_LOOK_S = 0.01
_TAIL = 40


class Forked:
    """A process of `warm_program`, to be used as one of asyncio's."""

    def __init__(self, process: Started) -> None:
        self.pid = process.pid
        self.send_signal = process.send_signal
        self.kill = process.kill
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (status := self._process.poll()) is None:  # noqa: ASYNC110 - a thread that waits is not cancelled
            await asyncio.sleep(_LOOK_S)
        return status


class Program:
    """A running program."""

    def __init__(self, process: asyncio.subprocess.Process | Forked, log: Path) -> None:
        self.process = process
        self.log = log

    @classmethod
    async def start(cls, log: Path, *arguments: str | Path) -> Program:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *map(str, arguments), stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file
            )
        return cls(process, log)

    @classmethod
    def start_k8s_rdma(cls, log: Path, *arguments: str | Path, enter: Sequence[str] = ()) -> Program:
        """Start our program. enter: as of `start_logged`."""
        with log.open("ab") as file:
            return cls(Forked(start_logged(arguments, file, enter=enter)), log)

    async def until(self, holds: Callable[[], Awaitable[bool]], pause_s: float = 0.05) -> None:
        """Wait for something that the program is to bring about; fails with its log if it ends before."""
        while not await holds():
            assert self.process.returncode is None, f"{self.log.stem} ended:\n{self.tail()}"
            await asyncio.sleep(pause_s)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end; killed if it takes too long. Returns its exit status."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(TERM_S):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            return await self.process.wait()

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL:])


@asynccontextmanager
async def running(log: Path, *arguments: str | Path) -> AsyncIterator[Program]:
    """A program for as long as the block lasts."""
    program = await Program.start(log, *arguments)
    try:
        yield program
    finally:
        if program.process.returncode is None:
            await program.end()
