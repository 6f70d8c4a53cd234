"""`pytest --changed`: no test that a change may break is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from changed import changed_files, concerned_files

TESTS = Path(__file__).resolve().parent


def concerned(*changed: str) -> set[str]:
    test_files = TESTS.rglob("test_*.py")
    return {str(path.relative_to(TESTS)) for path in concerned_files(test_files, frozenset(changed))}


def test_changed_test_module_concerns_itself_alone():
    assert concerned("tests/core/test_rates.py") == {"core/test_rates.py"}


def test_module_concerns_tests_that_import_it_through_others_and_no_others():
    tests = concerned("src/k8s_rdma/core/placement.py")
    assert {"core/test_placement.py", "extender/test_bind.py", "test_structure.py"} <= tests
    assert "core/test_rates.py" not in tests


def test_shared_module_of_tests_concerns_tests_that_import_it():
    tests = concerned("tests/placement_oracle.py")
    assert "core/test_placement_needs.py" in tests
    assert "wire/test_netconf.py" not in tests


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
