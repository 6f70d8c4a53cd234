"""Time spans as options of commands."""

from __future__ import annotations

import pytest
import typer

from k8s_rdma.cli.duration_option import read_duration


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("7d", 604_800), ("1h30m", 5400)])
def test_time_spans_are_as_prometheus_writes_them(text: str, seconds: int):
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "10", "-1s", "7 d", "1y", "400d", "9999999d"])
def test_malformed_time_span_is_refused(text: str):
    with pytest.raises(typer.BadParameter, match="wanted a time span"):
        read_duration(text)
