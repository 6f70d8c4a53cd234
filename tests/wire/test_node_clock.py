"""A node's clock beside the API server's, by the Node object."""

from __future__ import annotations

import pytest

from k8s_rdma.wire.node_clock import clock_skew_s, skew_text
from node_objects import skewed_node


@pytest.mark.parametrize("skew_s", [-3600.0, 30 * 86_400.0, 6.0])
def test_skew_is_the_heartbeat_beside_the_time_of_its_write(skew_s: float):
    assert clock_skew_s(skewed_node("w1", skew_s, age_s=240.0)) == skew_s


@pytest.mark.parametrize("skew_s", [0.0, 1.0, -5.0])
def test_skew_is_0_within_the_seconds_that_a_write_takes(skew_s: float):
    assert clock_skew_s(skewed_node("w1", skew_s)) == 0


def test_skew_is_not_known_when_the_writer_of_the_heartbeat_is_not():
    node = skewed_node("w1", 60.0)
    fields = node["metadata"]["managedFields"]
    for cleared in ([], [{}], fields[:1], [*fields, fields[1]], [{"time": "soon"}], "text"):
        assert clock_skew_s({**node, "metadata": {"name": "w1", "managedFields": cleared}}) is None
    assert clock_skew_s({**node, "status": {}}) is None


@pytest.mark.parametrize(
    ("skew_s", "text"),
    [
        (-3600.0, "1 h behind the API server's"),
        (30 * 86_400.0, "30 d ahead of the API server's"),
        (-95.0, "1.58 min behind the API server's"),
        (6.0, "6 s ahead of the API server's"),
    ],
)
def test_skew_is_printed_in_a_fitting_unit(skew_s: float, text: str):
    assert skew_text(skew_s) == text
