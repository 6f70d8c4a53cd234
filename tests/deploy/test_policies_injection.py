"""deploy/policies/inject.yaml chooses containers as the table of injection says, by CEL's own library.

tests/cluster has a real API server apply its patch.
"""

from __future__ import annotations

from typing import Any

import pytest

from admission import documents, evaluated
from injection_cases import CASES, Case


def chosen(case: Case) -> dict[str, Any]:
    """The variables that the patch is made of; empty if the policy leaves the pod alone."""
    [policy, _] = documents("inject")
    found = evaluated(policy["spec"], case.pod())
    names = ("newSchedulerName", "slotContainers", "slotSidecars", "ncclContainers")
    return {name: found.get(name, []) for name in names}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_policy_chooses_the_resources_of_the_table(case: Case):
    found = chosen(case)
    assert (found["newSchedulerName"] or "") == case.scheduler
    assert {*found["slotContainers"], *found["slotSidecars"]} == set(case.slots)
    assert found["ncclContainers"] == list(case.nccl)
