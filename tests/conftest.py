"""Settings that all tests share.

Hypothesis draws the same examples in every run, so that a red run is red again; to look further, run
`HYPOTHESIS_PROFILE=explore .venv/bin/pytest ...`, which draws new ones, and more of them.
pytest-randomly shuffles the tests and prints the seed that brings an order back (`--randomly-seed=N`).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,  # tests never time
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a judgement by the clock as well
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
