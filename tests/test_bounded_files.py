"""Files that have no end, and entries that are no files."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.bounded_files import (
    read_end_of_file,
    read_found_file,
    read_named_file,
    read_named_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READERS: tuple[Callable[[Path], object], ...] = (
    read_found_file,
    lambda path: read_end_of_file(path, 10),
)


@pytest.mark.parametrize("reader", READERS)
def test_entry_of_a_directory_that_is_no_file_is_refused_at_once(tmp_path: Path, reader):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    for name, number in (("fifo", errno.EINVAL), ("zero", errno.EINVAL), ("directory", errno.EISDIR)):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - by its number
            reader(tmp_path / name)
        assert (refused.value.errno, refused.value.filename) == (number, str(tmp_path / name))


@pytest.mark.parametrize("reader", [read_named_file, read_named_text])
def test_named_file_may_be_a_pipe_and_ends_with_the_limit(tmp_path: Path, reader):
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=(tmp_path / "fifo").write_text, args=("text",))
    writer.start()
    assert reader(tmp_path / "fifo") in (b"text", "text")
    writer.join()
    with pytest.raises(OSError, match="larger than 1024 bytes"):
        reader("/dev/zero", 1024)
    assert not reader("/dev/null")


def test_limit_is_of_the_bytes_that_are_there(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"0123456789")
    assert read_found_file(tmp_path / "f", 10) == b"0123456789"
    assert read_end_of_file(tmp_path / "f", 4) == b"6789"
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_found_file(tmp_path / "f", 9)


def test_text_is_utf_8(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(OSError, match="not UTF-8") as refused:
        read_named_text(tmp_path / "f")
    assert refused.value.errno == errno.EILSEQ
