"""Whether a PF is what an interface's options need, and what of an interface decides where it can be."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from k8s_rdma.core.options import NO_NEEDS, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.options import Needs, PfSelector
    from k8s_rdma.core.rates import Enforce
    from k8s_rdma.core.request import InterfaceRequest

_Value = TypeVar("_Value", bound=str)

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


class PfMasks:
    """Which PFs meet needs, as a set of bits (bit n: the PF at place n).

    Found by the selector's values, of which there may be many, and not PF by PF: it does what `meets` does
    in a tenth of the time.
    """

    def __init__(self, pfs: Sequence[Pf]) -> None:
        self._pfs = pfs
        self._every = (1 << len(pfs)) - 1
        self._names = _positions((pf.name, at) for at, pf in enumerate(pfs))
        self._pcis = _positions((pf.pci, at) for at, pf in enumerate(pfs))
        self._drivers = _positions((pf.driver, at) for at, pf in enumerate(pfs))
        self._vendors = _positions(
            (vendor, at) for at, pf in enumerate(pfs) for vendor in {pf.vendor, pf.vendor.partition(":")[0]}
        )
        self._able: dict[frozenset[Setting], int] = {}

    def meeting(self, needs: Needs) -> int:
        """The PFs that `meets` says True of."""
        mask = self.able(needs)
        if needs.link_type is not None:
            mask &= self._where(lambda pf: pf.link_type is needs.link_type)
        if needs.mtu:
            mask &= self._where(lambda pf: needs.mtu <= pf.mtu)
        return mask if needs.pf is None else mask & self._selected(needs.pf)

    def able(self, needs: Needs) -> int:
        """The PFs whose drivers can do what is needed, whichever PFs are wanted."""
        if not needs.settings:
            return self._every
        mask = self._able.get(needs.settings)
        if mask is None:
            mask = self._able[needs.settings] = self._where(lambda pf: needs.settings <= pf.takes)
        return mask

    def _selected(self, selector: PfSelector) -> int:
        mask = self._every
        if selector.names:
            mask &= _union(selector.names, self._names)
        if selector.pcis:
            mask &= _union(selector.pcis, self._pcis)
        if selector.vendors:
            mask &= _union(selector.vendors, self._vendors)
        if selector.drivers:
            mask &= _union(selector.drivers, self._drivers)
        return mask

    def _where(self, true: Callable[[Pf], bool]) -> int:
        return sum([1 << at for at, pf in enumerate(self._pfs) if true(pf)])


def _positions(values: Iterable[tuple[_Value, int]]) -> dict[_Value, int]:
    found: dict[_Value, int] = {}
    for value, at in values:
        found[value] = found.get(value, 0) | 1 << at
    return found


def _union(wanted: frozenset[_Value], positions: Mapping[_Value, int]) -> int:
    """Goes through the smaller of the two."""
    mask = 0
    for value in wanted.intersection(positions) if len(wanted) > len(positions) else wanted:
        mask |= positions.get(value, 0)
    return mask


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
        return _not_selected(needs.pf)
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


@lru_cache(maxsize=256)
def _not_selected(selector: PfSelector) -> str:
    """Said of many PFs, and selectors may be long."""
    return f"not what pf selects ({', '.join(_sets(selector))})"


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
