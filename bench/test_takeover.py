"""The first takeover: a standby binds after the leader was killed, in a large cluster.

The floor is the Lease's own time: it may not be taken before it has ended. The measured time begins after it:
from the moment that the standby holds the Lease to `/readyz`.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from test_extender import Caller
from test_large_cluster import HERE, NODES, PODS, PROGRAM, api_server, wait_ready, write_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Record

PENDING = 100
"""Pods that wait, and are touched."""

RUNS = 3
_TICKS_A_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Moment:
    """A moment, and the processor time that the process had taken by then, s."""

    at: float
    processor_s: float


@dataclass(slots=True)
class Replica:
    """An extender, and the reader of its log. moments: of the first event of each name."""

    port: int
    process: subprocess.Popen[str]
    moments: dict[str, Moment] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def now(self) -> Moment:
        """Return this moment."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return Moment(time.monotonic(), (int(fields[11]) + int(fields[12])) / _TICKS_A_S)

    def read_log(self) -> None:
        """Note the moments until the process ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            event = json.loads(line).get("event", "") if line.startswith("{") else ""
            with self.changed:
                if event not in self.moments:
                    self.moments[event] = self.now()
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, event: str) -> Moment:
        """Return the moment of the event."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or event in self.moments)
            return self.moments[event]


@contextmanager
def replica(api: int, directory: Path) -> Iterator[Replica]:
    """Run an extender that shares a Lease with others."""
    directory.mkdir(parents=True)
    config, port = write_config(directory, str(api))
    command = [str(PROGRAM), "extender", "--config", str(config)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=HERE
    ) as process:
        try:
            running = Replica(port, process)
            threading.Thread(target=running.read_log, daemon=True).start()
            yield running
        finally:
            process.kill()


def take_over(api: int, directory: Path) -> tuple[float, float, float]:
    """Kill the leader of two; return the times from there to the Lease, to ready, and on the processor."""
    with replica(api, directory / "leader") as leader:
        wait_ready(leader.port)
        with replica(api, directory / "other") as other:
            other.wait_for("pods_listed")
            other.wait_for("placements_verified")
            with closing(Caller(api)) as caller:
                caller.post(f"/create-pods?count={PENDING}", b"")
            began = time.monotonic()
            leader.process.kill()
            held = other.wait_for("lease_held")
            wait_ready(other.port)
            ready = other.now()
    return held.at - began, ready.at - held.at, ready.processor_s - held.processor_s


def test_takeover(record: Record, tmp_path: Path) -> None:
    with api_server(NODES, "alike") as api:
        runs = [take_over(api, tmp_path / str(number)) for number in range(RUNS)]
    waited, ready, processor = ([run[at] for run in runs] for at in range(3))
    what = f"first takeover of a standby, {NODES:,} nodes, {NODES * PODS:,} pods"
    note = f"the Lease itself {min(waited):.1f} to {max(waited):.1f} s"
    record(f"{what}, beyond the Lease", budget=1, measured=ready, unit="s", note=note)
    record(f"{what}, beyond the Lease, processor", budget=None, measured=processor, unit="s")
    ratios = [(lease + rest) / lease for lease, rest in zip(waited, ready, strict=True)]
    record(f"{what}, beside the Lease", budget=None, measured=ratios, unit="times")
