"""The picture of the demo is drawn from its recording, and a recording is what a command printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from docs_site.picture import PICTURE, RECORDING, draw, record

SVG = "{http://www.w3.org/2000/svg}"


def recording(*events: tuple[float, str], height: int = 3) -> str:
    header = {"version": 2, "width": 20, "height": height}
    return "\n".join(map(json.dumps, [header, *([time_s, "o", f"{text}\r\n"] for time_s, text in events)]))


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314 - of our own


def shown(picture: str) -> list[str]:
    """The lines of a picture without their styles."""
    return ["".join(text.itertext()) for text in parsed(picture).iter(f"{SVG}text")]


def seconds_between_lines(picture: str) -> list[float]:
    [duration] = re.findall(r"animation:scroll ([\d.]+)s", picture)
    parts = [float(part) for part in re.findall(r"([\d.]+)%\{transform", picture)]
    return [round((after - before) * float(duration) / 100, 1) for before, after in pairwise(parts)]


def test_picture_is_that_of_the_recording():
    assert PICTURE.read_text() == draw(RECORDING.read_text()), "python -m docs_site.picture draw"


def test_recording_is_of_a_demo_whose_checks_all_passed():
    text = RECORDING.read_text()
    assert "$ make demo" in text
    assert text.count("\\u001b[32m✓") > 50
    assert "✗" not in text


def test_picture_fetches_nothing():
    assert re.findall(r"https?://[^\"]+", PICTURE.read_text()) == ["http://www.w3.org/2000/svg"]


def test_line_has_its_text_and_styles_at_their_columns():
    picture = draw(recording((0, "\x1b[32m✓\x1b[0m a <b> & \x1b[1mbold\x1b[0m")))
    runs = parsed(picture).iter(f"{SVG}tspan")
    assert [(run.get("x"), run.get("class"), run.text) for run in runs] == [
        ("0", "c32", "✓"),
        ("8.4", None, " a <b> &"),
        ("84", "c1", "bold"),
    ]


def test_what_is_no_style_is_left_out():
    assert shown(draw(recording((0, "\x1b[?25l\x1b[?25h\x1b[97;49mtext\x1b[0m"), (1, "")))) == ["text"]


def test_pauses_are_cut_and_bursts_are_spread():
    events = ((0, "a"), (1, "b"), (60, "c"), (60, "d"))
    assert seconds_between_lines(draw(recording(*events))) == [1.0, 1.5, 0.2]


@pytest.mark.parametrize(("lines", "shift"), [(1, 36), (3, 0), (5, -36)])
def test_last_lines_show_without_animation(lines: int, shift: int):
    picture = draw(recording(*((float(line), "x") for line in range(lines)), height=3))
    assert f'transform="translate(0 {shift})"' in picture


def test_record_has_each_printed_line_and_draws():
    text = record([sys.executable, "-c", "print('one\\ntwo three')"])
    header, *events = map(json.loads, text.splitlines())
    assert header["version"] == 2
    assert [kind for _, kind, _ in events] == ["o"] * 3
    assert [line for _, _, line in events][1:] == ["one\r\n", "two three\r\n"]
    assert shown(draw(text))[1:] == ["one", "two three"]


def test_record_refuses_a_command_that_fails():
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(3)"])
