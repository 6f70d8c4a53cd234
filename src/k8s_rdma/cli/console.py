"""Output of commands: tables with colours on a terminal, plain columns elsewhere.

Arguments that several commands have.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from k8s_rdma.cli.tables import WHOLE, Paragraph
from k8s_rdma.errors import K8sRdmaError, visible

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T = TypeVar("T")


class Page(Console):
    """Standard output. Words are never folded: a word that is too long for a line extends beyond the edge.

    markup: whether `[red]` in a text is a style.
    wide: whether every column is shown, and unwrapped, as on a pipe.
    """

    def __init__(self, *, markup: bool = True, wide: bool = False) -> None:
        width = None if sys.stdout.isatty() and not wide else WHOLE
        super().__init__(highlight=False, markup=markup, width=width)

    @property
    def is_whole(self) -> bool:
        """Report whether every column is shown, and unwrapped."""
        return self.width >= WHOLE

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console.print`, but wrap texts only between words, or with `no_wrap` not at all.

        Texts are not cut.
        """
        parts = objects
        if not options.get("no_wrap"):
            parts = tuple(self._paragraph(part) if isinstance(part, str | Text) else part for part in objects)
        super().print(*parts, **{"crop": False, **options})

    def print_notes(self, notes: Iterable[str]) -> None:
        """Print remarks on the parts that an answer lacks; they are no markup."""
        for note in notes:
            self.print(Text(f"note: {note}"))

    def _paragraph(self, text: str | Text) -> Paragraph:
        if isinstance(text, str):
            text = Text.from_markup(text) if self._markup else Text(text)
        return Paragraph(text)


def for_terminal(document: T) -> T:
    """Make every text in a document `visible`, because nodes and pods' owners wrote some of it."""
    return msgspec.convert(_visible(msgspec.to_builtins(document)), type(document))


def _visible(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case dict():
            return {visible(key): _visible(item) for key, item in value.items()}
        case list() | tuple():
            return [_visible(item) for item in value]
    return value


def write_json(document: bytes) -> None:
    """Print a JSON document, the same for every parser; JSON escapes characters that are not `visible`."""
    lines = (
        "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in line)
        for line in document.decode().split("\n")
    )
    sys.stdout.write("\n".join(lines))


def require_writable(file: Path | None, option: str) -> None:
    """Raise K8sRdmaError if an option's file cannot be written, before the work for its result begins."""
    if file is None:
        return
    if file.is_dir():
        reason = errno.EISDIR
    elif not file.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise K8sRdmaError(f"{option} {file}: {os.strerror(reason)}")


def line(text: str | Text) -> Text:
    """Make a text of one line, cut to the terminal's width."""
    result = Text(text) if isinstance(text, str) else text
    result.no_wrap, result.overflow = True, "ellipsis"
    return result


def seconds(since_s: float | None) -> str:
    """Format a time span in two digits or three: `3s`, `12m`, `5h`, `9d`."""
    if since_s is None:
        return "never"
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if since_s >= 2 * length:
            return f"{since_s / length:.0f}{unit}"
    return f"{since_s:.0f}s"
