"""Standard output of commands: if it cannot be written, one line on standard error and exit status 2.

The status is not 1, because that is an answer of some commands; for example, `whatif` exits with 1 if pods do
not fit. An unwritten answer, for example on a full disk or a closed pipe, is not such an answer.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from k8s_rdma.errors import K8sRdmaError, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

COULD_NOT = 2
"""The exit status of a command that could not do its work; 1 is for answers that are no."""

_STDOUT = 1


class UnwritableOutputError(Exception):
    """Standard output cannot be written. Not an OSError, because commands take that for another file's."""


class _Output(io.RawIOBase):
    """Writes to standard output; stops after a failure, so that the interpreter's end is silent."""

    def __init__(self) -> None:
        self._has_failed = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor, by which the size of a terminal is known."""
        return _STDOUT

    def isatty(self) -> bool:
        """Report whether it is a terminal."""
        return os.isatty(_STDOUT)

    def write(self, data: Any) -> int:
        """Write; UnwritableOutputError if that fails."""
        if self._has_failed:
            return len(data)
        try:
            return os.write(_STDOUT, data)
        except OSError as error:
            self._has_failed = True
            raise UnwritableOutputError(error.strerror or errno.errorcode.get(error.errno or 0)) from error


@contextmanager
def guarded_output() -> Iterator[None]:
    """Exit with status 2, after one line, if the output of the block cannot be written."""
    stdout = sys.stdout
    encoding, errors = getattr(stdout, "encoding", None) or "utf-8", getattr(stdout, "errors", None)
    is_unbuffered = bool(getattr(stdout, "write_through", False))  # by PYTHONUNBUFFERED
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output()), encoding, errors, line_buffering=is_unbuffered or os.isatty(_STDOUT)
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except UnwritableOutputError as error:
        sys.stderr.write(f"k8s-rdma: standard output cannot be written: {error}\n")
        sys.exit(COULD_NOT)


@contextmanager
def reported_failures() -> Iterator[None]:
    """Exit with status 2 if the work within fails with a K8sRdmaError, after a line with its message."""
    try:
        yield
    except K8sRdmaError as error:
        details = "".join(f"\n  {visible(line)}" for line in error.details.splitlines())
        sys.stderr.write(f"k8s-rdma: {visible(error.message)}{details}\n")
        sys.exit(COULD_NOT)
