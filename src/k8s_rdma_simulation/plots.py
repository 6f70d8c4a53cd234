"""Plots of simulations by matplotlib: policies beside each other, over time and by shape of pods.

Equal results give equal bytes, by one version of matplotlib.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle, zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

    from k8s_rdma_simulation.simulation import Result, Sample, ShapeResult

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The palette of Okabe and Ito for colour-blind readers, without the yellow that is faint on white."""

_DASHES = ("-", "--", ":", "-.")
_HATCHES = ("", "////", "....")
"""Patterns that tell policies apart in print without colours, and more policies than there are colours."""

_MAX_SHAPES = 24
"""The number of shapes on a plot, at most; the most frequent ones are shown."""

_TIMES = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (0, 1, "seconds"))
"""Durations in seconds, each with the unit that shows longer ones: its seconds, its name."""

_STYLE: dict[RcKeyType, Any] = {
    "axes.grid": True,
    "axes.grid.axis": "both",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that machines agree
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "path.simplify_threshold": 1.0,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "k8s-rdma",
    "text.parse_math": False,  # names of shapes may have dollars
}


class _Curve(NamedTuple):
    """A figure over time, in the title's unit; None if it is not known."""

    title: str
    value: Callable[[Sample], float | None]


class _Bars(NamedTuple):
    """A figure of one run by shape, in the title's unit; None if it is not known."""

    title: str
    value: Callable[[ShapeResult], float | None]


_CURVES = (
    _Curve("Reserved bandwidth (% of all links)", lambda sample: 100 * sample.reserved),
    _Curve("VFs in use (% of all)", lambda sample: 100 * sample.vfs),
    _Curve(
        "Fragmentation (% of the free bandwidth)",
        lambda sample: None if sample.fragmentation is None else 100 * sample.fragmentation,
    ),
    _Curve("Waiting pods", lambda sample: sample.waiting),
)

_BARS = (
    _Bars("Refusals (attempts without a place)", lambda shape: shape.refusals),
    _Bars("Waits (95th percentile, seconds)", lambda shape: shape.p95_wait_s),
    _Bars("Conflicts (binds refused)", lambda shape: shape.conflicts),
)


def check_plots() -> None:
    """Raise K8sRdmaError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        msg = "--plots: matplotlib is not installed; pip install 'k8s-rdma[plots]'"
        raise K8sRdmaError(msg) from error


def write_plots(results: Sequence[Result], directory: Path) -> None:
    """Write `over-time` and `by-shape`, as SVG and PNG, into the directory, which is made. OSError.

    Shows the mean of a policy's runs.
    """
    from matplotlib import rc_context

    by_policy: dict[str, list[Result]] = {}
    for result in results:
        by_policy.setdefault(result.policy, []).append(result)
    directory.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE):
        _save(_over_time(by_policy), directory / "over-time")
        _save(_by_shape(by_policy), directory / "by-shape")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": "k8s-rdma simulate"})
    figure.savefig(path.with_suffix(".png"), dpi=120, metadata={"Software": None})


def _over_time(by_policy: Mapping[str, Sequence[Result]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    panels = [*figure.subplots(2, 2, sharex=True).flat]
    end_s = max(result.seconds for runs in by_policy.values() for result in runs)
    unit_s, unit = next((unit_s, unit) for from_s, unit_s, unit in _TIMES if end_s >= from_s)
    for panel, curve in zip(panels, _CURVES, strict=True):
        for (policy, runs), colour, dashes in zip(by_policy.items(), cycle(_COLOURS), cycle(_DASHES)):
            moments = [[*filter(None, moment)] for moment in zip_longest(*(run.samples for run in runs))]
            times = [moment[0].at_s / unit_s for moment in moments]
            means = [_mean(map(curve.value, moment)) for moment in moments]
            panel.plot(times, means, label=policy, color=colour, linestyle=dashes, linewidth=1.4)
        panel.set_title(curve.title, loc="left")
        panel.set_ylim(bottom=0)
        # # labels have no fractions, so ticks must not have any
        panel.yaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        panel.yaxis.set_major_formatter("{x:,.0f}")
    for panel in panels[-2:]:
        panel.set_xlabel(f"time ({unit})")
    _finish(figure, panels[0], by_policy)
    return figure


def _by_shape(by_policy: Mapping[str, Sequence[Result]]) -> Figure:
    from matplotlib.figure import Figure

    arrived: Counter[str] = Counter()
    for runs in by_policy.values():
        for run in runs:
            arrived.update({shape.shape: shape.arrived for shape in run.shapes})
    frequent = {name for name, _ in arrived.most_common(_MAX_SHAPES)}
    names = [name for name in arrived if name in frequent]
    height = 0.8 / len(by_policy)
    figure = Figure(figsize=(10, 1.6 + 0.13 * len(names) * (len(by_policy) + 2)), layout="constrained")
    panels = [*figure.subplots(1, len(_BARS), sharey=True).flat]
    for panel, bars in zip(panels, _BARS, strict=True):
        for number, ((policy, runs), colour) in enumerate(zip(by_policy.items(), cycle(_COLOURS))):
            values: dict[str, list[float | None]] = {name: [] for name in names}
            for shape in (shape for run in runs for shape in run.shapes if shape.shape in values):
                values[shape.shape].append(bars.value(shape))
            panel.barh(
                [row - 0.4 + (number + 0.5) * height for row in range(len(names))],
                [_mean(values[name]) or 0 for name in names],
                height=height,
                label=policy,
                color=colour,
                hatch=_HATCHES[number // len(_COLOURS) % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.3,
            )
        panel.set_title(bars.title, loc="left")
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xlim(left=0)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_xlabel("logarithmic from 1 on")
        panel.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    _finish(figure, panels[0], by_policy)
    return figure


def _finish(figure: Figure, panel: Axes, by_policy: Mapping[str, Sequence[Result]]) -> None:
    """Write the scenario above the panels, and the policies below."""
    runs = next(iter(by_policy.values()))
    mean = f", mean of {len(runs)} runs" if len(runs) > 1 else ""
    partial = "" if all(run.complete for runs in by_policy.values() for run in runs) else ", interrupted"
    figure.suptitle(f"{runs[0].scenario}{mean}{partial}")
    figure.legend(
        *panel.get_legend_handles_labels(), loc="outside lower center", ncols=min(7, len(by_policy))
    )


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
