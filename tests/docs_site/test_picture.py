"""The picture of README.md is drawn from its recording, which is one of reservations that held."""

from __future__ import annotations

import json
import re
from statistics import fmean
from xml.etree import ElementTree

import pytest

from docs_site.picture import PICTURE, RECORDING, draw, provenance, title

SVG = "{http://www.w3.org/2000/svg}"
RECORDED = json.loads(RECORDING.read_bytes())
PODS = {pod["name"]: pod for pod in RECORDED["pods"]}
SETTLING_S = 2
WIDEST = 0.62
"""The width of a character of DejaVu Sans, in its size, on an average: wider than that of other fonts."""


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314 - of our own


def words(picture: str) -> set[str]:
    return {"".join(text.itertext()) for text in parsed(picture).iter(f"{SVG}text")}


def place(text: ElementTree.Element) -> tuple[float, float]:
    """Return the position of a text's start; one of several lines is moved there."""
    moved = re.findall(r"translate\(([\d.]+) ([\d.]+)\)", str(text.get("transform")))
    x, y = moved[0] if moved else (str(text.get("x")), str(text.get("y")))
    return float(x), float(y)


def colours(text: str) -> set[str]:
    return set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]{6})", text))


def test_picture_is_that_of_the_recording():
    assert PICTURE.read_text(encoding="utf-8") == draw(RECORDED), "python -m docs_site.picture draw"


def test_picture_has_no_external_files():
    addresses = set(re.findall(r"https?://[^\"]+", PICTURE.read_text(encoding="utf-8")))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_picture_describes_its_content_and_its_machine():
    shown = words(PICTURE.read_text(encoding="utf-8"))
    assert {title(RECORDED), *provenance(RECORDED)} <= shown
    assert {f"reserved {pod['reserved'][-1][1]}" for pod in PODS.values()} <= shown
    assert "floods: 16" in shown


def test_picture_has_a_colour_for_dark_pages_for_each_of_its_own():
    style, _, body = PICTURE.read_text(encoding="utf-8").partition("</style>")
    for colour in colours(body):
        assert f"{colour}" in style, colour


def test_picture_lies_within_its_frame():
    root = parsed(PICTURE.read_text(encoding="utf-8"))
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    assert (str(root.get("width")), str(root.get("height"))) == (f"{width:.0f}", f"{height:.0f}")
    assert width <= 700
    for text in root.iter(f"{SVG}text"):
        shown = "".join(text.itertext())
        part = 0.5 if "middle" in str(text.get("style")) else 1
        size = float(re.findall(r"([\d.]+)px", str(text.get("style")))[0])
        assert place(text)[0] + part * WIDEST * size * len(shown) < width, shown
        assert place(text)[1] < height, shown


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("name", ["gold", "silver", "neighbour"])
def test_recording_is_one_in_which_reservations_held(name: str, phase: int):
    pod = PODS[name]
    moments = [0.0, *(at_s for at_s, _ in RECORDED["events"])]
    begin_s, end_s = moments[phase : phase + 2]
    if (name, phase) == ("neighbour", 0):
        begin_s, end_s = moments[1:3]
    reserved = [mbps for from_s, mbps in pod["reserved"] if from_s < end_s][-1]
    arrived = fmean(mbps for at_s, mbps in pod["measured"] if begin_s + SETTLING_S < at_s <= end_s)
    assert arrived > reserved


def test_recording_has_a_change_of_rates_and_a_neighbour_that_begins_to_send():
    assert [mbps for _, mbps in PODS["gold"]["reserved"]] == [500, 600]
    first = [mbps for at_s, mbps in PODS["neighbour"]["measured"] if at_s < RECORDED["events"][0][0]]
    assert max(first) < 1


def test_names_do_not_lie_upon_each_other_when_pods_have_the_same():
    same = {
        **RECORDED,
        "pods": [
            {**pod, "measured": PODS["silver"]["measured"], "reserved": [[0, 100]]}
            for pod in RECORDED["pods"]
        ],
    }
    heights = [
        place(text)[1]
        for text in parsed(draw(same)).iter(f"{SVG}text")
        if "".join(text.itertext()) == "reserved 100"
    ]
    assert len(heights) == 3
    assert min(abs(a - b) for a in heights for b in heights if a != b) > 30
