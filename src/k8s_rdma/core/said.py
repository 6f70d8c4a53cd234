"""One thing said in as much detail as is wanted."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


@unique
class Detail(StrEnum):
    """How much a refusal tells of the node that refuses; nodes whose texts are equal are shown as one.

    NUMBERS: what is free of it. CAUSE: what is missing, but no number of its own.
    """

    NUMBERS = "numbers"
    CAUSE = "cause"


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
