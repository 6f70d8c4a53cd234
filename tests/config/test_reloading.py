"""Files that are read again: no more often than they may have changed, and the last valid ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.reloading import EVERY_S, Reloaded, failures_of, files_of
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Time that passes on command."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Numbers:
    """Numbers in a file or a directory of files. reads: how often they were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        self.clock = Clock()
        self.reloaded = Reloaded(self.load, path, clock=self.clock)

    def load(self) -> list[int]:
        self.reads += 1
        files = files_of(self.path) if self.path.is_dir() else [self.path]
        try:
            return [int(file.read_text()) for file in files]
        except (OSError, ValueError) as error:
            raise MalformedError("no number") from error

    def later(self, seconds: float = EVERY_S) -> list[int]:
        self.clock.now += seconds
        return self.reloaded()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_file_is_read_again_only_if_it_changed(file: Path):
    numbers = Numbers(file)
    assert [numbers.later(), numbers.later()] == [[1], [1]]
    assert numbers.reads == 1
    file.write_text("22")
    assert numbers.later() == [22]
    assert numbers.reads == 2


def test_file_is_looked_at_no_more_often_than_once_in_a_while(file: Path):
    numbers = Numbers(file)
    file.write_text("22")
    assert numbers.later(EVERY_S / 2) == [1]
    assert numbers.later(EVERY_S / 2) == [22]


def test_last_valid_value_stands_with_the_fault_until_the_file_is_valid_again(file: Path):
    numbers = Numbers(file)
    assert failures_of(numbers.reloaded) == ()
    file.write_text("half")
    numbers.clock.now += EVERY_S
    assert failures_of(numbers.reloaded) == ("no number",)
    assert numbers.reloaded() == [1]
    file.unlink()
    assert (numbers.later(), numbers.reloaded.failure) == ([1], "no number")
    file.write_text("333")
    assert (numbers.later(), numbers.reloaded.failure) == ([333], "")


def test_faulty_file_is_refused_at_the_start(file: Path):
    file.write_text("half")
    with pytest.raises(MalformedError, match="no number"):
        Numbers(file)


def test_directory_is_read_again_if_one_of_its_files_changed_or_came(tmp_path: Path):
    for name, number in (("b", "2"), ("a", "1"), (".hidden", "x")):
        (tmp_path / name).write_text(number)
    numbers = Numbers(tmp_path)
    assert numbers.later() == [1, 2]
    (tmp_path / "b").write_text("20")
    assert numbers.later() == [1, 20]
    (tmp_path / "c").write_text("3")
    assert numbers.later() == [1, 20, 3]
    (tmp_path / "a").unlink()
    assert numbers.later() == [20, 3]
