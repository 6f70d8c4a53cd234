from __future__ import annotations

import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.linux.changes import Deletions, DirectoryChanges

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def deletions() -> Iterator[Deletions]:
    with Deletions() as opened:
        yield opened


def told(watch: Deletions | DirectoryChanges) -> bool:
    return bool(select.select([watch], [], [], 0)[0])


def test_deleted_and_moved_files_of_watched_directories_are_reported_once(
    tmp_path: Path, deletions: Deletions
) -> None:
    one, other, unwatched = (tmp_path / name for name in ("one", "other", "unwatched"))
    for directory in (one, other, unwatched):
        directory.mkdir()
        for name in ("a", "b"):
            (directory / name).touch()
    assert deletions.watch([one, other])
    assert not deletions.watch([one, other])
    assert not told(deletions)
    (one / "a").unlink()
    (other / "b").rename(unwatched / "c")
    (unwatched / "a").unlink()
    (one / "new").touch()
    assert told(deletions)
    assert deletions.drain() == {one / "a", other / "b"}
    assert not told(deletions)
    assert deletions.drain() == frozenset()


@pytest.mark.parametrize("end", ["removed", "moved"])
def test_end_of_a_directory_requires_a_look_and_it_can_be_watched_again(
    tmp_path: Path, deletions: Deletions, end: str
) -> None:
    directory = tmp_path / "netns"
    directory.mkdir()
    deletions.watch([directory])
    if end == "removed":
        directory.rmdir()
    else:
        directory.rename(tmp_path / "elsewhere")
    assert deletions.drain() is None
    directory.mkdir()
    (directory / "a").touch()
    assert deletions.watch([directory])
    (directory / "a").unlink()
    assert deletions.drain() == {directory / "a"}


def test_directory_that_is_not_there_is_watched_when_it_is(tmp_path: Path, deletions: Deletions) -> None:
    directory = tmp_path / "netns"
    assert not deletions.watch([directory])
    directory.mkdir()
    assert deletions.watch([directory])


def test_directories_of_processes_that_ended_keep_no_watch(deletions: Deletions) -> None:
    """Some runtimes name a sandbox by `/proc/<pid>/ns/net`; root's watches are one number for the node."""
    for _ in range(5):
        with subprocess.Popen(["sleep", "60"]) as sandbox:
            assert deletions.watch([Path(f"/proc/{sandbox.pid}/ns")])
            sandbox.kill()
    deletions.watch([])
    assert deletions.drain() == frozenset()
    watches = Path(f"/proc/self/fdinfo/{deletions.fileno()}").read_text().count("inotify wd:")
    assert watches == 0


def test_more_deletions_than_the_kernel_keeps_tell_to_look(tmp_path: Path, deletions: Deletions) -> None:
    deletions.watch([tmp_path])
    for _ in range(20_000):  # fs.inotify.max_queued_events is 16384; two of the same in a row are merged
        for name in ("a", "b"):
            (tmp_path / name).touch()
        for name in ("a", "b"):
            (tmp_path / name).unlink()
    assert deletions.drain() is None


def test_changes_report_new_deleted_and_moved_files_and_a_directory_made_again(
    tmp_path: Path,
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    with DirectoryChanges() as changes:
        changes.watch([watched, tmp_path, tmp_path / "missing"])
        for stir in (
            (watched / "a").touch,
            lambda: (watched / "a").rename(tmp_path / "b"),
            lambda: (tmp_path / "b").rename(watched / "c"),
            (watched / "c").unlink,
            watched.rmdir,
            watched.mkdir,
        ):
            assert not told(changes)
            stir()
            assert told(changes)
            changes.forget()
        (watched / "in the new one").touch()
        assert not told(changes), "it is another directory"
        changes.watch([watched, tmp_path])
        (watched / "and now").touch()
        assert told(changes)


def test_changes_report_writes_in_place_if_requested(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with DirectoryChanges() as without, DirectoryChanges(contents=True) as changes:
        for each in (without, changes):
            each.watch([tmp_path])
        for stir in (lambda: (tmp_path / "file").write_text("x"), lambda: (tmp_path / "file").chmod(0o600)):
            stir()
            assert told(changes)
            changes.forget()
        assert not told(without)


NO_WATCHES = """
echo 0 > /proc/sys/user/max_inotify_watches || exit 77
exec "$0" -c '
import errno, pathlib, sys
from k8s_rdma.linux.changes import DirectoryChanges
with DirectoryChanges() as changes:
    changes.watch([pathlib.Path(sys.argv[1], "missing")])
    try:
        changes.watch([pathlib.Path(sys.argv[1])])
    except OSError as error:
        sys.exit(error.errno != errno.ENOSPC)
sys.exit(2)
' "$1"
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_watch_that_the_kernel_does_not_give_is_an_error_unlike_a_directory_that_is_not_there(
    tmp_path: Path,
) -> None:
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", NO_WATCHES, sys.executable, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"needs a user namespace with limits of its own: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
