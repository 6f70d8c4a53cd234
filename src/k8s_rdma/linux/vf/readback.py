"""Settings of a PF's VFs written where they differ, and read back by one query of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S = TypeVar("S")
W = TypeVar("W")

_ROUNDS = 2
"""The second is for what somebody else has changed since it was last seen."""


def written(
    seen: S,
    *,
    differing: Callable[[S], Sequence[W]],
    write: Callable[[Sequence[W]], None],
    read: Callable[[], S],
) -> S:
    """Write what differs and read it back; returns what was read last, which may differ still.

    seen: as last looked at. read: holds the kernel's RTNL lock 1-2 ms a VF; called once when all still is as
    it was seen, and the driver does as it is told.
    """
    for _ in range(_ROUNDS):
        wanted = differing(seen)
        if wanted:
            write(wanted)
        seen = read()
        if not differing(seen):
            break
    return seen
