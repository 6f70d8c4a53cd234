"""Sysfs under a root of choice. Source: sysfs(5), Linux `fs/sysfs/file.c`, `fs/kernfs`.

Five methods touch files: `read`, `names`, `target`, `resolved` and `write`; all others are made of these, so
that a subclass with other five is another machine, or one that notes what was asked for.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def error_name(number: int) -> str:
    """As errno(3) has it, or the number; of the two for EOPNOTSUPP the one that the kernel's sources use."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


_WITHOUT_VALUE = frozenset({errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EISDIR})
_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})


def is_absent(error: OSError) -> bool:
    """Report whether it says that a file, or the device that it was of, is not there (any more)."""
    return error.errno in _ABSENT


class Sysfs:
    """Files by their path below `/sys`, without that: `class/net/eth0/speed`.

    Every failure is an OSError with the kernel's errno; `is_gone` tells what vanished from what may not be
    looked at. A file that refuses to be read for want of a value (EINVAL, EIO, EOPNOTSUPP; EISDIR, which is
    how a copied tree shows such a file) has none, which is not an error: `value` is then None.
    """

    def __init__(self, root: Path | str = "/sys") -> None:
        """`root` is where sysfs is mounted, or a copy of it."""
        self._root = os.path.realpath(root)

    def read(self, path: str) -> str:
        """A file's text, whole; bytes that are no UTF-8, as devices' names may hold, as in names of files."""
        # Unbuffered and unchecked by pathlib: an observation reads thousands of these.
        with open(f"{self._root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        return os.listdir(f"{self._root}/{path}")  # noqa: PTH208

    def target(self, path: str) -> str:
        """The last part of where a symbolic link leads; sysfs names devices and drivers by it."""
        return os.readlink(f"{self._root}/{path}").rpartition("/")[2]  # noqa: PTH115

    def resolved(self, path: str) -> str:
        """The path without symbolic links, again below the root."""
        return os.path.realpath(f"{self._root}/{path}", strict=True).removeprefix(f"{self._root}/")

    def write(self, path: str, text: str) -> None:
        """Write to a file that exists, in one call, as the kernel wants it."""
        descriptor = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def value(self, path: str) -> str | None:
        """A file's text without white space around it; None when it has no value."""
        try:
            return self.read(path).strip()
        except OSError as error:
            if error.errno in _WITHOUT_VALUE:
                return None
            raise

    def value_if_any(self, path: str) -> str | None:
        """As `value`, and None also when there is no such file."""
        try:
            return self.value(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def number(self, path: str) -> int | None:
        """A file's number, decimal or `0x`; None when it has no value. OSError (EBADMSG) for other text."""
        return _number(path, self.value(path))

    def number_if_any(self, path: str) -> int | None:
        """As `number`, and None also when there is no such file."""
        return _number(path, self.value_if_any(path))

    def names_if_any(self, path: str) -> list[str] | None:
        """As `names`; None, and not an empty list, when there is no such directory."""
        try:
            return self.names(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def target_if_any(self, path: str) -> str | None:
        """As `target`; None when there is no such link."""
        try:
            return self.target(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise


def _number(path: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise OSError(errno.EBADMSG, f"not a number: {text!r}", path) from None
