"""Rates of VFs: checked, programmed where they differ, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.rates import EVERY_RATE, check_rates
from k8s_rdma.core.step import VfRate, VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.sim.virtual.topology import require

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.core.step import SetRates
    from k8s_rdma.sim.virtual.shaper import Shaper
    from k8s_rdma.sim.virtual.topology import VirtualPf

_FEW = 4
"""A class that is asked for alone costs as much as so many in a list of all."""


class Rates:
    """The rates of all VFs. What was seen of those that a step does not set is not asked for again."""

    def __init__(self, shaper: Shaper) -> None:
        """Program them by this."""
        self._shaper = shaper
        self._seen: dict[VirtualPf, dict[int, VfRate]] = {}

    def of_all(self, pf: VirtualPf, scheduler: int) -> dict[int, VfRate]:
        """What is programmed; a class whose making was cut short is made anew without rates first."""
        found = self._shaper.rates(pf, scheduler)
        for index in range(pf.vfs):
            if index not in found:
                found[index] = VfRate(index)
                self._shaper.set_rate(pf, scheduler, found[index], None)
        self._seen[pf] = found
        return dict(found)

    def set(self, pf: VirtualPf, scheduler: int, step: SetRates) -> None:
        """Make a step hold; KernelError, and nothing is set, when one of them cannot be."""
        indexes = [rate.index for rate in step.rates]
        for index in indexes:
            require({pf.pci: pf}, VfRef(pf.pci, index))
        before = self._of(pf, scheduler, indexes)
        try:
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, before=before)
        except KernelError:  # the others may have less by now
            before = self.of_all(pf, scheduler)
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, before=before)
        for rate in step.rates:
            if before[rate.index] != rate:
                self._shaper.set_rate(pf, scheduler, rate, before[rate.index])
        after = self._of(pf, scheduler, indexes)
        for rate in step.rates:
            if after[rate.index] != rate:
                msg = f"VF {rate.index} of PF {pf.pci}: read back {after[rate.index]}, set {rate}"
                raise KernelError(msg)

    def _of(self, pf: VirtualPf, scheduler: int, indexes: Collection[int]) -> dict[int, VfRate]:
        """Those of all VFs, of which these are asked for now."""
        seen = self._seen.get(pf)
        if seen is None or len(indexes) * _FEW > pf.vfs:
            return self.of_all(pf, scheduler)
        found = {index: self._shaper.rate(scheduler, index) for index in indexes}
        if None in found.values():
            return self.of_all(pf, scheduler)
        seen.update({index: rate for index, rate in found.items() if rate is not None})
        return dict(seen)
