"""Collects the results of benchmarks beside their budgets, and ends the run with one table.

A benchmark declares its budget in one of two ways:

    @pytest.mark.budget("parse a filter request of 1,000 nodes", 5, "ms")
    def test_parse(benchmark): ...                  # the median of pytest-benchmark's rounds counts

    def test_memory(record):
        record("agent, resident memory", budget=60, measured=..., unit="MiB")

See README.md.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.cni_plugin import PLUGINS, PROGRAM, VFS
from bench.machine import BUSY_PERCENT, busy_percent, description
from e2e.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
"""Units in which the median of a benchmark can be declared."""


@dataclass(frozen=True)
class Result:
    """One row of the table.

    budget: unset if the figure is for information only.
    at_least: the budget is a minimum (requests/s), not a maximum.
    measured: the median, if there are several runs.
    least, most, runs: of several runs; 0 if there is one figure.
    """

    name: str
    budget: float | None
    measured: float
    unit: str
    at_least: bool = False
    note: str = ""
    least: float = 0
    most: float = 0
    runs: int = 0

    @classmethod
    def of_runs(
        cls, name: str, budget: float | None, runs: Sequence[float], unit: str, **more: Any
    ) -> Result:
        """Return the row of several runs."""
        middle = statistics.median(runs)
        return cls(name, budget, middle, unit, least=min(runs), most=max(runs), runs=len(runs), **more)

    @property
    def ok(self) -> bool:
        """Report whether the budget is kept; without a budget it is."""
        if self.budget is None:
            return True
        return self.measured >= self.budget if self.at_least else self.measured <= self.budget

    def as_json(self) -> dict[str, Any]:
        """Return the row as results.json holds it."""
        row = {**asdict(self), "ok": self.ok}
        optional = {"at_least", "note", *(() if self.runs else ("least", "most", "runs"))}
        return {key: value for key, value in row.items() if value or key not in optional}

    def __str__(self) -> str:
        """Return the text that is shown as the benchmark ends."""
        limit = "" if self.budget is None else f" of {figure(self.budget)}"
        return f"{figure(self.measured)}{limit} {self.unit}{self.spread()}"

    def spread(self) -> str:
        """Return the least and the most of several runs, in words."""
        return f" ({figure(self.least)} to {figure(self.most)} in {self.runs} runs)" if self.runs else ""


class Record(Protocol):
    """The type of the `record` fixture."""

    def __call__(  # noqa: PLR0913 - the columns of the table, by keyword
        self,
        name: str,
        *,
        budget: float | None,
        measured: float | Sequence[float],
        unit: str,
        at_least: bool = False,
        note: str = "",
    ) -> None:
        """Add a row; `name` is unique. measured: a figure, or one for each of several runs."""


_ROWS = pytest.StashKey[list[Result]]()
_BUSY = pytest.StashKey[float]()
_PARTIAL = pytest.StashKey[bool]()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Add a row to the table: times, sizes, ratios, counts."""

    def add(name: str, *, measured: float | Sequence[float], **columns: Any) -> None:
        if isinstance(measured, int | float):
            _add(request.node, Result(name, measured=measured, **columns))
        else:
            _add(request.node, Result.of_runs(name, runs=measured, **columns))

    return add


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node of virtual SR-IOV with its agent; a module may set the number of VFs of each PF as `VFS`."""
    vfs = getattr(request.module, "VFS", VFS)
    with Node(vfs=vfs, plugins=PLUGINS, shim=PROGRAM) as node:
        node.start_agent()
        yield node


def _add(item: pytest.Item, row: Result) -> None:
    item.config.stash[_ROWS].append(row)
    item.user_properties.append(("result", str(row)))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, start the list of rows."""
    config.addinivalue_line("markers", "budget(name, budget, unit): what the benchmark's median may be")
    config.stash[_ROWS] = []
    config.stash[_PARTIAL] = bool(config.option.keyword or config.option.markexpr)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Measure the processor time of other programs while no benchmark runs."""
    session.config.stash[_BUSY] = 0.0 if session.config.option.collectonly else busy_percent()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note whether these are all benchmarks."""
    collected = {item.path for item in items}
    config.stash[_PARTIAL] |= collected != set(HERE.glob("test_*.py")) or any(
        "::" in arg for arg in config.args
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Take the median of a benchmark, for information if it declares no budget."""
    marker = item.get_closest_marker("budget")
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if call.when == "call" and not call.excinfo and benchmark and benchmark.stats:
        name, budget, unit = marker.args if marker else (f"{item.path.name}::{item.name}", None, "ms")
        found, second = benchmark.stats.stats, 1 / SECONDS[unit]
        spread = {"least": found.min * second, "most": found.max * second, "runs": found.rounds}
        _add(item, Result(name, budget, found.median * second, unit, **spread))
    report: pytest.TestReport = yield
    report.user_properties = list(item.user_properties)
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show the measurements as each benchmark ends."""
    shown = [text for key, text in getattr(report, "user_properties", ()) if key == "result"]
    if report.when == "call" and report.passed and shown:
        return "passed", ".", "; ".join(shown[:3]) + ("; ..." if len(shown) > 3 else "")
    return None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write results.json, unless the machine was busy, and show the table."""
    rows = config.stash[_ROWS]
    if not rows:
        return
    terminalreporter.ensure_newline()
    terminalreporter.write_line(description())
    if refusal := refused(config.stash[_BUSY]):
        terminalreporter.write_line(refusal, red=True)
    else:
        _write(rows, keep_others=config.stash[_PARTIAL] or bool(terminalreporter.stats.get("failed")))
    console = Console()
    Console(width=console.width if console.is_terminal else 150).print(table(rows))


def refused(busy: float) -> str:
    """Return why the figures of a machine with this use in percent are not written; empty if they are."""
    if busy <= BUSY_PERCENT:
        return ""
    return (
        f"{RESULTS.name} stays as it is: other programs took {busy:.0f} % of the processors before the first "
        f"benchmark, and {BUSY_PERCENT:.0f} % is the most for figures that others can compare"
    )


def _write(rows: list[Result], *, keep_others: bool) -> None:
    """Write the rows: a whole run replaces the file, a run of some benchmarks only replaces their rows."""
    old = json.loads(RESULTS.read_text()) if keep_others and RESULTS.exists() else []
    new = {row.name: {**row.as_json(), "machine": description()} for row in rows}
    merged = [new.pop(row["name"], row) for row in old] + list(new.values())
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n")


def table(rows: list[Result]) -> Table:
    """Return the table: work, budget, measured, ratio, met or not."""
    shown = Table(title="Measured against budgets (medians)", title_justify="left")
    for heading in ("work", "budget", "measured", "measured / budget", "", "note"):
        shown.add_column(heading, justify="right" if heading in {"budget", "measured"} else "left")
    for row in rows:
        limit, ratio, met = "", "", ""
        if row.budget is not None:
            limit = f"{'>= ' if row.at_least else ''}{figure(row.budget)} {row.unit}"
            ratio = figure(row.measured / row.budget) if row.budget else ""
            met = "[green]met[/]" if row.ok else "[bold red]NOT MET[/]"
        shown.add_row(
            escape(row.name),
            limit,
            f"{figure(row.measured)} {row.unit}{row.spread()}",
            ratio,
            met,
            escape(row.note),
        )
    return shown


def figure(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"
