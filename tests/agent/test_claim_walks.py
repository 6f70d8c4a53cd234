"""Walks of pods by ResourceClaims in which agent and driver are killed at any of their acts.

`HYPOTHESIS_PROFILE=explore` makes it 10,000 walks.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from agent.claim_walk import walk

WALKS = 150
TESTS = 67 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 1

ACTS = {
    "Receipts.put_claim",
    "Receipts.remove_claim",
    "Receipts.put",
    "Receipts.remove",
    "Markers.write",
    "Markers.add",
    "Markers.discard",
    "Files.write",
    "Files.remove",
    "Kernel.apply",
    "Plugins.run",
    "Deletions.drop",
}
"""All that remains of an agent that is killed (`agent.mortal`)."""


@pytest.mark.parametrize("number", range(TESTS))
def test_no_vf_is_lost_or_given_twice_whenever_agent_and_driver_are_killed(number: int) -> None:
    killed: Counter[str] = Counter()
    for seed in range(number * WALKS, (number + 1) * WALKS):
        killed += walk(seed)
    assert killed.keys() >= {"agent", "driver", *ACTS}, "some act was never cut short"
