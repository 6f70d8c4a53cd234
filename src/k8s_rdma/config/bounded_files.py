"""Reading of files that others write: with a limit of bytes, and without waiting for a writer.

A file that the user names may be a pipe, as in `--kubeconfig <(command)`, or `/dev/null`. An entry of a
directory may be anything that its writer has put there. For example, a pipe without a writer ends no read,
and a link to `/dev/zero` has no end. Source: open(2), fifo(7).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_CONFIG_BYTES = 16 << 20
"""The limit for a configuration file: Kubernetes' objects end at 1.5 MiB, and a kubeconfig may have many
certificates."""


def read_named_file(path: Path | str, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """Read a file that the user named, which may be a pipe. OSError for more than max_bytes."""
    with Path(path).open("rb") as file:
        return _bounded(file, path, max_bytes)


def read_found_file(path: Path | str, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """Read an entry of a directory. OSError for more than max_bytes, and if it is no regular file."""
    with _opened_found(path) as file:
        return _bounded(file, path, max_bytes)


def read_named_text(path: Path | str, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """Read UTF-8 as `read_named_file`. OSError for other bytes as well."""
    with Path(path).open("rb") as file:
        return read_stream_text(file, path, max_bytes)


def read_stream_text(stream: BinaryIO, name: Path | str, max_bytes: int) -> str:
    """Read UTF-8 to the end of a stream. OSError, with the name, for other bytes, and for more."""
    try:
        return _bounded(stream, name, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "not UTF-8", str(name)) from error


def read_end_of_file(path: Path | str, max_bytes: int) -> bytes:
    """Read the last bytes of a regular file. OSError if it is no regular file."""
    with _opened_found(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
        return file.read(max_bytes)


def _opened_found(path: Path | str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "no regular file", str(path))


def _bounded(file: BinaryIO, path: Path | str, max_bytes: int) -> bytes:
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return data
