"""What it means for VFs that somebody has told devlink of their rates, which the system itself never does.

With the drivers of the table rates are set through the PF's netdev, in switchdev mode as well
(`linux.drivers`). mlx5 keeps one value of each rate, whoever set it last; what devlink set for ice, devlink
alone tells. A VF in a group shares with the others there what the group gets of the link, so that a minimum
rate is no promise to it, and neither to a VF beside the group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.rates import RateAbility
    from k8s_rdma.linux.discovery.queries import DevlinkRate
    from k8s_rdma.linux.discovery.vf_settings import VfSettings

OWN_GROUPS = frozenset({"ice"})
"""Drivers that show their scheduler as groups, each VF in one, without anybody's doing
(`ice_devlink_rate_init_tx_topology`, drivers/net/ethernet/intel/ice/devlink/devlink.c, Linux 6.12)."""


def group_of(driver: str, rate: DevlinkRate) -> str:
    """The group that somebody has put a VF in, or given rates; empty for none."""
    return rate.group if rate.group_rated or driver not in OWN_GROUPS else ""


def with_devlink(
    driver: str, settings: Mapping[int, VfSettings], rates: Mapping[int, DevlinkRate]
) -> Mapping[int, VfSettings]:
    """The settings of a PF's VFs, with what devlink has of them.

    Of two minima the larger is taken to hold, of two maxima the smaller.
    """
    return {
        index: _with_rate(driver, told, rates[index]) if index in rates else told
        for index, told in settings.items()
    }


def without_promises(
    driver: str, ability: RateAbility, rates: Mapping[int, DevlinkRate]
) -> tuple[RateAbility, str]:
    """What a PF takes of rates beside groups of VFs, and why that is less, in one clause, or empty."""
    grouped = {index: group for index, rate in rates.items() if (group := group_of(driver, rate))}
    if not grouped:
        return ability, ""
    vfs, groups = ", ".join(map(str, sorted(grouped))), ", ".join(sorted(set(grouped.values())))
    why = f"its VFs {vfs} are in groups of devlink rates ({groups}), beside which no minimum rate holds"
    return replace(ability, min=None, weights=None), why


def _with_rate(driver: str, told: VfSettings, rate: DevlinkRate) -> VfSettings:
    maxima = {told.max_tx_rate_mbps, rate.max_tx_rate_mbps} - {0}
    return replace(
        told,
        min_tx_rate_mbps=max(told.min_tx_rate_mbps, rate.min_tx_rate_mbps),
        max_tx_rate_mbps=min(maxima, default=0),
        by_devlink=_words(rate, group_of(driver, rate)),
    )


def _words(rate: DevlinkRate, group: str) -> str:
    found = [
        f"tx_share {rate.min_tx_rate_mbps} Mb/s" if rate.min_tx_rate_mbps else "",
        f"tx_max {rate.max_tx_rate_mbps} Mb/s" if rate.max_tx_rate_mbps else "",
        f"group {group}" if group else "",
    ]
    if not any(found):
        return ""
    what = ", ".join(filter(None, found))
    return f"its rates are set by devlink ({what}); `devlink port function rate set` takes them back"
