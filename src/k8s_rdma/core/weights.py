"""Minimum rates that are the weights of a round robin, as mlx5 makes of them.

Source: Linux drivers/net/ethernet/mellanox/mlx5/core/esw/qos.c, 6.1 (`esw_qos_calculate_min_rate_divider`,
`esw_qos_calc_bw_share`). It is a deficit round robin: who sends gets at least its share of all
shares. From the source alone, not measured on such a card.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.inventory import Pf, Used

_NO_LIMIT = 1 << 62


def shares(mins: Sequence[int], max_weight: int) -> list[int]:
    """The share of each VF in a round, 1 to `max_weight`; all 0 where no VF has a minimum.

    mins: minimum rates of the VFs in use, Mb/s; once one has one, a VF with 0 has share 1.
    max_weight: the largest share there is (`RateAbility.weights`).
    """
    largest = max(mins, default=0)
    return [_share(rate, largest, max_weight) for rate in mins] if largest else [0] * len(mins)


def _share(rate: int, largest: int, max_weight: int) -> int:
    divider = max(1, largest // max_weight)
    return min(max_weight, max(1, -(-rate // divider)))


def effective_mins(mins: Sequence[int], link_mbps: int, max_weight: int) -> list[int]:
    """The bandwidth of each VF when all send as much as they can, Mb/s, rounded down.

    Where no VF has a minimum, all are served alike. Arguments as in `shares`.
    """
    weights = [share or 1 for share in shares(mins, max_weight)]
    total = sum(weights)
    return [link_mbps * weight // total for weight in weights]


def may_fall_short(pf: Pf, current: Used, added: Used, largest: int) -> bool:
    """Report whether some VF may get less than its minimum; False is certain.

    current: what is used of a PF whose rates are weights. added: at most so much more, of which no minimum is
        above `largest`.
    """
    mbps = current.mbps + min(added.mbps, added.in_use * largest)
    max_weight, largest = pf.rates.weights or 1, max(largest, *current.mins[:1], 1)
    rounded_up = mbps // max(1, largest // max_weight) + 1 + current.in_use + added.in_use
    return rounded_up > (pf.link_mbps or 0) * _share(largest, largest, max_weight) // largest


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
    """A PF before a request: minima of the VFs in use, falling, and how many have none."""

    link_mbps: int
    max_weight: int
    mins: tuple[int, ...]
    unreserved_vfs: int
    _numbers: Counter[int] = field(init=False, repr=False, compare=False)
    _loads: dict[int, Load] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Count equal minima, as they weigh the same."""
        object.__setattr__(self, "_numbers", Counter(self.mins))

    @classmethod
    def for_pf(cls, pf: Pf, used: Used) -> RoundRobin | None:
        """The PF's, None when its rates are no weights. ValueError when `used` does not tell its minima."""
        if pf.rates.weights is None:
            return None
        if sum(used.mins) != used.mbps:
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
        """The load of the VFs in use, if one of them or one that joins had this minimum."""
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
        """The load with one more VF. VFs join from the largest minimum to the smallest."""
        if rate > load.largest:
            load = self.load(rate)
        if not load.largest:
            return load
        share = _share(rate, load.largest, self.max_weight)
        limit = min(load.limit, self.link_mbps * share // rate) if rate else load.limit
        return Load(load.largest, load.total + share, limit)
