"""Minimum rates by weights: the bandwidth that a round robin of whole numbers keeps.

mlx5 makes weights of a round robin of minimum rates. Source: Linux
drivers/net/ethernet/mellanox/mlx5/core/esw/qos.c, 6.1 (`esw_qos_calculate_min_rate_divider`,
`esw_qos_calc_bw_share`). It is a deficit round robin: who sends gets at least its share of all shares. From
the source alone, not measured on such a card.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.pf_use import Used


_NO_LIMIT = 1 << 62


def shares(mins: Sequence[int], max_weight: int) -> list[int]:
    """Return the share of each VF in a round, 1 to `max_weight`; all 0 if no VF has a minimum.

    mins: minimum rates of the VFs in use, Mb/s; once one has one, a VF with 0 has share 1.
    max_weight: the largest share there is (`RateAbility.weights`).
    """
    largest = max(mins, default=0)
    return [_share(rate, largest, max_weight) for rate in mins] if largest else [0] * len(mins)


def _share(rate: int, largest: int, max_weight: int) -> int:
    divider = max(1, largest // max_weight)
    return min(max_weight, max(1, -(-rate // divider)))


def effective_mins(mins: Sequence[int], link_mbps: int, max_weight: int) -> list[int]:
    """Return the bandwidth of each VF when all send as much as they can, Mb/s, rounded down.

    If no VF has a minimum, all are served alike. The parameters are those of `shares`.
    """
    weights = [share or 1 for share in shares(mins, max_weight)]
    total = sum(weights)
    return [link_mbps * weight // total for weight in weights]


def may_fall_short(pf: Pf, current: Used, added: Used, largest: int) -> bool:
    """Report whether some VF may get less than its minimum; False is certain.

    current: the use of a PF whose rates are weights.
    added: the most that may be added, in minimums of at most `largest` each.
    """
    mbps = current.mbps + min(added.mbps, added.in_use * largest)
    max_weight, largest = pf.rates.weights or 1, max(largest, *current.mins[:1], 1)
    rounded_up = mbps // max(1, largest // max_weight) + 1 + current.in_use + added.in_use
    return rounded_up > (pf.link_mbps or 0) * _share(largest, largest, max_weight) // largest


@lru_cache(maxsize=64)
def certain_mbps(link_mbps: int, max_weight: int, vfs: int, least_mbps: int) -> int:
    """Return the largest sum of minimums, Mb/s, that every division of it between VFs can keep.

    vfs: how many VFs may have minimums, each of `least_mbps` or more. The other parameters are those of
        `shares`.
    """

    def may_exceed(divider: int, total: int) -> bool:
        """Report whether minimums of this sum, the largest with this divider, may be too many shares for it.

        If the largest gets its minimum, all others do; below `max_weight` shares are the minimums.
        """
        first, last = max(least_mbps, divider * max_weight), min(total, (divider + 1) * max_weight - 1)
        if last < first:
            return False
        other_vfs = min(vfs - 1, (total - first) // least_mbps)
        rounded_up = (total - first + other_vfs * (divider - 1)) // divider
        return max_weight + min(other_vfs * max_weight, rounded_up) > link_mbps * max_weight // last

    certain = link_mbps
    for divider in range(1, link_mbps // max_weight + 1):
        if may_exceed(divider, certain):
            certain = bisect_left(range(certain), True, key=partial(may_exceed, divider)) - 1
    return certain


class Weighing(NamedTuple):
    """The VFs that may surely join on a PF whose rates are weights, by sums alone.

    The shares of all VFs add up to less than the sum of the minimums by `divider`, because each is rounded up
    by less than one. With the largest minimum's limit or less of them, every VF gets its own.

    mbps, largest: the sum of the minimums, Mb/s, and the largest.
    in_use: the VFs that share the link.
    spare_mbps: the amount that VFs with minimums up to that may add, each as much as its minimum and the
        divider.
    """

    link_mbps: int
    max_weight: int
    mbps: int
    in_use: int
    largest: int
    divider: int
    spare_mbps: int

    @classmethod
    def for_pf(cls, pf: Pf, used: Used) -> Weighing | None:
        """Return the weighing of a PF if its rates are weights. ValueError as `RoundRobin.for_pf`."""
        round_robin = RoundRobin.for_pf(pf, used)
        if round_robin is None:
            return None
        in_use = len(round_robin.mins) + round_robin.unreserved_vfs
        empty = cls(round_robin.link_mbps, round_robin.max_weight, used.mbps, in_use, 0, 1, _NO_LIMIT)
        return empty._with_largest(max(round_robin.mins, default=0))

    def count(self, rate: int) -> int:
        """Count the VFs of this minimum that may surely join."""
        weighing = self if rate <= self.largest else self._with_largest(rate)
        return max(0, weighing.spare_mbps // (rate + weighing.divider))

    def _with_largest(self, largest: int) -> Weighing:
        if not largest:
            return self
        divider = max(1, largest // self.max_weight)
        limit = self.link_mbps * _share(largest, largest, self.max_weight) // largest
        spare_mbps = (limit - self.in_use) * divider - self.mbps
        return self._replace(largest=largest, divider=divider, spare_mbps=spare_mbps)


class Load(NamedTuple):
    """The load of the VFs in use: their largest minimum, the sum of their shares, and its limit.

    limit: with more shares together than this, some VF gets less than its minimum.
    """

    largest: int
    total: int
    limit: int

    @property
    def is_within_limit(self) -> bool:
        """Report whether every VF gets its minimum."""
        return self.total <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """A PF before a request: minima of the VFs in use, falling, and the number of VFs without a minimum."""

    link_mbps: int
    max_weight: int
    mins: tuple[int, ...]
    unreserved_vfs: int
    _numbers: Counter[int] = field(init=False, repr=False, compare=False)
    _loads: dict[int, Load] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Count equal minima, because they weigh the same."""
        object.__setattr__(self, "_numbers", Counter(self.mins))

    @classmethod
    def for_pf(cls, pf: Pf, used: Used) -> RoundRobin | None:
        """Return the state of a PF if its rates are weights. ValueError if `used` lacks its minima."""
        if pf.rates.weights is None:
            return None
        if sum(used.mins) != used.mbps - used.set_aside_mbps:
            msg = f"PF {pf.name}: {used.mbps} Mb/s are reserved, its minimum rates are {used.mins}"
            raise ValueError(msg)
        unreserved = max(0, used.in_use - len(used.mins))
        return cls(
            link_mbps=pf.link_mbps or 0,
            max_weight=pf.rates.weights,
            mins=used.mins,
            unreserved_vfs=unreserved,
        )

    def load(self, largest: int = 0) -> Load:
        """Return the load of the VFs in use, if one of them or one that joins had this minimum."""
        if self.mins:
            largest = max(largest, self.mins[0])
        found = self._loads.get(largest)
        if found is None:
            found = self._loads[largest] = self._load(largest)
        return found

    def _load(self, largest: int) -> Load:
        if not largest:
            return Load(0, 0, _NO_LIMIT)
        total, limit = self.unreserved_vfs, _NO_LIMIT
        for rate, number in self._numbers.items():
            share = _share(rate, largest, self.max_weight)
            total += number * share
            limit = min(limit, self.link_mbps * share // rate)
        return Load(largest, total, limit)

    def join(self, load: Load, rate: int) -> Load:
        """Return the load with one more VF. VFs join from the largest minimum to the smallest."""
        if rate > load.largest:
            load = self.load(rate)
        if not load.largest:
            return load
        share = _share(rate, load.largest, self.max_weight)
        limit = min(load.limit, self.link_mbps * share // rate) if rate else load.limit
        return Load(load.largest, load.total + share, limit)


def keeps_minimums(pf: Pf, used: Used) -> bool:
    """Report whether every VF gets its minimum; true if the PF's rates are no weights.

    ValueError as `RoundRobin.for_pf`.
    """
    round_robin = RoundRobin.for_pf(pf, used)
    return round_robin is None or round_robin.load().is_within_limit
