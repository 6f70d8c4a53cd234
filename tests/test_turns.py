from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from turns import alone_first, turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS = 4
DEADLINE_S = 120


def test_tests_that_are_alone_come_first_in_their_order(request: pytest.FixtureRequest) -> None:
    def tests(*names: str) -> Iterator[pytest.Function]:
        for name in names:
            test = pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
            if name.startswith("alone"):
                test.add_marker("alone")
            yield test

    ordered = alone_first(tests("b", "alone-d", "a", "alone-c"))
    assert [test.name for test in ordered] == ["alone-d", "alone-c", "b", "a"]


def test_turns_are_simultaneous_if_no_test_is_alone(tmp_path: Path) -> None:
    meeting = Barrier(WORKERS)

    def meet(_worker: int) -> None:
        with turn(tmp_path, alone=False):
            meeting.wait(DEADLINE_S)

    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(meet, range(WORKERS)))


def test_turn_of_a_test_that_is_alone_is_not_shared(tmp_path: Path) -> None:
    inside: set[int] = set()
    beside_alone: list[set[int]] = []

    def play(worker: int) -> None:
        for _ in range(10):
            with turn(tmp_path, alone=worker == 0):
                inside.add(worker)
                for _ in range(20):
                    os.sched_yield()
                    if 0 in inside and len(inside) > 1:
                        beside_alone.append(set(inside))
                inside.discard(worker)

    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(play, range(WORKERS)))
    assert beside_alone == []
