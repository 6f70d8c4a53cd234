"""One thing said in as much detail as is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Said(NamedTuple):
    """full: with the names of PFs. numbers: with a node's numbers, equal for nodes of which these are.

    cause: with neither, so that nodes which refuse a request for one cause say the same.
    """

    full: str
    numbers: str
    cause: str

    @classmethod
    def nameless(cls, numbers: str, cause: str) -> Said:
        """What names no PF."""
        return cls(numbers, numbers, cause)

    @classmethod
    def joined(cls, said: Sequence[Said]) -> Said:
        """One clause after the other."""
        return said[0] if len(said) == 1 else cls(*map("; ".join, zip(*said, strict=True)))
