"""The part of the tests that takes almost all branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coverage_map import Records
from covering import QUICK, cover, has_function, read_quick, unrecorded, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    Branch = tuple[str, int, int]


def lines(numbers: Iterable[int]) -> set[Branch]:
    return {("src/a.py", number, number + 1) for number in numbers}


def test_cover_takes_all_branches_by_the_cheapest_functions():
    branches = {"a": lines(range(10)), "b": lines(range(5)), "c": lines(range(5, 10)), "d": lines(range(3))}
    assert sorted(cover(branches, {"a": 9.0, "b": 0.1, "c": 0.1, "d": 0.01}, least=0)) == ["b", "c"]
    assert cover(branches, {"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1}, least=0) == ["a"]


def test_cover_leaves_out_a_function_that_adds_little_for_its_time():
    branches = {"a": lines(range(100)), "slow": lines(range(90, 104))}
    assert cover(branches, {"a": 1.0, "slow": 3.0}, least=10) == ["a"]
    assert sorted(cover(branches, {"a": 1.0, "slow": 3.0}, least=1)) == ["a", "slow"]


def test_list_is_read_as_it_is_written():
    chosen = ["tests/b.py::test_c", "tests/a.py::test_d", "tests/a.py::Group::test_a"]
    text = written(chosen)
    assert read_quick(text) == {
        "tests/a.py": {"test_d", "Group::test_a"},
        "tests/b.py": {"test_c"},
    }
    assert text.splitlines()[0] == "tests/a.py"


def test_listed_function_stays_if_it_was_not_recorded_and_is_still_there():
    file, other = "tests/core/test_backoff.py", "tests/wire/test_cni_request.py"
    fails = "test_backoff_fails_from_the_first_failure_to_the_next_success"
    listed = {
        file: frozenset({fails, "test_gone"}),
        other: frozenset({"test_gone"}),
        "tests/gone.py": frozenset({"a"}),
    }
    assert unrecorded(listed, Records()) == [f"{file}::{fails}"]
    assert unrecorded(listed, Records(seconds={f"{file}::{fails}": 0.1})) == []


def test_most_of_the_list_is_there():
    """Names that changed are left out of `make quick`: with more than one in ten gone, choose anew."""
    gone = [
        f"{file}::{name}"
        for file, names in read_quick(QUICK.read_text()).items()
        for name in sorted(names)
        if not has_function(file, name)
    ]
    listed = sum(len(names) for names in read_quick(QUICK.read_text()).values())
    assert len(gone) <= listed / 10, f"{QUICK.name}: run make coverage-map quick-list; gone: {gone[:5]} ..."
