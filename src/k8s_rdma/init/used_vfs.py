"""VFs of a PF that are in use: by pods as the agent's ledger has them, or by other programs of the host.

These VFs are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import LedgerError
from k8s_rdma.linux.netlink.routes import below, carriers
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS
from k8s_rdma.linux.vf.sriov_links import NetdevsOf, SriovLinks

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.ledger import Ledger
    from k8s_rdma.core.types import PciAddress
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.vf.creation import VfFunction


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods that hold VFs.

    holders: in words.
    unknown: why the ledger could not be read; any VF with a driver may then be a pod's.
    """

    holders: Mapping[VfRef, str] = field(default_factory=dict)
    unknown: str = ""


@contextmanager
def ledger_held(path: Path, boot_id: str) -> Iterator[Pods]:
    """Read the agent's ledger; until it is closed, no agent can start and allocate VFs that will change.

    The ledger is not changed, and not created if it does not exist: no agent ran on this node yet. Receipts
    of another boot hold no VFs any more.
    """
    if not path.exists():
        yield Pods()
        return
    with ExitStack() as opened:
        try:
            receipts = opened.enter_context(closing(Receipts(path)))
            pods = Pods(_holders(receipts.load(), boot_id))
        except LedgerError as error:
            pods = Pods(unknown=str(error))
        yield pods


def _holders(ledger: Ledger, boot_id: str) -> dict[VfRef, str]:
    return {
        interface.vf: f"pod {receipt.pod.namespace}/{receipt.pod.name}"
        for receipt in ledger.receipts.values()
        if receipt.boot_id == boot_id
        for interface in receipt.interfaces
    }


def used_vfs(pf: PciAddress, vfs: Sequence[VfFunction], pods: Pods, links: SriovLinks) -> Mapping[int, str]:
    """Return the user of each used VF of a PF."""
    host = _Host(links)
    found = {vf.index: pods.holders.get(VfRef(pf, vf.index)) or host.user(vf) for vf in vfs}
    if pods.unknown:
        found |= {vf.index: found[vf.index] or "perhaps a pod" for vf in vfs if vf.driver}
    return {index: user for index, user in found.items() if user}


class _Host:
    """Uses by anything but our pods."""

    def __init__(self, links: SriovLinks) -> None:
        found = links.links()
        self._netdevs = NetdevsOf(found)
        self._by_name = {link.name: link for link in found}
        self._untold = not any(link.device for link in found)
        self._carriers = carriers(found)
        self._addressed = below(found, links.addressed_links())

    def user(self, vf: VfFunction) -> str | None:
        if vf.driver is None:
            reserved = vf.driver_override in USERSPACE_DRIVERS
            return f"driver_override {vf.driver_override}" if reserved else None
        if vf.driver in USERSPACE_DRIVERS:
            return f"driver {vf.driver}"
        if vf.netdevs is None:
            return None
        if not vf.netdevs:
            return "another network namespace"
        return next((use for link in self._netdevs_of(vf) if (use := self._use_of(link))), None)

    def _netdevs_of(self, vf: VfFunction) -> Sequence[Link]:
        """Return a VF's netdevs; by names in sysfs if netlink has no link's device (Linux before 5.14)."""
        if not self._untold:
            return self._netdevs.netdevs_of(vf)
        return [self._by_name[name] for name in vf.netdevs or () if name in self._by_name]

    def _use_of(self, link: Link) -> str | None:
        if link.master:
            return f"netdev {link.name} in a bond or bridge"
        if link.index in self._carriers:
            return f"netdev {link.name} with a VLAN, macvlan or macvtap on it"
        return f"netdev {link.name} with an IP address" if link.index in self._addressed else None
