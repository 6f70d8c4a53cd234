"""Values of the annotation are taken and refused as its page says."""

from __future__ import annotations

import json
import re

import pytest

from documents import ROOT
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, read_pod

PAGE = (ROOT / "docs" / "annotation.md").read_text()
RANGES = [
    (key, int(least), int(most))
    for key, least, most in re.findall(r"^\| `(\w+)` \| (\d+)(?: \(none\))? to (\d+)", PAGE, re.MULTILINE)
]
WORDS = [
    (key, value)
    for key in ("enforce", "driver", "link_type", "vlan_proto", "link_state", "trust", "spoof_check")
    for value in re.findall(r"`([^`]+)`", re.findall(rf"^\| `{key}` \| ([^|;]*)", PAGE, re.MULTILINE)[0])
]
BESIDE = {"qos": {"vlan": 100}, "vlan_proto": {"vlan": 100}}
"""Other keys that a key needs."""


def takes(key: str, value: object) -> bool:
    asked = json.dumps([{key: value, **BESIDE.get(key, {})}])
    try:
        return bool(read_pod({ANNOTATION: asked}, strict=True).request.interfaces)
    except MalformedError:
        return False


@pytest.mark.parametrize(("key", "least", "most"), RANGES)
def test_whole_number_is_taken_within_its_bounds_and_not_beyond(key: str, least: int, most: int):
    taken = {value: takes(key, value) for value in (least - 1, least, most, most + 1)}
    assert taken == {least - 1: False, least: True, most: True, most + 1: False}


@pytest.mark.parametrize(("key", "value"), WORDS)
def test_word_is_taken(key: str, value: str):
    asked: object = json.loads(value) if value in {"true", "false"} or value.startswith('"') else value
    assert takes(key, asked)
    assert not takes(key, "nonsense")


def test_page_says_bounds_and_words():
    assert {key for key, _, _ in RANGES} == {"count", "vlan", "qos", "mtu"}
    assert len(WORDS) > 18
