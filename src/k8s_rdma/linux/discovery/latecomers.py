"""VFs of which a driver has made no netdev: whether one is still to come, or none ever will.

A driver takes a second or so, many VFs at once longer. One that serves RDMA or vdpa alone makes none at all,
and must not keep the other VFs of its PF from being used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PciAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

PATIENCE_S = 10.0
"""Since a VF was first seen with its driver and without a netdev; nothing is lost when one comes later."""

_Lacking = tuple[PciAddress, str]


class Latecomers:
    """Since when VFs, each with the driver of then, have no netdev; by PF."""

    def __init__(self, now: Callable[[], float]) -> None:
        """now: seconds of a monotonic clock."""
        self._now = now
        self._since: dict[PciAddress, dict[_Lacking, float]] = {}

    def expected(self, pf: PciAddress, lacking: Mapping[PciAddress, str]) -> PciAddress | None:
        """The first of a PF's VFs without a netdev (their drivers by address) that may still get one."""
        now, before = self._now(), self._since.get(pf, {})
        since = {each: before.get(each, now) for each in lacking.items()}
        self._since[pf] = since
        return next((vf for (vf, _), began in since.items() if now - began < PATIENCE_S), None)

    def keep(self, pfs: Collection[PciAddress]) -> None:
        """Forget those of other PFs: their drivers begin anew."""
        self._since = {pf: since for pf, since in self._since.items() if pf in pfs}
