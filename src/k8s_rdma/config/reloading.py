"""Files that are read again when they change, such as certificates and tokens."""

from __future__ import annotations

from stat import S_ISDIR
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
)

import structlog

from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Identity: TypeAlias = tuple[object, ...] | None

EVERY_S = 1.0
"""The files are looked at no more often than this."""

T = TypeVar("T")

_log = structlog.get_logger()


class Reloaded(Generic[T]):
    """The present value; while the files are faulty (for example half renewed), their last valid one.

    failure: the fault of the present files; empty if they are valid.
    """

    failure: str = ""

    def __init__(self, load: Callable[[], T], *paths: Path, clock: Callable[[], float] = monotonic) -> None:
        """MalformedError as `load` raises it, the first time. paths: files, and directories of files."""
        self._load = load
        self._paths = paths
        self._clock = clock
        self._checked_at_s = clock()
        self._loaded_identities = self._identities()
        self._value = load()

    def __call__(self) -> T:
        """Return the current value."""
        now = self._clock()
        if now - self._checked_at_s >= EVERY_S:
            self._checked_at_s = now
            self._look_again()
        return self._value

    def _look_again(self) -> None:
        identities = self._identities()
        if identities == self._loaded_identities:
            return
        self._loaded_identities = identities
        try:
            self._value = self._load()
        except MalformedError as error:
            self.failure = error.message
            _log.error("not_reloaded", error=error.message)
        else:
            self.failure = ""
            _log.info("reloaded", files=[str(path) for path in self._paths])

    def _identities(self) -> list[Identity]:
        return [_identity(path) for path in self._paths]


class Renewable(Protocol):
    """A value whose files may be renewed, such as `Reloaded`."""

    @property
    def failure(self) -> str:
        """The reason why the present files are unusable; empty while they are usable."""
        ...

    def __call__(self) -> object:
        """Return the current value."""
        ...


def failures_of(*values: Renewable) -> tuple[str, ...]:
    """Return the reasons why files' present content is not in force; reads the files."""
    for value in values:
        value()
    return tuple(value.failure for value in values if value.failure)


def files_of(directory: Path) -> list[Path]:
    """Return the directory's files by name, without hidden ones such as kubelet's `..data`. OSError."""
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _identity(path: Path) -> Identity:
    """Return the identity of a file, or of a directory's files, if it exists; each write changes it."""
    try:
        stat = path.stat()
        if S_ISDIR(stat.st_mode):
            return tuple((file.name, _identity(file)) for file in files_of(path))
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
