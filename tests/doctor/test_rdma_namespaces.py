"""Findings on RDMA devices in namespaces, beside the table of cases."""

from __future__ import annotations

from doctor.cases.isolation import isolation
from k8s_rdma.config.devices import ExactResource


def test_key_for_placements_is_not_missed_in_a_file_that_is_not_there():
    told = isolation(ExactResource(), signed=False, agent_file=None)
    assert "isolation-unsigned-placements" not in {each.id for each in told}
