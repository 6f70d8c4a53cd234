"""The map of which test functions reach which functions of `src`, made by `make coverage-map`."""

from __future__ import annotations

import ast
import json
import sqlite3
import subprocess
import sys
from bisect import bisect_right
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from affected import FUNCTIONS, Name
from coverage_recorder import RECORDS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

MAP = ROOT / ".cache/coverage-map.json"
SOURCES = "src/"
BRANCHES = """
    SELECT file.path, context.context, arc.fromno, arc.tono
    FROM arc JOIN file ON file.id = arc.file_id JOIN context ON context.id = arc.context_id
"""


class CoverageMap(msgspec.Struct, frozen=True):
    """Functions that each test function reached at a commit.

    functions: names of functions of `src`, with their modules. reached: numbers of these, by test function.
    imported: those that imports ran, for which no single test can be named. outer: test functions that
    started processes, in which calls are not recorded.
    """

    commit: str
    functions: list[tuple[str, str]]
    reached: dict[str, list[int]]
    imported: list[int]
    outer: list[str]

    def reached_by(self, test: str) -> frozenset[Name] | None:
        """Return the functions that a test function reaches, if they are known."""
        if test not in self.reached or test in self.outer:
            return None
        return frozenset(self.functions[number] for number in self.reached[test])


def read_map(path: Path = MAP) -> CoverageMap | None:
    """Read the map, if there is one."""
    return msgspec.json.decode(path.read_bytes(), type=CoverageMap) if path.exists() else None


@dataclass(slots=True)
class Records:
    """Data of the recorders of all processes: entries of functions by context, and the tests.

    seconds: of test functions that passed, which are all that the records know.
    """

    entries: dict[str, set[Name]] = field(default_factory=lambda: defaultdict(set))
    branches: dict[str, set[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(set))
    fixtures: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    outer: set[str] = field(default_factory=set)

    def contexts_of(self, test: str) -> set[str]:
        """Return a test function's contexts: its own, and those of its wider fixtures."""
        return {test, *self.fixtures[test]}


def module_of(path: str) -> str:
    """Return the module of a path below the root, such as `src/k8s_rdma/core/plan.py`."""
    return path.removeprefix(SOURCES).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_records(directory: Path = RECORDS) -> Records:
    """Read the files of recorders in a directory."""
    records, failed = Records(), set[str]()
    for path in sorted(directory.glob("tests.*.json")):
        record = json.loads(path.read_text())
        records.outer.update(record["outer"])
        failed.update(record["failed"])
        for name, wide in record["fixtures"].items():
            records.fixtures[name].update(wide)
        for name, seconds in record["seconds"].items():
            records.seconds[name] += seconds
    for name in failed:
        records.seconds.pop(name, None)
    for path in sorted(directory.glob("data.*")):
        with closing(sqlite3.connect(path)) as data:
            _add_branches(records, data)
    return records


def _add_branches(records: Records, data: sqlite3.Connection) -> None:
    """Add the data of a file of coverage.py (its documentation has the schema); entries begin below zero.

    A page's template runs as code as well, with the lines of its own file. Imports decide for it.
    """
    owners: dict[str, _Owners] = {}
    for path, context, begin, end in data.execute(BRANCHES):
        if not path.endswith(".py"):
            continue
        relative = Path(path).relative_to(ROOT).as_posix()
        records.branches[context].add((relative, begin, end))
        if begin < 0:
            if path not in owners:
                owners[path] = _Owners(Path(path).read_text())
            if name := owners[path].at(-begin):
                records.entries[context].add((module_of(relative), name))


class _Owners:
    """The function or method at the top of a module, or of a class there, that a line belongs to."""

    def __init__(self, source: str) -> None:
        self._begins: list[int] = []
        self._named: list[tuple[int, str]] = []
        for prefix, function in _functions(ast.parse(source)):
            begin = min(each.lineno for each in (function, *function.decorator_list))
            self._begins.append(begin)
            self._named.append((function.end_lineno or begin, prefix + function.name))

    def at(self, line: int) -> str | None:
        index = bisect_right(self._begins, line) - 1
        return self._named[index][1] if index >= 0 and line <= self._named[index][0] else None


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for statement in tree.body:
        if isinstance(statement, FUNCTIONS):
            yield "", statement
        elif isinstance(statement, ast.ClassDef):
            yield from (
                (f"{statement.name}.", each) for each in statement.body if isinstance(each, FUNCTIONS)
            )


def make_map(records: Records, commit: str) -> CoverageMap:
    """Return the map of the records of a commit."""
    functions = sorted(set().union(*records.entries.values()))
    numbers = {name: number for number, name in enumerate(functions)}
    tests = sorted(records.seconds)
    contexts = {test: records.contexts_of(test) for test in tests}
    return CoverageMap(
        commit=commit,
        functions=functions,
        reached={
            test: sorted({numbers[name] for context in contexts[test] for name in records.entries[context]})
            for test in tests
        },
        imported=sorted(numbers[name] for name in records.entries[""]),
        outer=[test for test in tests if contexts[test] & records.outer],
    )


def main() -> None:
    """Make the map from the records, if the sources are still those of the commit at which these began."""
    commit = (RECORDS / "commit").read_text().strip()
    if subprocess.run(
        ["git", "diff", "--quiet", commit, "--", "src", "tests"], cwd=ROOT, check=False
    ).returncode:
        sys.exit(
            f"coverage-map: src or tests changed since {commit[:9]} while tests ran: there is no new map"
        )
    found = make_map(read_records(), commit)
    MAP.write_bytes(msgspec.json.encode(found))
    sys.stdout.write(
        f"coverage-map: {len(found.reached)} test functions, of which {len(found.outer)} start processes,"
        f" reach {len(found.functions)} functions: {MAP.relative_to(ROOT)}\n"
    )


if __name__ == "__main__":
    main()
