"""Scans that follow a change; here they read a file."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.linux.changes import CachedScan

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

DEADLINE_S = 120


class Watched:
    """A file that is looked at; `signs` is set with each sign of a change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text("a")
        self.looks = 0
        self.signs = threading.Event()
        self.complete = True
        self.lookout = CachedScan(
            self._observe,
            files=lambda _: frozenset({path}),
            incomplete=lambda _: not self.complete,
            subscriptions=(),
            changed=self.signs.set,
        )

    def _observe(self, _changed: Collection[int] | None) -> list[str]:
        self.looks += 1
        return [self.path.read_text()]

    def settle(self) -> None:
        """The first look may have come before the file was watched, and is repeated."""
        self.lookout.scan()
        self.lookout.scan()
        assert not self.lookout.due

    def after_a_sign(self) -> list[str]:
        assert self.signs.wait(DEADLINE_S)
        self.signs.clear()
        return self.lookout.scan()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    made = Watched(tmp_path / "file")
    made.settle()
    return made


def test_no_scan_is_made_without_a_sign(watched: Watched) -> None:
    with watched.lookout as lookout:
        looks = watched.looks
        assert lookout.scan() is lookout.scan()
        assert watched.looks == looks


def test_look_follows_a_change(watched: Watched) -> None:
    with watched.lookout:
        watched.path.write_text("b")
        assert watched.after_a_sign() == ["b"]


def test_file_that_is_as_before_after_a_look_is_looked_at_again(watched: Watched) -> None:
    with watched.lookout as lookout:
        watched.path.write_text("b")
        assert lookout.scan(anew=True) == ["b"]
        watched.path.write_text("a")
        while watched.after_a_sign() != ["a"]:
            pass


def test_incomplete_scan_is_repeated(watched: Watched) -> None:
    with watched.lookout as lookout:
        watched.complete = False
        lookout.scan(anew=True)
        assert lookout.due
        watched.complete = True
        looks = watched.looks
        lookout.scan()
        assert (watched.looks, lookout.due) == (looks + 1, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make device nodes")
def test_node_is_another_by_its_numbers(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "file")
    node = tmp_path / "node"
    os.mknod(node, 0o20666, os.makedev(231, 192))
    lookout = CachedScan(
        lambda _: [node.stat().st_rdev],
        files=lambda _: frozenset({node}),
        incomplete=lambda _: False,
        subscriptions=(),
        changed=watched.signs.set,
    )
    with watched.lookout, lookout:
        lookout.scan()
        lookout.scan()
        node.unlink()
        os.mknod(node, 0o20666, os.makedev(231, 193))
        assert watched.signs.wait(DEADLINE_S)
        assert lookout.scan() == [os.makedev(231, 193)]
