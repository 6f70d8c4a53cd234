"""The picture of README.md: three pods on one link over time, as the demo measured them.

`make demo-picture` records and draws; `python -m docs_site.picture draw` draws the recording again. Equal
recordings give equal bytes, by one version of matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import fmean
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from k8s_rdma_demo.launch import launch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECORDING = DOCS / "one-link.json"
PICTURE = DOCS / "one-link.svg"

_WIDTH, _HEIGHT = 560, 490
_POINTS_PER_INCH = 72
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.085, 0.74, 0.255, 0.855
_Y_MAX = 820
_NAME_MBPS = 105
"""The height of a pod's name and reservation, on the axis."""

_LAST_S = 3
_EVENT_LETTERS, _LINE_LETTERS = 12, 82
_PHASE_S = 7

_TEXT, _SOFT, _GRID, _PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
_PODS = {"gold": "#9a6700", "silver": "#0969da", "neighbour": "#cf222e"}
_ON_DARK = {
    _TEXT: "#f0f6fc",
    _SOFT: "#9198a1",
    _GRID: "#3d444d",
    _PAPER: "#0d1117",
    _PODS["gold"]: "#e3b341",
    _PODS["silver"]: "#58a6ff",
    _PODS["neighbour"]: "#ff7b72",
}
"""The color for each color if the reader's system is dark."""

_STYLE: dict[RcKeyType, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _GRID,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that machines agree
    "font.size": 13,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "k8s-rdma",
    "text.color": _TEXT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
}
_FONTS = "system-ui, 'Segoe UI', Roboto, Helvetica, 'DejaVu Sans', sans-serif"
_HEAD = re.compile(r"<\?xml.*?<svg [^>]*>|<metadata>.*?</metadata>", re.DOTALL)
_INNERMOST = re.compile(r"\[[^\[\]]*\]")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")


def draw(recording: dict[str, Any]) -> str:
    """Draw the result of `OverTime.document`, as SVG for light and dark pages."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / _POINTS_PER_INCH, _HEIGHT / _POINTS_PER_INCH), facecolor=_PAPER)
        axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM), facecolor="none")
        end_s = recording["events"][-1][0]
        _draw_axes(axes, end_s)
        _draw_events(axes, recording["events"][:-1])
        for pod in recording["pods"]:
            _draw_pod(axes, pod, end_s)
        _draw_names(axes, recording["pods"], end_s)
        _draw_words(figure, recording)
        return _as_svg(figure)


def title(recording: dict[str, Any]) -> str:
    """Return the picture's title."""
    return f"Three pods on one link of {recording['linkMbps']:,} Mb/s"


def provenance(recording: dict[str, Any]) -> tuple[str, ...]:
    """Return the origin of the recording, a line each."""
    day = date.fromisoformat(recording["date"])
    return (
        f"Measured by make demo-picture, {day.day} {day:%B %Y}: TCP (CUBIC) that arrived.",
        "Virtual SR-IOV, whose rates the kernel's HTB enforces; no card.",
        *wrap(f"{recording['machine']}.".replace("Python ", "Python\N{NO-BREAK SPACE}"), _LINE_LETTERS),
    )


def _draw_axes(axes: Axes, end_s: float) -> None:
    axes.set_xlim(0, end_s)
    axes.set_ylim(0, _Y_MAX)
    axes.set_yticks(range(0, _Y_MAX, 100))
    axes.set_xlabel("seconds", color=_SOFT, labelpad=2)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_events(axes: Axes, events: list[list[Any]]) -> None:
    for at_s, text in events:
        axes.axvline(at_s, color=_SOFT, linewidth=1)
        words = fill(text, _EVENT_LETTERS)
        axes.annotate(words, (at_s, _Y_MAX), (6, 2), textcoords="offset points", va="top", fontsize=13)


def _draw_pod(axes: Axes, pod: dict[str, Any], end_s: float) -> None:
    """Draw a pod's throughput, and its reservation as a dashed line."""
    colour = _PODS[pod["name"]]
    reserved = [*pod["reserved"], [end_s, pod["reserved"][-1][1]]]
    measured = [(at_s, mbps) for at_s, mbps in pod["measured"] if at_s <= end_s]
    dashes = (0, (4, 3))
    axes.plot(
        *zip(*reserved, strict=True), drawstyle="steps-post", color=colour, linewidth=1.6, linestyle=dashes
    )
    axes.plot(*zip(*measured, strict=True), color=colour, linewidth=2.4, solid_joinstyle="round")


def _draw_names(axes: Axes, pods: list[dict[str, Any]], end_s: float) -> None:
    """Write each pod's name right of its lines, with its last seconds' throughput and its reservation."""
    lowest = float("inf")
    for pod in sorted(pods, key=lambda pod: -pod["reserved"][-1][1]):
        reserved = pod["reserved"][-1][1]
        got = fmean(mbps for at_s, mbps in pod["measured"] if end_s - _LAST_S < at_s <= end_s)
        lowest = min(lowest - _NAME_MBPS, got)
        for text, shift, style in (
            (f"{pod['name']} {got:.0f}", 4, {"fontweight": "bold", "fontsize": 14}),
            (f"reserved {reserved}", -13, {"fontsize": 13}),
        ):
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
            axes.annotate(text, (end_s, lowest), (10, shift), color=_PODS[pod["name"]], **place, **style)


def _draw_words(figure: Figure, recording: dict[str, Any]) -> None:
    left = _LEFT - 0.055
    figure.text(left, 0.948, title(recording), fontsize=18, fontweight="bold")
    figure.text(left, 0.9, "Mb/s; solid: measured, dashed: reserved", color=_SOFT)
    for number, line in enumerate(provenance(recording)):
        figure.text(left, 0.135 - 0.037 * number, line, color=_SOFT, fontsize=11.5)


def _as_svg(figure: Figure) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "picture.svg"
        figure.savefig(path, metadata={"Date": None}, facecolor=_PAPER)
        text = path.read_text(encoding="utf-8")
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    body = _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}", _HEAD.sub("", text))
    body = body.replace("'DejaVu Sans'", _FONTS)
    return f"<svg {names} {size}>\n<style>{_dark()}</style>{body.strip()}\n"


def _dark() -> str:
    """Write the style sheet that changes every color for a dark page."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{rules}}}"


def main() -> int:
    """Record, unless the argument is `draw`, and draw; return the exit status."""
    if sys.argv[1:] != ["draw"]:
        with tempfile.TemporaryDirectory() as directory:
            results = Path(directory) / "demo.json"
            if status := launch(json_file=results, keep=False, web=False, over_time_s=_PHASE_S):
                return status
            recording = json.loads(results.read_bytes())["overTime"]
        RECORDING.write_text(_compact(recording), encoding="utf-8")
    PICTURE.write_text(draw(json.loads(RECORDING.read_bytes())), encoding="utf-8")
    return 0


def _compact(recording: dict[str, Any]) -> str:
    """Write JSON in which a sample takes no line of its own."""
    text = json.dumps(recording, indent=1)
    return (
        _INNERMOST.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
