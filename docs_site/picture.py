"""The picture of the demo in README.md: a run, recorded in the format of asciinema, drawn as an animated SVG.

`make demo-picture` records a run and draws it; `python -m docs_site.picture draw` draws the recording again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECORDING = DOCS / "demo.cast"
PICTURE = DOCS / "demo.svg"

_ROWS = 30
_COLUMN_PX, _ROW_PX, _MARGIN_PX = 8.4, 18, 14
_MAX_PAUSE_S = 1.5
_LINE_S = 0.2
"""The least time between two lines, for a reader to follow what is printed at once."""
_END_S = 8.0

_NO_TERMINAL = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "TERM": "xterm", "COLORTERM": ""}
"""Has rich print the 16 colours of ANSI to a pipe, and nothing that it takes back."""

_ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
_COLORS = {  # by ANSI code: on light, on dark
    "32": ("#116329", "#56d364"),
    "36": ("#1b7c83", "#56d4dd"),
    "91": ("#a40e26", "#ffa198"),
    "96": ("#0550ae", "#79c0ff"),
}
_WEIGHTS = {"1": "font-weight:bold", "2": "opacity:.65"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Text of one style within a line. codes: ANSI's, those that the picture has a style for."""

    column: int
    text: str
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A printed line, in seconds after the recording began."""

    time_s: float
    runs: tuple[Run, ...]


def record(command: list[str]) -> str:
    """Run a command and return what it printed, an event a line, as asciicast v2.

    Raises:
        CalledProcessError: the command failed.
    """
    started = time.monotonic()
    printed = [(0.0, f"$ {shlex.join(command)}")]
    with subprocess.Popen(
        command, env=os.environ | _NO_TERMINAL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        printed += [(time.monotonic() - started, line.rstrip()) for line in process.stdout or ()]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    width = max(len(_ESCAPE.sub("", text)) for _, text in printed)
    header = {"version": 2, "width": width, "height": _ROWS}
    events = [[round(seconds, 2), "o", f"{text}\r\n"] for seconds, text in printed]
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in (header, *events))


def draw(recording: str) -> str:
    """Draw an asciicast v2 whose events are whole lines: a window in which the lines scroll up.

    Without animations, and for readers who want none, it shows the last lines.
    """
    header, *events = map(json.loads, recording.splitlines())
    lines = [_line(seconds, text) for seconds, kind, text in events if kind == "o"]
    times = _paced([line.time_s for line in lines])
    width = round(header["width"] * _COLUMN_PX + 2 * _MARGIN_PX)
    height = header["height"] * _ROW_PX + 2 * _MARGIN_PX
    texts = "\n".join(_text(index, line) for index, line in enumerate(lines) if line.runs)
    shift = (header["height"] - len(lines)) * _ROW_PX
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>
{_style(times, header["height"])}
</style>
<rect class="window" width="{width}" height="{height}" rx="8"/>
<svg x="{_MARGIN_PX}" y="{_MARGIN_PX}" width="{width - 2 * _MARGIN_PX}" height="{height - 2 * _MARGIN_PX}">
<g class="lines" transform="translate(0 {shift})">
{texts}
</g>
</svg>
</svg>
"""


def _line(time_s: float, text: str) -> Line:
    """Split a printed line at its changes of style."""
    runs: list[Run] = []
    codes: tuple[str, ...] = ()
    start = column = 0
    text = text.rstrip("\r\n")
    for found in [*_ESCAPE.finditer(text), None]:
        part = text[start : found.start() if found else len(text)]
        if part.strip():
            runs.append(Run(column=column, text=part.rstrip(), codes=codes))
        column += len(part)
        if found and found[2] == "m":
            codes = tuple(code for code in found[1].split(";") if code in _COLORS or code in _WEIGHTS)
        start = found.end() if found else start
    return Line(time_s=time_s, runs=tuple(runs))


def _paced(times: list[float]) -> list[float]:
    """Shorten pauses, and spread lines that came at once."""
    paced = [0.0]
    for before, after in pairwise(times):
        paced.append(paced[-1] + min(max(after - before, _LINE_S), _MAX_PAUSE_S))
    return paced


def _text(index: int, line: Line) -> str:
    runs = "".join(_run(run) for run in line.runs)
    return f'<text y="{index * _ROW_PX + 13}">{runs}</text>'


def _run(run: Run) -> str:
    style = f' class="{" ".join(f"c{code}" for code in run.codes)}"' if run.codes else ""
    return f'<tspan x="{run.column * _COLUMN_PX:.4g}"{style}>{escape(run.text, quote=False)}</tspan>'


def _style(times: list[float], rows: int) -> str:
    """Write the style sheet: fonts, colours on light and dark, and when the lines move."""
    end = times[-1] + _END_S
    steps = "".join(
        f"{100 * seconds / end:.2f}%{{transform:translateY({(rows - index) * _ROW_PX}px)}}"
        for index, seconds in enumerate(times, 1)
    )
    return "\n".join(
        [
            "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}",
            "text{fill:#1f2328}",
            ".window{fill:#f6f8fa;stroke:#d1d9e0}",
            *(f".c{code}{{{style}}}" for code, style in _WEIGHTS.items()),
            *(f".c{code}{{fill:{light}}}" for code, (light, _) in _COLORS.items()),
            "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.window{fill:#0d1117;stroke:#3d444d}",
            "".join(f".c{code}{{fill:{dark}}}" for code, (_, dark) in _COLORS.items()) + "}",
            f".lines{{animation:scroll {end:.1f}s step-end infinite}}",
            "@media(prefers-reduced-motion:reduce){.lines{animation:none}}",
            f"@keyframes scroll{{{steps}}}",
        ]
    )


def main() -> None:
    """Record the command in the arguments, unless they are `draw`, and draw the recording."""
    if sys.argv[1:] != ["draw"]:
        RECORDING.write_text(record(sys.argv[1:]))
    PICTURE.write_text(draw(RECORDING.read_text()))


if __name__ == "__main__":
    main()
