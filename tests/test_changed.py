"""`pytest --changed`: no test that a change may break is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from affected import Change, ChangedRows
from changed import (
    Effect,
    beside_functions,
    changed_files,
    concerned_files,
    concerned_functions,
    names_rows,
    reaching,
)
from coverage_map import CoverageMap

TESTS = Path(__file__).resolve().parent


def concerned(*changed: str) -> set[str]:
    test_files = TESTS.rglob("test_*.py")
    return {str(path.relative_to(TESTS)) for path in concerned_files(test_files, frozenset(changed))}


def test_changed_test_module_concerns_itself_alone():
    assert concerned("tests/core/test_programming.py") == {"core/test_programming.py"}


def test_module_concerns_tests_that_import_it_through_others_and_no_others():
    tests = concerned("src/k8s_rdma/core/placement.py")
    assert {"core/test_placement.py", "extender/test_bind.py", "test_structure.py"} <= tests
    assert "core/test_programming.py" not in tests


def test_shared_module_of_tests_concerns_tests_that_import_it():
    tests = concerned("tests/placement_oracle.py")
    assert "core/test_placement_needs.py" in tests
    assert "wire/test_cni_request.py" not in tests


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("deploy/chart/values.yaml", "deploy/test_chart.py"),
        ("docs/annotation.md", "docs_site/test_annotation.py"),
        ("cni/json.c", "cni/test_build.py"),
    ],
)
def test_file_of_no_module_concerns_tests_that_name_its_folder(path: str, test: str):
    assert test in concerned(path)


def test_dependencies_concern_every_test():
    assert len(concerned("pyproject.toml")) == len(list(TESTS.rglob("test_*.py")))


def test_new_file_is_a_change():
    untracked = TESTS / "untracked_by_git.txt"
    untracked.touch()
    try:
        assert "tests/untracked_by_git.txt" in changed_files("HEAD")
    finally:
        untracked.unlink()


def test_commit_that_git_does_not_know_is_an_error():
    with pytest.raises(pytest.UsageError, match="no-such-commit"):
        changed_files("no-such-commit")


DRIVERS = "k8s_rdma.linux.drivers"
SOME = frozenset({"ixgbe", "igb", "bnxt_en", "ionic", "hns3", "qede"})


@pytest.mark.parametrize(
    ("file", "words", "others", "names"),
    [
        ("linux/test_drivers.py", {"mlx4_core"}, frozenset(), True),
        ("linux/test_drivers.py", {"unheard"}, SOME, True),  # it lists them all
        ("linux/test_driver_settings.py", {"mlx4_core"}, frozenset(), True),
        ("linux/test_vf_rates.py", {"unheard"}, SOME, False),
        ("core/test_namespace_policy.py", {"spoof_check"}, frozenset(), True),
        ("core/test_backoff.py", {"spoof_check"}, SOME, False),
    ],
)
def test_file_of_tests_names_rows_by_a_key_or_by_most_other_keys(
    file: str, words: set[str], others: frozenset[str], *, names: bool
):
    assert names_rows(TESTS / file, ChangedRows(DRIVERS, frozenset(words), others)) is names


def test_docstring_concerns_tests_that_read_sources_alone():
    files = list(TESTS.rglob("test_*.py"))
    change = beside_functions(files, frozenset({"src/k8s_rdma/core/backoff.py"}), Change())
    assert {TESTS / "test_repository.py", TESTS / "test_structure.py"} <= change
    assert BACKOFF not in change


BACKOFF = TESTS / "core/test_backoff.py"
FAIL, RESET = ("k8s_rdma.core.backoff", "Backoff.fail"), ("k8s_rdma.core.backoff", "Backoff.reset")
MAP = CoverageMap(
    commit="",
    functions=[FAIL, RESET],
    reached={"test_fails": [0, 1], "test_resets": [1], "test_starts_a_process": []},
    imported=[],
    outer=["test_starts_a_process"],
)
NOTHING = Effect(frozenset(), frozenset())


def reaching_tests(effect: Effect, since_map: Effect) -> set[str]:
    names = ("test_fails", "test_resets", "test_starts_a_process", "test_new")
    return reaching(dict.fromkeys(names, BACKOFF), MAP, effect, since_map)


@pytest.mark.parametrize(
    ("effect", "since_map", "left_out"),
    [
        (Effect(frozenset(), frozenset({FAIL})), Effect(frozenset(), frozenset({FAIL})), {"test_resets"}),
        (Effect(frozenset(), frozenset({RESET})), Effect(frozenset(), frozenset({RESET})), set()),
        (NOTHING, NOTHING, {"test_fails", "test_resets"}),
        # A change before may have led a test to the code that changes now.
        (NOTHING, Effect(frozenset(), frozenset({FAIL})), {"test_resets"}),
        (NOTHING, Effect(frozenset({BACKOFF}), frozenset()), set()),
        (Effect(frozenset({BACKOFF}), frozenset()), NOTHING, set()),
    ],
    ids=["one function", "both", "none", "one before", "test file before", "test file"],
)
def test_map_leaves_out_tests_that_do_not_reach_the_change(
    effect: Effect, since_map: Effect, left_out: set[str]
):
    names = {"test_fails", "test_resets", "test_starts_a_process", "test_new"}
    assert reaching_tests(effect, since_map) == names - left_out


def test_map_of_an_unknown_commit_leaves_out_no_test():
    found = CoverageMap(commit="f" * 40, functions=[], reached={}, imported=[], outer=[])
    functions = {"test_backoff": BACKOFF}
    assert concerned_functions(functions, "HEAD", found) == concerned_functions(functions, "HEAD", None)
