"""Runs in a guest: times CNI plugins in turn, as stdin says; prints milliseconds of each call.

    {"repetitions": 30, "pause_s": 1, "calls": [{"name": "ADD", "argv": [...], "env": {...}, "stdin": "..."}]}

Each repetition runs the calls in their order. A call is timed from the spawn of the executable to its end, as
a runtime sees it; before each there is a pause, in which all watchers of the last one's changes look at them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


class Call:
    """One executable with its environment, and its input in a file."""

    def __init__(self, wanted: dict[str, Any], folder: Path) -> None:
        self.name: str = wanted["name"]
        self._argv: list[str] = wanted["argv"]
        self._env: dict[str, str] = wanted["env"]
        self._stdin, self._stdout = (folder / f"{self.name}.{end}" for end in ("in", "out"))
        self._stdin.write_text(wanted["stdin"])

    def run(self) -> float:
        """Return milliseconds; raise SystemExit with the output if the call fails."""
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, str(self._stdin), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._stdout), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        began = time.perf_counter()
        process = os.posix_spawn(self._argv[0], self._argv, self._env, file_actions=actions)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        took = time.perf_counter() - began
        if status != 0:
            sys.exit(f"{self.name}: status {status}: {self._stdout.read_text()}")
        return took * 1e3


def main() -> None:
    """Run all repetitions; the first one warms up, and does not count."""
    wanted = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        calls = [Call(each, Path(folder)) for each in wanted["calls"]]
        times: dict[str, list[float]] = {call.name: [] for call in calls}
        for number in range(wanted["repetitions"] + 1):
            for call in calls:
                time.sleep(wanted["pause_s"])
                took = call.run()
                if number:
                    times[call.name].append(took)
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
