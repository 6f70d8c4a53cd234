"""Files that are replaced as a whole: a reader finds the former content or the next one."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path, PurePath

    AnyPath = TypeVar("AnyPath", bound=PurePath)

MAX_NAME_BYTES = 255
"""The longest file name on Linux' file systems (`NAME_MAX`)."""


def draft_of(path: AnyPath) -> AnyPath:
    """Name the draft of a file, which a crash may leave beside it."""
    return path.with_name(f".{os.fsdecode(os.fsencode(path.name)[: MAX_NAME_BYTES - 5])}.new")


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically: by a draft beside it, which no link can lead elsewhere, and a rename.

    Not synced to the disk. OSError when it cannot be written; then the file is as it was.
    """
    draft = draft_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
