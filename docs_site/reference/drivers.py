"""The tables of docs/drivers.md: the settings that each driver takes, from its row.

The page itself says in words which minimum and which maximum a driver takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docs_site.reference.tables import code, rows_by_name, section, table
from k8s_rdma.core.types import Setting
from k8s_rdma.linux.drivers import DRIVERS, IGB_82576, ability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.core.rate_ability import RateAbility

_SETTINGS = (
    Setting.VLAN,
    Setting.QOS,
    Setting.MAC,
    Setting.TRUST,
    Setting.SPOOF_CHECK,
    Setting.LINK_STATE,
)
_MINIMUM, _MAXIMUM = 2, 3
_HEAD = (
    "driver",
    "cards",
    "minimum",
    "maximum",
    "the sum of minima",
    "link must be up",
    "source",
    "Linux",
)


def drivers_table(page: str) -> str:
    """Return the drivers with their cards and sources; a driver without words in the page has empty ones."""
    words = dict(rows_by_name(section(page, "The drivers")))
    rows = [
        [
            code(name),
            row.cards,
            *_words(words.get(name)),
            *_conditions(_ability(name)),
            _files(row.rates_source),
            row.linux,
        ]
        for name, row in DRIVERS.items()
    ]
    ipoib = code("drivers/infiniband/ulp/ipoib/ipoib_main.c")
    rows += [
        ["any, on an InfiniBand link", "", "none", "none", "", "", ipoib, "6.1"],
        ["any other", "", "none", "none", "", "", "", ""],
    ]
    return table(_HEAD, rows)


def settings_table(_page: str) -> str:
    """Return the settings beside rates."""
    rows = [
        [
            code(name),
            *("yes" if setting in row.settings else "no" for setting in _SETTINGS),
            _files(row.settings_source),
        ]
        for name, row in DRIVERS.items()
    ]
    return table(("driver", *map(code, _SETTINGS), "source"), rows)


def _words(cells: list[str] | None) -> Iterable[str]:
    return ("", "") if cells is None else (cells[_MINIMUM], cells[_MAXIMUM])


def _ability(driver: str) -> RateAbility:
    return ability(driver=driver, link_mbps=None, vendor=min(IGB_82576), vst=True)


def _conditions(rates: RateAbility) -> tuple[str, str]:
    """Return whether the sum of minima is checked, and whether rates need the link; empty without rates."""
    summed = "must fit the present link" if rates.sum_checked else "not checked"
    link = "yes" if rates.needs_link else "no"
    return summed if rates.min else "", link if rates.min or rates.max else ""


def _files(source: str) -> str:
    return ", ".join(map(code, source.split(", ")))
