"""Sysfs under a root of choice. Source: sysfs(5), Linux `fs/sysfs/file.c`, `fs/kernfs`.

Five methods access files: `read`, `names`, `target`, `resolved` and `write`; all others use these. A subclass
that replaces the five is another machine, or one that records every access.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_WITHOUT_VALUE = frozenset({errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EISDIR})
_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})


class Sysfs:
    """Access to files by their path below `/sys`, such as `class/net/eth0/speed`.

    Every failure is an OSError with the kernel's errno; `is_absent` distinguishes a missing file from a
    forbidden one. A file that refuses to be read because it has no value (EINVAL, EIO, EOPNOTSUPP; EISDIR,
    which is how a copied tree shows such a file) is not an error: `value` is then None.
    """

    def __init__(self, root: Path | str = "/sys") -> None:
        """Read below `root`, where sysfs or a copy of it is mounted."""
        self._root = os.path.realpath(root)

    def read(self, path: str) -> str:
        """Return a file's text, whole; invalid UTF-8, possible in devices' names, as surrogate escapes."""
        # Unbuffered and unchecked by pathlib: an observation reads thousands of these.
        with open(f"{self._root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in no order."""
        return os.listdir(f"{self._root}/{path}")  # noqa: PTH208

    def target(self, path: str) -> str:
        """Return the last part of a symbolic link's target, by which sysfs names devices and drivers."""
        return os.readlink(f"{self._root}/{path}").rpartition("/")[2]  # noqa: PTH115

    def resolved(self, path: str) -> str:
        """Return the path without symbolic links, relative to the root."""
        return os.path.realpath(f"{self._root}/{path}", strict=True).removeprefix(f"{self._root}/")

    def write(self, path: str, text: str) -> None:
        """Write to an existing file in one call, as the kernel requires."""
        descriptor = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def value(self, path: str) -> str | None:
        """Return a file's text without surrounding white space; None when it has no value."""
        try:
            return self.read(path).strip()
        except OSError as error:
            if error.errno in _WITHOUT_VALUE:
                return None
            raise

    def value_if_any(self, path: str) -> str | None:
        """Return `value`, or None when there is no such file."""
        try:
            return self.value(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def number(self, path: str) -> int | None:
        """Return a file's number, decimal or `0x`; None when it has no value.

        OSError (EBADMSG) for other text.
        """
        return _number(path, self.value(path))

    def number_if_any(self, path: str) -> int | None:
        """Return `number`, or None when there is no such file."""
        return _number(path, self.value_if_any(path))

    def names_if_any(self, path: str) -> list[str] | None:
        """Return `names`, or None, not an empty list, when there is no such directory."""
        try:
            return self.names(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def target_if_any(self, path: str) -> str | None:
        """Return `target`, or None when there is no such link."""
        try:
            return self.target(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise


def is_absent(error: OSError) -> bool:
    """Report whether the error means that a file, or its device, does not exist (any more)."""
    return error.errno in _ABSENT


def error_name(number: int) -> str:
    """Return an error's name as in errno(3), or the number; EOPNOTSUPP, as in the kernel, not ENOTSUP."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def _number(path: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise OSError(errno.EBADMSG, f"not a number: {text!r}", path) from None
