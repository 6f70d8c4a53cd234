"""Needs of an interface held against a PF, and the words for those that it does not meet."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from k8s_rdma.core.types import NO_NEEDS, Needs, PfSelector, Setting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from k8s_rdma.core.inventory import Pf

_MAX_LISTED = 3
"""Values of a selector that a clause lists; the annotation's author decides how many there are."""

NOT_BY_SOFTWARE = "its node caps nothing by software: the kernel lacks sch_tbf, or the agent is too old"


def meets(pf: Pf, needs: Needs) -> bool:
    """Report whether the PF meets the needs."""
    return needs is NO_NEEDS or (is_chosen(pf, needs) and needs.settings <= pf.supported_settings)


def has_pf_constraints(needs: Needs) -> bool:
    """Report whether the needs exclude PFs, apart from the abilities of their drivers."""
    return bool(needs.pf is not None or needs.link_type is not None or needs.mtu)


def is_chosen(pf: Pf, needs: Needs) -> bool:
    """Report whether the needs select the PF, apart from the abilities of its driver."""
    return (
        (needs.pf is None or selects(needs.pf, pf))
        and needs.link_type in (None, pf.link_type)
        and needs.mtu <= pf.mtu
    )


def unmet(pf: Pf, needs: Needs) -> str:
    """Describe in one clause, without its name, why the PF does not meet the needs; empty when it does."""
    if meets(pf, needs):
        return ""
    if needs.pf is not None and not selects(needs.pf, pf):
        return _not_selected(needs.pf)
    if needs.link_type not in (None, pf.link_type):
        return f"its link is {pf.link_type}, and link_type is {needs.link_type}"
    if needs.mtu > pf.mtu:
        return f"its MTU is {pf.mtu or 'not known'}, and mtu is {needs.mtu}"
    return _cannot(pf, needs.settings - pf.supported_settings)


def unmet_cause(pf: Pf, needs: Needs) -> str:
    """Describe the unmet need without numbers of this PF."""
    otherwise = (needs.pf is None or selects(needs.pf, pf)) and needs.link_type in (None, pf.link_type)
    if otherwise and needs.mtu > pf.mtu:
        return f"its MTU is below {needs.mtu}"
    return unmet(pf, needs)


def selects(selector: PfSelector, pf: Pf) -> bool:
    """Report whether a PF is one of these."""
    vendor, _, _ = pf.vendor.partition(":")
    return (
        (not selector.names or pf.name in selector.names)
        and (not selector.pcis or pf.pci in selector.pcis)
        and (not selector.vendors or not selector.vendors.isdisjoint((vendor, pf.vendor)))
        and (not selector.drivers or pf.driver in selector.drivers)
    )


def _cannot(pf: Pf, missing: Collection[Setting]) -> str:
    if Setting.VFIO_PCI in missing:
        return "its VFs cannot be given to vfio-pci"
    if Setting.PKEY in missing:
        # No kernel sets one by netlink; see docs/drivers.md.
        return "no driver sets pkey of a VF, as the subnet manager does that by GUID (ask for guid)"
    if Setting.SOFTWARE_CAPS in missing:
        return NOT_BY_SOFTWARE
    names = ", ".join(sorted(missing))
    return f"{pf.driver or 'its driver'} cannot set {names} of a VF"


@lru_cache(maxsize=256)
def _not_selected(selector: PfSelector) -> str:
    """Said of many PFs, and selectors may be long."""
    return f"not what pf selects ({', '.join(_sets(selector))})"


def _sets(selector: PfSelector) -> Iterator[str]:
    """Yield the selector in words: `driver ice or mlx5_core`."""
    sets = {
        "name": selector.names,
        "pci": selector.pcis,
        "vendor": selector.vendors,
        "driver": selector.drivers,
    }
    for key, found in sets.items():
        if found:
            omitted = [f"{len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
            yield f"{key} {' or '.join([*sorted(found)[:_MAX_LISTED], *omitted])}"
