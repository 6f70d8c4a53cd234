"""Whether addresses that a pod was given are its own, by what duplicate address detection has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.core.kernel import PodInterface


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """Addresses, each with its interface's name: `fd00::1/64 of rdma0`; see `core.kernel.PodInterface`."""

    duplicates: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def settling(addresses: Mapping[str, Collection[str]], found: Mapping[str, PodInterface]) -> Settling:
    """What is to be waited for of these addresses, by interface.

    Nobody can be asked while an interface has no link; the kernel asks when it has one.
    """
    duplicates, unusable, unverified = [], [], []
    for ifname, given in addresses.items():
        there = found.get(ifname)
        if there is None:
            continue
        ours = set(given)
        duplicates += [f"{each} of {ifname}" for each in sorted(ours & there.duplicates)]
        if there.carrier:
            unusable += [f"{each} of {ifname}" for each in sorted(ours & there.unusable)]
            unverified += [f"{each} of {ifname}" for each in sorted(ours & there.unverified)]
    return Settling(duplicates=tuple(duplicates), unusable=tuple(unusable), unverified=tuple(unverified))
