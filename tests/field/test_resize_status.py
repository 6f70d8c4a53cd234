"""Rates of a running pod that change while others wait for the outcome, as resizes of pods by kubelet did.

Sources: https://github.com/kubernetes/kubernetes/issues/112264, the status of a resize came tens of seconds
after it was made, because nothing but the periodic sync looked; and
https://github.com/kubernetes/kubernetes/issues/125205, a resize that was soon taken back was over in minutes.
"""

from __future__ import annotations

import pytest

from extender.changing_rates import KEY, ask, programs, start, status
from extender.world import cluster, extending

pytestmark = pytest.mark.anyio


async def test_rates_that_are_soon_taken_back_are_over_without_a_retry():
    """By the clock no retry is ever due."""
    now = 0.0
    async with cluster("w1") as made, extending(made, key=KEY, clock=lambda: now, max_age_s=0.1) as c:
        await start(c)
        await ask(c, "gold", (700, 900))
        await status(c, "gold", "admitted")
        await ask(c, "gold", (500, 600))
        await status(c, "gold", "waiting")
        now = 0.2
        programs(c, ("gold", 1, 700), ("silver", 0, 300))
        await c.fitting("probe")
        assert (await status(c, "gold", "admitted")).generation == 2
        now = 0.4
        programs(c, ("gold", 2, 500), ("silver", 0, 300))
        await c.fitting("probe")
        assert (await status(c, "gold", "programmed")).generation == 2
