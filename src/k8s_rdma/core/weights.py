"""Minimum rates that are the weights of a scheduler, as mlx5 makes of them.

Source: Linux drivers/net/ethernet/mellanox/mlx5/core/esw/qos.c, 6.1 (`esw_qos_calculate_min_rate_divider`,
`esw_qos_calc_bw_share`). The scheduler is a deficit round robin: who sends gets at least its share of all
shares. From the source alone, not measured on such a card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def shares(mins: Sequence[int], most: int) -> list[int]:
    """Each VF's share of the scheduler, 1 to `most`; all 0 where no VF has a minimum.

    mins: minimum rates of the VFs in use, Mb/s; once one has one, a VF with 0 has share 1.
    most: the largest share there is (`RateAbility.weights`).
    """
    largest = max(mins, default=0)
    if not largest:
        return [0] * len(mins)
    divider = max(1, largest // most)
    return [min(most, max(1, -(-rate // divider))) for rate in mins]


def effective_mins(mins: Sequence[int], link_mbps: int, most: int) -> list[int]:
    """What each VF gets at least when all send as much as they can, Mb/s, rounded down.

    Where no VF has a minimum, all are served alike. Arguments as in `shares`.
    """
    weights = [share or 1 for share in shares(mins, most)]
    total = sum(weights)
    return [link_mbps * weight // total for weight in weights]
