"""Kernel changes as values, each with its inverse.

Steps say what shall be so, not what to type: applying one that already holds changes nothing, and
applying the inverse of one that failed half way brings back what was. Only an implementation of
`core.kernel.Kernel` executes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.core.ids import PciAddress


@dataclass(frozen=True, slots=True)
class NetnsRef:
    """A network namespace: where it was mounted, and the inode that tells whether it still is that one.

    inode: `st_ino` of the namespace file (namespaces(7)); unique while the namespace lives.
    """

    path: str
    inode: int


@dataclass(frozen=True, slots=True, order=True)
class VfRef:
    """A VF by its PF's PCI address and its index there (`virtfn<index>`)."""

    pf: PciAddress
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VfHome:
    """What a VF's netdev was on the host before it was given away, to be so again afterwards."""

    name: str
    mac: str
    mtu: int


@dataclass(frozen=True, slots=True)
class VfRate:
    """Rates of one VF, Mb/s; 0 as the kernel means it: nothing guaranteed, no limit."""

    index: int
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRates:
    """Program rates on VFs of one PF, and read them back (once: a query holds the RTNL lock 1-2 ms a VF)."""

    pf: PciAddress
    rates: tuple[VfRate, ...]
    previous: tuple[VfRate, ...]

    @property
    def inverse(self) -> SetRates:
        """The rates of before."""
        return SetRates(pf=self.pf, rates=self.previous, previous=self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveVf:
    """Move a VF's netdev (its RDMA device before it, if it has one) into a namespace under a new name."""

    vf: VfRef
    home: VfHome
    netns: NetnsRef
    ifname: str

    @property
    def inverse(self) -> BringHome:
        """Bring it home."""
        return BringHome(vf=self.vf, home=self.home, netns=self.netns, ifname=self.ifname)


@dataclass(frozen=True, slots=True, kw_only=True)
class BringHome:
    """Bring a VF home from wherever it is: name, MAC and MTU as `home` says, down, without addresses.

    Holds at once when it is home already. When the namespace is gone the kernel has returned the
    netdev (a physical VF) or destroyed it (a virtual one, which is then made anew).
    """

    vf: VfRef
    home: VfHome
    netns: NetnsRef
    ifname: str

    @property
    def inverse(self) -> GiveVf:
        """Give it away again."""
        return GiveVf(vf=self.vf, home=self.home, netns=self.netns, ifname=self.ifname)


@dataclass(frozen=True, slots=True)
class Route:
    """A route through an interface; `dst` in CIDR form, `gateway` None for one on the link."""

    dst: str
    gateway: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureInterface:
    """Bring an interface up in a namespace with these addresses (CIDR form) and routes."""

    netns: NetnsRef
    ifname: str
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()

    @property
    def inverse(self) -> ClearInterface:
        """Take it down again, without addresses."""
        return ClearInterface(
            netns=self.netns, ifname=self.ifname, addresses=self.addresses, routes=self.routes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearInterface:
    """Take an interface down and flush its addresses; holds when interface or namespace is gone."""

    netns: NetnsRef
    ifname: str
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()

    @property
    def inverse(self) -> ConfigureInterface:
        """Configure it again."""
        return ConfigureInterface(
            netns=self.netns, ifname=self.ifname, addresses=self.addresses, routes=self.routes
        )


Step = SetRates | GiveVf | BringHome | ConfigureInterface | ClearInterface
