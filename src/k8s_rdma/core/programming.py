"""Programming of rates: the rates that a driver takes, their cost on the link, and how they are enforced.

A reservation is rounded up to a rate that the driver takes, and a cap down. If the driver takes no
reservations, the reservation is not programmed, but the sums of reservations are accounted all the same. If
it does not take a cap, software keeps the exact cap if the pod gets the kernel's netdev and the node's kernel
can limit it; otherwise the cap is not enforced. If only the hardware is acceptable (`Enforce.HARDWARE`, of
the PF or of the interface), or caps must be kept by software (`Enforce.SOFTWARE`), the PF does not take an
interface whose rates could not be enforced so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.pf_needs import NOT_BY_SOFTWARE
from k8s_rdma.core.rate_ability import EVERY_RATE, RateRange
from k8s_rdma.core.types import Enforce, Enforcer, Setting, enforcer_of

if TYPE_CHECKING:
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.request import InterfaceClass, InterfaceRequest


_NOT_VFIO = "software cannot cap a VF that is given to vfio-pci"


class Programmed(NamedTuple):
    """Rates for an interface, Mb/s, 0 for no rate; and whether the requested rates then hold.

    min_tx_rate_mbps, max_tx_rate_mbps: of its VF.
    software_max_tx_rate_mbps: of its netdev in the pod.
    min_held: by the hardware.
    max_held: by the hardware, its link or software.
    """

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    software_max_tx_rate_mbps: int
    min_held: bool
    max_held: bool


def programmed(pf: Pf, request: InterfaceRequest | InterfaceClass) -> Programmed:
    """Return the rates to program for an interface on a PF as it is now."""
    least, maximum = request.min_tx_rate_mbps, request.max_tx_rate_mbps
    enforce = enforcement(pf, request)
    set_min = _reservation(pf, least) or 0
    set_max = 0 if enforce is Enforce.SOFTWARE else _cap(pf, maximum) or 0
    if 0 < set_max < set_min:  # apart by less than a step: the reservation takes precedence
        set_max = 0
    by_link = enforce is not Enforce.SOFTWARE and pf.link_mbps is not None and pf.link_mbps <= maximum
    by_hardware = enforce is Enforce.HARDWARE or set_max > 0 or by_link
    by_software = not by_hardware and not _software_objection(pf, request)
    return Programmed(
        set_min,
        set_max,
        maximum if by_software else 0,
        min_held=not least or set_min > 0,
        max_held=not maximum or set_max > 0 or by_link or by_software,
    )


def enforcement(pf: Pf, request: InterfaceRequest | InterfaceClass) -> Enforce:
    """Return the stricter of the PF's and the interface's demand: hardware, then software, then auto."""
    demanded = pf.enforce, request.enforce
    if Enforce.HARDWARE in demanded:
        return Enforce.HARDWARE
    return Enforce.SOFTWARE if Enforce.SOFTWARE in demanded else Enforce.AUTO


class Enforcers(NamedTuple):
    """The enforcers of a reservation and of a cap."""

    min: Enforcer
    max: Enforcer


def enforcers(pf: Pf, request: InterfaceRequest | InterfaceClass) -> Enforcers:
    """Return the enforcers of an interface that is placed on the PF as it is now."""
    found = programmed(pf, request)
    programmed_by = enforcer_of(pf.driver)
    least = programmed_by if found.min_held else "accounted"
    if found.software_max_tx_rate_mbps:
        return Enforcers(least, "software")
    return Enforcers(least, programmed_by if found.max_held else "accounted")


def reserved(pf: Pf, min_tx_rate_mbps: int) -> int:
    """Return the cost of a reservation on the PF's link, Mb/s: the rate that is, or would be, programmed."""
    if pf.rates is EVERY_RATE or not min_tx_rate_mbps:
        return min_tx_rate_mbps
    return _reservation(pf, min_tx_rate_mbps) or min_tx_rate_mbps


def objection(pf: Pf, request: InterfaceRequest | InterfaceClass) -> str:
    """Describe in one clause why the PF never takes the interface; empty when it does."""
    enforce = enforcement(pf, request)
    if enforce is Enforce.SOFTWARE:
        lacks_software_caps = (
            Setting.SOFTWARE_CAPS in request.needs.settings - pf.supported_settings
        )  # by `needs.unmet`
        applied_maximum, maximum = programmed(pf, request).max_held, request.max_tx_rate_mbps
        return (
            ""
            if applied_maximum or lacks_software_caps
            else f"{_software_objection(pf, request)} ({maximum} Mb/s wanted)"
        )
    if enforce is Enforce.AUTO or pf.rates is EVERY_RATE:
        return ""
    found = programmed(pf, request)
    if not found.min_held:
        return _rate_objection(pf, "minimum", pf.rates.min, request.min_tx_rate_mbps)
    if not found.max_held:
        return _rate_objection(pf, "maximum", pf.rates.max, request.max_tx_rate_mbps)
    return ""


def objection_cause(pf: Pf, request: InterfaceRequest | InterfaceClass) -> str:
    """Describe the objection without numbers."""
    if enforcement(pf, request) is Enforce.SOFTWARE:
        return _software_objection(pf, request)
    bound = "maximum" if programmed(pf, request).min_held else "minimum"
    return f"{pf.driver or 'its driver'} does not take {bound} rates as they are wanted"


def demand(pf: Pf, request: InterfaceRequest | InterfaceClass) -> str:
    """Return the demand behind an objection: `enforcement by hardware is demanded`."""
    return f"enforcement by {enforcement(pf, request)} is demanded"


def takes_rates(pf: Pf) -> bool:
    """Report whether the PF's link is as its driver needs it for any rate."""
    return not (pf.rates.needs_link and pf.link_mbps is None)


def _software_objection(pf: Pf, request: InterfaceRequest | InterfaceClass) -> str:
    """Describe why software cannot cap the interface: it needs a netdev, and a kernel that can limit one."""
    if Setting.VFIO_PCI in request.needs.settings:
        return _NOT_VFIO
    return "" if Setting.SOFTWARE_CAPS in pf.supported_settings else NOT_BY_SOFTWARE


def _reservation(pf: Pf, rate: int) -> int | None:
    return pf.rates.min.round_up(rate) if rate and pf.rates.min and takes_rates(pf) else None


def _cap(pf: Pf, rate: int) -> int | None:
    """Return the cap to program; None also if the driver takes no such cap and the link itself keeps it."""
    rate_range = pf.rates.max
    if not rate or rate_range is None or not takes_rates(pf):
        return None
    if rate > rate_range.largest and pf.link_mbps is not None and pf.link_mbps <= rate:
        return None
    return rate_range.round_down(rate)


def _rate_objection(pf: Pf, rate_name: str, supported: RateRange | None, rate: int) -> str:
    driver = pf.driver or "its driver"
    if supported is None:
        return f"{driver} takes no {rate_name} rates ({rate} Mb/s wanted)"
    if not takes_rates(pf):
        return f"{driver} takes {rate_name} rates only while the link is up ({rate} Mb/s wanted)"
    steps = f" in steps of {supported.step}" if supported.step > 1 else ""
    span = f"{supported.smallest} to {supported.largest}"
    return f"{driver} takes {rate_name} rates of {span} Mb/s{steps} ({rate} wanted)"
