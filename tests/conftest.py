"""Settings that all tests share.

Hypothesis draws the same examples in every run, so that a red run is red again; to look further, run
`HYPOTHESIS_PROFILE=explore .venv/bin/pytest ...`, which draws new ones, and more of them.
pytest-randomly shuffles the tests and prints the seed that brings an order back (`--randomly-seed=N`).
"""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def grpc_ends_with_the_test() -> Iterator[None]:
    """Nothing that a test's gRPC calls leave behind comes to the next test.

    grpc.aio has one queue of completed operations for a process, which lives as long as any channel or server
    does, and these are in cycles of references. What a call that was cancelled completes after its event loop
    was closed, the next loop takes from there and hands on: "Event loop is closed" in whatever test that is.
    Once the last of them is collected, gRPC waits for what is under way and throws its queue away
    (`shutdown_grpc_aio`, grpc/_cython/_cygrpc/aio/grpc_aio.pyx.pxi).
    """
    yield
    if any("_poll_wrapper" in each.name for each in threading.enumerate()):
        gc.collect()
