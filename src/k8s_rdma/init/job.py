"""One PF to be made ready, and what that is done with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.options import LinkType
from k8s_rdma.core.selection import PfRule
from k8s_rdma.init.config import InitConfig
from k8s_rdma.init.failure import SetupError
from k8s_rdma.init.waiting import Clock
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.creation import SriovLinks, SriovPf

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A PF that was selected: the name of its netdev, its address, what it speaks, and the rule for it."""

    name: str
    pci: PciAddress
    link_type: LinkType
    rule: PfRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A target and the means; used by one thread."""

    target: Target
    sysfs: Sysfs
    sriov: SriovPf
    links: SriovLinks
    clock: Clock
    config: InitConfig
    log: FilteringBoundLogger

    def link(self) -> Link:
        """The PF's netdev; SetupError when it is gone."""
        found = self.links.link(self.target.name)
        if found is None:
            msg = f"PF {self.target.name} ({self.target.pci}): its netdev is gone"
            raise SetupError(msg, advice="see why its driver left it, in dmesg")
        return found
