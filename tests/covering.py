"""The tests that `make quick` runs: few test functions that take almost all branches which fast ones take.

`make quick-list` chooses them from the records of `make coverage-map`, and writes `quick.txt`. Those that
start processes are left out, and those that take long for the branches that they alone take. Listed functions
that were not recorded stay, because the records may be those of some tests only.
"""

from __future__ import annotations

import heapq
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from coverage_map import ROOT, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coverage_map import Records

    Branches = Mapping[str, set[tuple[str, int, int]]]

QUICK = Path(__file__).with_name("quick.txt")
SLOWEST_S = 5.0
"""A function that takes longer, in processor time, is no fast one."""

LEAST_BRANCHES = 10.0
"""A function that adds fewer for each second of its time is left to `make test`."""

OVERHEAD_S = 0.02
"""A function's cost beside its own time."""

INDENT = "    "


def cover(branches: Branches, seconds: Mapping[str, float], least: float = LEAST_BRANCHES) -> list[str]:
    """Return functions that together take almost all the branches, by how many each adds for its time.

    least: the fewest branches for a second that a function must add.
    """
    left = set().union(*branches.values())
    costs = {name: seconds[name] + OVERHEAD_S for name in branches}
    waiting = [(-len(taken) / costs[name], name) for name, taken in sorted(branches.items())]
    heapq.heapify(waiting)
    chosen = []
    while waiting:
        _, name = heapq.heappop(waiting)
        gain = len(branches[name] & left) / costs[name]
        if waiting and gain < -waiting[0][0]:
            heapq.heappush(waiting, (-gain, name))
        elif gain < least or not gain:
            break
        else:
            chosen.append(name)
            left -= branches[name]
    return _without_superfluous(chosen, branches, seconds)


def _without_superfluous(chosen: list[str], branches: Branches, seconds: Mapping[str, float]) -> list[str]:
    """Leave out, the slowest first, functions that take only branches that others take."""
    takers: dict[tuple[str, int, int], int] = defaultdict(int)
    for name in chosen:
        for branch in branches[name]:
            takers[branch] += 1
    needed = []
    for name in sorted(chosen, key=lambda name: (-seconds[name], name)):
        if any(takers[branch] == 1 for branch in branches[name]):
            needed.append(name)
        else:
            for branch in branches[name]:
                takers[branch] -= 1
    return needed


def fast_functions(records: Records) -> dict[str, set[tuple[str, int, int]]]:
    """Return the branches of each function that is fast and starts no process."""
    contexts = {
        name: records.contexts_of(name) for name, seconds in records.seconds.items() if seconds <= SLOWEST_S
    }
    return {
        name: set().union(*(records.branches[context] for context in own))
        for name, own in contexts.items()
        if not own & records.outer
    }


def unrecorded(listed: Mapping[str, frozenset[str]], records: Records) -> list[str]:
    """Return the listed functions that still exist and are absent from the records."""
    return [
        f"{file}::{name}"
        for file, names in listed.items()
        for name in names
        if f"{file}::{name}" not in records.seconds and has_function(file, name)
    ]


def has_function(file: str, name: str) -> bool:
    """Report whether a file of tests, below the root, has a function, or the class of a method."""
    path, outermost = ROOT / file, name.partition("::")[0]
    return path.exists() and bool(
        re.search(rf"^(?:(?:async )?def |class )?{outermost}\b", path.read_text(), re.M)
    )


def written(chosen: Iterable[str]) -> str:
    """Return the list's text: files, and below each the chosen functions."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in sorted(chosen):
        file, _, function = name.partition("::")
        by_file[file].append(function)
    return "".join(f"{file}\n" + "".join(f"{INDENT}{name}\n" for name in by_file[file]) for file in by_file)


def read_quick(text: str) -> dict[str, frozenset[str]]:
    """Return the chosen functions by file."""
    found: dict[str, set[str]] = {}
    file = ""
    for line in text.splitlines():
        if line.startswith(INDENT):
            found[file].add(line.strip())
        else:
            file = line
            found[file] = set()
    return {file: frozenset(names) for file, names in found.items()}


def main() -> None:
    """Choose, and write the list."""
    records = read_records()
    branches = fast_functions(records)
    chosen = cover(branches, records.seconds)
    kept = unrecorded(read_quick(QUICK.read_text()), records)
    QUICK.write_text(written([*chosen, *kept]))
    seconds = [sum(records.seconds[name] for name in names) for names in (chosen, branches)]
    taken = [len(set().union(*(branches[name] for name in names))) for names in (chosen, branches)]
    sys.stdout.write(
        f"quick: {len(chosen)} of {len(branches)} fast test functions, {seconds[0]:.0f} of {seconds[1]:.0f} s"
        f" as recorded, take {taken[0]} of {taken[1]} branches;"
        f" {len(kept)} were not recorded, and stay\n"
    )


if __name__ == "__main__":
    main()
