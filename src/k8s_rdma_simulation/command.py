"""The command's work: policies compared on a scenario, as a table, JSON, CSV and plots."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, signal
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.cli.console import require_writable
from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.cli.progress_bar import progress_bar
from k8s_rdma.cli.tables import Column, Table
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_simulation.plots import check_plots, write_plots
from k8s_rdma_simulation.policies import POLICIES, policy_of
from k8s_rdma_simulation.scenario import load_scenario, load_trace
from k8s_rdma_simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.cli.console import Page
    from k8s_rdma_simulation.simulation import Result, ShapeResult

_INTERRUPTED = 130
"""The exit status of a command that SIGINT ends, as in shells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The command's options.

    policies: their names; empty for all.
    seed: of the first of `runs` runs of each policy.
    """

    scenario: Path
    policies: Sequence[str]
    seed: int
    runs: int
    json_file: Path | None
    csv_file: Path | None
    plots: Path | None
    output: Output


def compare(comparison: Comparison) -> int:
    """Run each policy on the scenario, print the answer, write the files, and return the exit status."""
    scenario = load_scenario(str(comparison.scenario))
    trace = load_trace(scenario, str(comparison.scenario))
    names = comparison.policies or [*POLICIES]
    for name in names:
        policy_of(name)
    require_writable(comparison.json_file, "--json")
    require_writable(comparison.csv_file, "--csv")
    if comparison.plots is not None:
        check_plots()
    results: list[Result] = []
    seeds = range(comparison.seed, comparison.seed + comparison.runs)
    with _progress(len(names) * comparison.runs) as progress:
        for name in names:
            for seed in seeds:
                if not results or results[-1].complete:
                    run = Simulation(scenario, name, seed, trace)
                    results.append(run.run(progress(f"{name}, seed {seed}")))
    comparison.output.write(
        CommandAnswer(
            document=lambda: encode(results),
            names=(f"policy/{result.policy}" for result in results),
            show=lambda page: _show(results, len(names) * comparison.runs, page),
        )
    )
    _write(comparison.json_file, lambda path: path.write_bytes(encode(results)))
    _write(comparison.csv_file, lambda path: _write_csv(path, results))
    _write(comparison.plots, lambda directory: write_plots(results, directory))
    return 0 if results[-1].complete else _INTERRUPTED


def encode(results: Sequence[Result]) -> bytes:
    """Encode results; equal ones are equal bytes."""
    return msgspec.json.format(msgspec.json.encode({"version": 1, "runs": results})) + b"\n"


@contextmanager
def _progress(runs: int) -> Iterator[Callable[[str], Callable[[float], bool]]]:
    """Show a bar on a terminal. Yield a maker of each run's callback, which returns False after Ctrl-C."""
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    previous = signal(SIGINT, interrupt)
    try:
        with progress_bar() as bar:
            task = bar.add_task("", total=runs)
            finished = -1

            def begin(description: str) -> Callable[[float], bool]:
                nonlocal finished
                finished += 1
                bar.update(task, completed=finished, description=description)

                def report(part: float) -> bool:
                    bar.update(task, completed=finished + part)
                    return not interrupted

                return report

            yield begin
    finally:
        signal(SIGINT, previous)


def _show(results: Sequence[Result], planned: int, page: Page) -> None:
    ranks = {"RUNS": 4, "RESERVED": 0, "VFS": 0, "FRAGMENTED": 1, "FIRST REFUSAL": 5}
    ranks |= {"REFUSALS": 0, "CONFLICTS": 2, "P95 WAIT": 0, "OVER LINK": 3}
    numbers = (Column(heading, right=True, rank=rank) for heading, rank in ranks.items())
    shown = Table(Column("POLICY"), *numbers)
    for name in dict.fromkeys(result.policy for result in results):
        found = [result for result in results if result.policy == name]
        shown.add(
            name,
            str(len(found)),
            _percent(_mean(result.reserved for result in found)),
            _percent(_mean(result.vfs for result in found)),
            _percent(_mean(result.fragmentation for result in found)),
            _percent(_mean(result.load_at_first_refusal for result in found)),
            str(sum(shape.refusals for result in found for shape in result.shapes)),
            str(sum(shape.conflicts for result in found for shape in result.shapes)),
            _seconds(max((_p95(shape) for result in found for shape in result.shapes), default=0.0)),
            str(sum(result.over_link for result in found)),
        )
    page.print(shown)
    last = results[-1]
    if not last.complete:
        page.print(
            f"Partial results: interrupted in run {len(results)} of {planned} "
            f"({last.policy}, seed {last.seed}), after {last.seconds:.0f} s of simulated time."
        )


def _write_csv(path: Path, results: Sequence[Result]) -> None:
    of_run = ("policy", "seed", "complete", "reserved", "vfs", "fragmentation", "load_at_first_refusal")
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow((*of_run, *results[0].shapes[0].__struct_fields__))
        for result in results:
            for shape in result.shapes:
                rows.writerow(
                    [*(getattr(result, field) for field in of_run), *msgspec.structs.astuple(shape)]
                )


def _write(path: Path | None, write: Callable[[Path], object]) -> None:
    if path is None:
        return
    try:
        write(path)
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise K8sRdmaError(msg) from error


def _mean(values: Iterator[float | None]) -> float | None:
    """Return the mean of the known values."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _p95(shape: ShapeResult) -> float:
    return shape.p95_wait_s or 0.0


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.0f} s"
