"""How it ended with each PF, and with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@unique
class Result(StrEnum):
    """What became of a PF.

    READY: as asked, and nothing was to be done. CHANGED: as asked now. KEPT: not as asked since its VFs are
    used; it works on with those it has. FAILED: not as asked. LEFT_OUT: not selected in the end. NOT_THERE: a
    rule names it, and there is no such PF.
    """

    READY = "no change"
    CHANGED = "changed"
    KEPT = "refused"
    FAILED = "failed"
    LEFT_OUT = "left out"
    NOT_THERE = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """asked: VFs, None for all. before, now: VFs it had and has; None where it cannot have any.

    said: what was done, or why not. advice: what to do; empty when there is nothing.
    """

    pf: str
    result: Result
    said: str
    advice: str = ""
    asked: int | None = None
    before: int | None = None
    now: int | None = None


def all_well(outcomes: Iterable[Outcome], *, keep_used_vfs: bool) -> bool:
    """Whether the process ended well."""
    bad = {Result.FAILED} if keep_used_vfs else {Result.FAILED, Result.KEPT}
    return all(outcome.result not in bad for outcome in outcomes)
