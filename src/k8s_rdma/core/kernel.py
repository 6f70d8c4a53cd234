"""The kernel as a parameter: what the agent needs of it, and what it answers.

Three implementations pass one contract suite (`tests/contract/`): `linux.kernel` on SR-IOV hardware,
`sim.fake_kernel` in memory, `sim.virtual_sriov` made of ordinary Linux parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.inventory import Inventory, Pf

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.step import NetnsRef, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Vf:
    """A virtual function as it is now.

    netdev: its name in the host's namespace; None while it is in another one.
    Rates in Mb/s, 0 as in `VfRate`. The other fields are those of `IFLA_VFINFO_LIST` and of
    `/getpfs`; text as `ip link` and MLNX_OFED print it.
    """

    index: int
    pci: PciAddress
    netdev: str | None
    mac: str
    mtu: int
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    vlan: int = 0
    qos: int = 0
    vlan_proto: str = "N/A"
    spoof_check: str = "OFF"
    trust: str = "OFF"
    link_state: str = "Follow"
    vgt_plus: str = "OFF"
    rate_group: int = 0
    rdma_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PfState:
    """A physical function and its VFs, ordered by index; `link_mbps` None when unknown."""

    name: str
    pci: PciAddress
    link_mbps: int | None
    driver: str
    vfs: tuple[Vf, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something that a scan could not look at, and why; it is never reported as absent."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """One observation: the PFs seen, ordered by PCI address, and what could not be seen."""

    pfs: tuple[PfState, ...]
    unreadable: tuple[Unreadable, ...] = ()

    def inventory(self, node: NodeName) -> Inventory:
        """The same as placement sees it."""
        return Inventory(
            node=node,
            pfs=tuple(
                Pf(name=pf.name, pci=pf.pci, capacity_vfs=len(pf.vfs), link_mbps=pf.link_mbps)
                for pf in self.pfs
            ),
        )


class Kernel(Protocol):
    """Observe the hardware, apply one step, tell of changes. Blocking: one worker thread owns it."""

    def observe(self) -> Hardware:
        """Everything there is now. KernelError when the kernel cannot be asked at all."""
        ...

    def apply(self, step: Step) -> None:
        """Make the step hold, verified by reading back.

        KernelError when it does not hold afterwards; the step's inverse then undoes whatever part did.
        """
        ...

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Whether that very namespace (path and inode) still exists."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from any thread after something observable changed; returns what ends the watch."""
        ...

    def close(self) -> None:
        """Release sockets and threads; changes nothing on the machine."""
        ...
