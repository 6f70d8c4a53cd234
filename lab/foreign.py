"""Programs of an unpacked tree of packages, run on this machine with that tree's own libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TRIPLET = "x86_64-linux-gnu"


def command(tree: Path, program: str, *arguments: str, name: str | None = None) -> list[str]:
    """Return the command line. program: its path inside the tree; name: the name that it sees as its own."""
    libraries = f"{tree}/lib/{_TRIPLET}:{tree}/usr/lib/{_TRIPLET}"
    loader = f"{tree}/lib/{_TRIPLET}/ld-linux-x86-64.so.2"
    named = ["--argv0", name] if name else []
    return [loader, *named, "--library-path", libraries, f"{tree}{program}", *arguments]
