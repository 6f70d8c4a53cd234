"""Files, processes and programs of a node."""

from __future__ import annotations

import pytest

from k8s_rdma.doctor.collectors.host import Process


@pytest.mark.parametrize("argument", ["--config=/x", "--config\0/x"])
def test_option_is_found_in_both_forms(argument):
    assert Process(pid=1, name="crio", arguments=("crio", *argument.split("\0"))).option("--config") == "/x"


def test_option_without_a_value_counts_as_absent():
    assert Process(pid=1, name="crio", arguments=("crio", "--config")).option("--config") is None
