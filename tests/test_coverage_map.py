"""The map is made of the files that recorders of several processes wrote."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from coverage_map import ROOT, make_map, read_records

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = ROOT / "src/k8s_rdma/core/backoff.py"
FAIL, RESET = ("k8s_rdma.core.backoff", "Backoff.fail"), ("k8s_rdma.core.backoff", "Backoff.reset")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line)


def write_records(
    directory: Path, process: str, entries: dict[str, list[int]], source: Path = SOURCE, **tests: object
) -> None:
    """Write a process's records, in coverage.py's schema; a function's entry has its line below zero."""
    with closing(sqlite3.connect(directory / f"data.{process}")) as data:
        data.execute("CREATE TABLE file (id, path)")
        data.execute("CREATE TABLE context (id, context)")
        data.execute("CREATE TABLE arc (file_id, context_id, fromno, tono)")
        data.execute("INSERT INTO file VALUES (1, ?)", (str(source),))
        for number, (context, lines) in enumerate(entries.items()):
            data.execute("INSERT INTO context VALUES (?, ?)", (number, context))
            data.executemany("INSERT INTO arc VALUES (1, ?, ?, ?)", [(number, -at, at + 2) for at in lines])
        data.commit()
    seconds = {name: 0.5 for name in entries if name.startswith("test")}
    record = {"fixtures": {}, "outer": [], "failed": [], "seconds": seconds, **tests}
    (directory / f"tests.{process}.json").write_text(json.dumps(record))


def test_map_joins_processes_and_adds_wider_fixtures_to_their_tests(tmp_path: Path):
    fail, reset = line_of("def fail("), line_of("def reset(")
    wide = {"test_a": ["fixture tests::node"]}
    write_records(tmp_path, "1", {"": [1], "test_a": [fail], "fixture tests::node": [reset]}, fixtures=wide)
    write_records(tmp_path, "2", {"test_b": [reset], "test_c": []}, outer=["test_c"])
    found = make_map(read_records(tmp_path), "commit")
    assert found.reached_by("test_a") == {FAIL, RESET}
    assert found.reached_by("test_b") == {RESET}
    assert found.imported == []
    assert found.reached_by("test_c") is None  # it starts processes
    assert found.reached_by("test_d") is None  # no process recorded it


def test_function_that_failed_in_one_process_is_not_known(tmp_path: Path):
    write_records(tmp_path, "1", {"test_a": [line_of("def fail(")]})
    write_records(tmp_path, "2", {}, failed=["test_a"])
    assert make_map(read_records(tmp_path), "commit").reached_by("test_a") is None


def test_function_that_imports_run_is_noted(tmp_path: Path):
    write_records(tmp_path, "1", {"": [line_of("def fail(")]})
    found = make_map(read_records(tmp_path), "commit")
    assert [found.functions[number] for number in found.imported] == [FAIL]


def test_lines_of_a_page_are_no_code(tmp_path: Path):
    page = ROOT / "src/k8s_rdma/web/templates/node.html"
    write_records(tmp_path, "1", {"test_a": [1]}, source=page)
    assert make_map(read_records(tmp_path), "commit").reached_by("test_a") == set()
