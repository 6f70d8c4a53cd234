"""Whether a PF is what an interface's options need, and what of an interface decides where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.options import NO_NEEDS, Setting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.options import Needs, PfSelector
    from k8s_rdma.core.rates import Enforce
    from k8s_rdma.core.request import InterfaceRequest

_MOST = 3
"""Of a selector's values in a clause; whoever writes the annotation decides how many there are."""


class Kind(NamedTuple):
    """All that tells an interface from another for a placement; not its name, MAC or VLAN."""

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    enforce: Enforce
    needs: Needs


def kind_of(wanted: InterfaceRequest) -> Kind:
    """An interface's kind."""
    return Kind(wanted.min_tx_rate_mbps, wanted.max_tx_rate_mbps, wanted.enforce, wanted.needs)


def meets(pf: Pf, needs: Needs) -> bool:
    """Whether the PF is what is needed."""
    return needs is NO_NEEDS or (is_chosen(pf, needs) and needs.settings <= pf.takes)


def is_choosy(needs: Needs) -> bool:
    """Whether it matters which PF it is, apart from what its driver can do."""
    return bool(needs.pf is not None or needs.link_type is not None or needs.mtu)


def is_chosen(pf: Pf, needs: Needs) -> bool:
    """Whether it is the PF that is wanted, whatever its driver can do."""
    return (
        (needs.pf is None or selects(needs.pf, pf))
        and needs.link_type in (None, pf.link_type)
        and needs.mtu <= pf.mtu
    )


def unmet(pf: Pf, needs: Needs) -> str:
    """Why the PF is not what is needed, in one clause without its name; empty when it is."""
    if meets(pf, needs):
        return ""
    if needs.pf is not None and not selects(needs.pf, pf):
        return f"not what pf selects ({', '.join(_sets(needs.pf))})"
    if needs.link_type not in (None, pf.link_type):
        return f"its link is {pf.link_type}, and link_type is {needs.link_type}"
    if needs.mtu > pf.mtu:
        return f"its MTU is {pf.mtu or 'not known'}, and mtu is {needs.mtu}"
    return _cannot(pf, needs.settings - pf.takes)


def unmet_cause(pf: Pf, needs: Needs) -> str:
    """As `unmet`, and without a number that is this PF's."""
    otherwise = (needs.pf is None or selects(needs.pf, pf)) and needs.link_type in (None, pf.link_type)
    if otherwise and needs.mtu > pf.mtu:
        return f"its MTU is below {needs.mtu}"
    return unmet(pf, needs)


NOT_BY_SOFTWARE = "its node caps nothing by software: the kernel lacks sch_tbf, or the agent is too old"


def selects(selector: PfSelector, pf: Pf) -> bool:
    """Whether a PF is one of these."""
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


def _sets(selector: PfSelector) -> Iterator[str]:
    """The selector in words: `driver ice or mlx5_core`."""
    sets = {
        "name": selector.names,
        "pci": selector.pcis,
        "vendor": selector.vendors,
        "driver": selector.drivers,
    }
    for key, found in sets.items():
        if found:
            more = [f"{len(found) - _MOST} more"] if len(found) > _MOST else []
            yield f"{key} {' or '.join([*sorted(found)[:_MOST], *more])}"
