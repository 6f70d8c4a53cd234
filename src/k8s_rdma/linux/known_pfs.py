"""PFs as they are known: looked at when they are asked for and may have changed, and not otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.changes import Changes
    from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
    from k8s_rdma.linux.discovery.observation import Observer
    from k8s_rdma.linux.discovery.queries import VfInfo
    from k8s_rdma.linux.netlink.rtnl import Link


class KnownPfs:
    """What was seen last of one machine's PFs, and which of them changed since."""

    def __init__(self, *, observer: Observer, queries: NetlinkQueries, changes: Changes) -> None:
        """All of the namespace where VFs are at home."""
        self._observer = observer
        self._queries = queries
        self._changes = changes
        self._pfs: dict[PciAddress, PfState] = {}
        self._stale: frozenset[int] = frozenset()
        self._all_stale = True

    def look(self) -> Hardware:
        """At everything; PFs whose VFs were not changed since are not asked about them again."""
        self._gather()
        hardware = self._observer.observe(None if self._all_stale else self._stale)
        self._stale, self._all_stale = frozenset(), False
        self._pfs = {pf.pci: pf for pf in hardware.pfs}
        return hardware

    def pf(self, pci: PciAddress) -> PfState:
        """A PF as it is now; KernelError when there is none such among ours."""
        self._gather()
        known = self._pfs.get(pci)
        link = self._link(known) if known else None
        if link is None or not link.up or self._all_stale or link.index in self._stale:
            self.look()  # a link that is down does not tell of changes
            known = self._pfs.get(pci)
        if known is None:
            msg = f"PF {pci}: there is no such PF among those that are ours"
            raise KernelError(msg)
        return known

    def index(self, pf: PfState) -> int:
        """Of its netdev; 0, which none has, when that is not called so any more."""
        link = self._link(pf)
        return 0 if link is None else link.index

    def _link(self, pf: PfState) -> Link | None:
        link = self._queries.rtnl.link(pf.name)
        return link if link is not None and link.device in ("", pf.pci) else None

    def changing(self, pf: PfState, index: int) -> None:
        """Something of its VFs is being changed: until `now_is`, what holds is not known.

        Nor is all of it told: drivers may set one of two things and refuse the other.
        """
        self._pfs.pop(pf.pci, None)
        self._stale |= {index}

    def now_is(self, pf: PfState) -> None:
        """What was read back of it."""
        self._pfs[pf.pci] = pf

    def read_back(self, pf: PciAddress, index: int) -> Sequence[VfInfo]:
        """What a PF tells of its VFs, with all that was changed until now: by ourselves, or by whomever."""
        self._gather()
        infos = self._queries.vf_infos(index)
        self._observer.was_told(pf, infos)
        self._stale -= {index}
        return infos

    def _gather(self) -> None:
        """Note what changed since this was called last: it is stale until it is looked at."""
        dirty = self._changes.dirty()
        self._stale |= dirty.links
        self._all_stale |= dirty.everything
