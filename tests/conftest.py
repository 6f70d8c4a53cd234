"""Settings that all tests share.

Hypothesis draws the same examples in every run, so that a red run is red again; to look further, run
`HYPOTHESIS_PROFILE=explore .venv/bin/pytest ...`, which draws new ones, and more of them.
pytest-randomly shuffles the tests and prints the seed that brings an order back (`--randomly-seed=N`).
With pytest-xdist workers run tests at the same time. What measures bandwidth does so again if others left
it too little of the machine.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import warm_program
from changed import (  # noqa: F401 - hooks of --changed and --quick
    pytest_addoption,
    pytest_configure,
    pytest_ignore_collect,
)
from changed import pytest_collection_modifyitems as choose_tests
from order import longest_first

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell without job control leaves it to commands in the background (POSIX, 2.11): programs that
    # tests start and interrupt would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


warm_program.allow()


@pytest.fixture
def anyio_backend() -> str:
    """Run coroutines of tests on asyncio, as the product does."""
    return "asyncio"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the collected tests out of all later garbage collections.

    All tests of the suite are half a million objects that live until its end. Each full collection looked
    at them again, for example after each test of gRPC, and took 0.4 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not asked for, and order the others."""
    choose_tests(config, items)
    items[:] = longest_first(items)


@pytest.fixture(autouse=True)
def grpc_ends_with_the_test() -> Iterator[None]:
    """Keep leftovers of a test's gRPC calls from the next test.

    grpc.aio has one queue of completed operations for a process, which lives as long as any channel or server
    does, and these are in cycles of references. Operations that a cancelled call completes after its loop
    was closed, the next loop takes from there and hands on: "Event loop is closed" in whatever test that is.
    Once the last of them is collected, gRPC waits for operations under way and throws its queue away
    (`shutdown_grpc_aio`, grpc/_cython/_cygrpc/aio/grpc_aio.pyx.pxi).
    """
    yield
    if any("_poll_wrapper" in each.name for each in threading.enumerate()):
        gc.collect()
