"""What is programmed on a VF for an interface's rates, what it costs the PF's link, and who then holds them.

A reservation is rounded up to what the driver takes and a cap down. What the driver does not take at all
is not programmed: the sums of reservations are accounted all the same. Where nothing but the hardware will
do (`Enforce.HARDWARE`, of the PF or of the interface) the PF does not take the interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.rates import EVERY_RATE, Enforce

if TYPE_CHECKING:
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.needs import Kind
    from k8s_rdma.core.rates import RateRange
    from k8s_rdma.core.request import InterfaceRequest


class Programmed(NamedTuple):
    """Rates for a VF, Mb/s, 0 for none; and whether the hardware then holds what was asked for."""

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    min_held: bool
    max_held: bool


def programmed(pf: Pf, wanted: InterfaceRequest | Kind) -> Programmed:
    """The rates to program for an interface on a PF as it is now."""
    least, most = wanted.min_tx_rate_mbps, wanted.max_tx_rate_mbps
    if pf.rates is EVERY_RATE:
        return Programmed(least, most, min_held=True, max_held=True)
    set_min = _reservation(pf, least) or 0
    set_max = _cap(pf, most) or 0
    if 0 < set_max < set_min:  # apart by less than a step: the reservation is what was promised
        set_max = 0
    held_by_link = pf.link_mbps is not None and pf.link_mbps <= most
    return Programmed(
        set_min,
        set_max,
        min_held=not least or set_min > 0,
        max_held=not most or set_max > 0 or held_by_link,
    )


def reserved(pf: Pf, min_tx_rate_mbps: int) -> int:
    """What a reservation takes of the PF's link, Mb/s: as much as is programmed for it, or would be."""
    if pf.rates is EVERY_RATE or not min_tx_rate_mbps:
        return min_tx_rate_mbps
    return _reservation(pf, min_tx_rate_mbps) or min_tx_rate_mbps


def objection(pf: Pf, wanted: InterfaceRequest | Kind) -> str:
    """Why the PF does not take the interface whatever is free of it, in one clause; empty when it does."""
    if pf.rates is EVERY_RATE or Enforce.HARDWARE not in (pf.enforce, wanted.enforce):
        return ""
    found = programmed(pf, wanted)
    if not found.min_held:
        return _why_not(pf, "minimum", pf.rates.min, wanted.min_tx_rate_mbps)
    if not found.max_held:
        return _why_not(pf, "maximum", pf.rates.max, wanted.max_tx_rate_mbps)
    return ""


def takes_rates(pf: Pf) -> bool:
    """Whether the PF's link is as its driver needs it for any rate."""
    return not (pf.rates.needs_link and pf.link_mbps is None)


def _reservation(pf: Pf, rate: int) -> int | None:
    return pf.rates.min.up(rate) if rate and pf.rates.min and takes_rates(pf) else None


def _cap(pf: Pf, rate: int) -> int | None:
    """None also for a cap that the driver does not take and that the link itself holds."""
    takes = pf.rates.max
    if not rate or takes is None or not takes_rates(pf):
        return None
    if rate > takes.largest and pf.link_mbps is not None and pf.link_mbps <= rate:
        return None
    return takes.down(rate)


def _why_not(pf: Pf, which: str, takes: RateRange | None, rate: int) -> str:
    driver = pf.driver or "its driver"
    if takes is None:
        return f"{driver} takes no {which} rates ({rate} Mb/s wanted)"
    if not takes_rates(pf):
        return f"{driver} takes {which} rates only while the link is up ({rate} Mb/s wanted)"
    steps = f" in steps of {takes.step}" if takes.step > 1 else ""
    return f"{driver} takes {which} rates of {takes.smallest} to {takes.largest} Mb/s{steps} ({rate} wanted)"
