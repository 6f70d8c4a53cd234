"""The ways through the code, traced: how many files and functions one request passes, and how deep.

Information, no ceiling.

`scripts/run python -m pytest -q -s tests/test_ways.py` prints them. Three nodes, two interfaces; code of this
package alone, without the stand-ins.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent.machine import Machine, asks, call
from extender.world import world
from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.report_builder import NodeReports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PACKAGE = str(Path(__file__).resolve().parent.parent / "src" / "k8s_rdma") + "/"


@dataclass(slots=True)
class Way:
    """The way of one request: files, functions, and the most of our frames on top of one another."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    depth: int = 0

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _is_ours(frame):
            return
        depth, asked, at = 0, threading.current_thread() is not threading.main_thread(), frame
        while at is not None:
            depth += _is_ours(at)
            asked = asked or at.f_code.co_name == "scenario"
            at = at.f_back
        if asked:  # and not a task beside it
            name = frame.f_code.co_filename
            self.files.add(name.removeprefix(PACKAGE))
            self.functions.add((name, frame.f_code.co_qualname))
            self.depth = max(self.depth, depth)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Trace this thread, and threads that begin meanwhile."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(PACKAGE)


def show(ways: dict[str, Way]) -> None:
    rows = [f"\n{'way':12}{'files':>7}{'functions':>11}{'depth':>7}"]
    rows += [f"{name:12}{len(way.files):7}{len(way.functions):11}{way.depth:7}" for name, way in ways.items()]
    sys.stdout.write("\n".join(rows) + "\n")
    assert all(way.files for way in ways.values()), "a request was not traced: see Way.note"


def test_ways_of_the_scheduler_are_traced():
    ways = {name: Way() for name in ("filter", "prioritize", "bind")}

    async def scenario() -> None:
        async with world("w1", "w2", "w3", max_age_s=60.0) as cluster:
            await cluster.create_pod("known", 1_000)
            assert len(await cluster.fitting("known")) == 3
            await cluster.create_pod("p", 1_000, 500)
            with ways["filter"].traced():
                assert len(await cluster.fitting("p")) == 3
            with ways["prioritize"].traced():
                assert len(await cluster.prioritize("p")) == 3
            with ways["bind"].traced():
                assert not await cluster.bind("p", "w1")

    asyncio.run(scenario())
    show(ways)


def test_ways_of_the_runtime_are_traced(tmp_path: Path):
    ways = {name: Way() for name in ("add", "del", "report")}
    machine = Machine(tmp_path)
    reports = NodeReports(NodeName("w1"), epoch="e")

    async def scenario() -> None:
        with ways["add"].traced(), machine.running() as (node, verbs):
            ways["add"].files.clear()
            ways["add"].functions.clear()
            netns = machine.hardware.create_namespace()
            stdin = machine.stdin(asks({"min_tx_rate": 10_000}, {"min_tx_rate": 5_000}))
            given = await verbs.add(call("ADD"), netns, stdin)
            assert len(given.receipt.interfaces) == 2
            threading.setprofile(ways["del"].note)
            await machine.worker.run(lambda: sys.setprofile(ways["del"].note))
            sys.setprofile(ways["del"].note)
            await verbs.delete(call("DEL"), "net")
            await machine.worker.run(lambda: sys.setprofile(ways["report"].note))
            await machine.worker.run(lambda: reports.build(machine.kernel.observe(), node.ledger))

    asyncio.run(scenario())
    show(ways)
