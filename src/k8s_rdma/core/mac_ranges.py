"""Sets of MACs and GUIDs, as sorted ranges."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class MacRanges:
    """MACs as numbers, in ranges that do not meet: their first ones rising, and the last one of each.

    Sixteen bytes a range: an extender has those of thousands of nodes.
    """

    firsts: array[int]
    lasts: array[int]

    @classmethod
    def merge(cls, ranges: Iterable[tuple[int, int]]) -> MacRanges:
        """Make ranges of pairs of first and last, in any order; adjacent ones are joined."""
        firsts, lasts = array("Q"), array("Q")
        end = -2
        for first, last in sorted(ranges):
            if first > end + 1:
                firsts.append(first)
                lasts.append(last)
                end = last
            elif last > end:
                lasts[-1] = end = last
        return cls(firsts, lasts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last of each."""
        return zip(self.firsts, self.lasts, strict=True)

    def first_index_in(self, macs: Sequence[int]) -> int | None:
        """Return the first of these rising numbers that is in a range, if one is."""
        if not (self.firsts and macs) or macs[-1] < self.firsts[0] or macs[0] > self.lasts[-1]:
            return None
        if len(macs) > len(self.firsts):
            for first, last in self:
                index = bisect_left(macs, first)
                if index < len(macs) and macs[index] <= last:
                    return macs[index]
            return None
        for mac in macs:
            index = bisect_right(self.firsts, mac) - 1
            if index >= 0 and mac <= self.lasts[index]:
                return mac
        return None


NO_MACS = MacRanges.merge(())
