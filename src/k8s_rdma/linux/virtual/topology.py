"""Virtual PFs and VFs as links of a network namespace; the kernel holds their whole state.

    PF enp1s0f0   bridge `enp1s0f0`, described by its alias; the uplink is one of its ports
    VF 3 of it    veth pair: `enp1s0f0v3` is the VF, `enp1s0f0r3` its port on the bridge
    transmit      IFB `enp1s0f0-tx`: traffic of VFs passes its HTB, then the bridge
    forged MACs   IFB `enp1s0f0-no`: a queue that drops everything

A port's alias (`PortState`) names the namespace, by inode, that the VF was moved to, and the VF's settings.
It ends with the VF: a recreated one has the settings of a new VF. A bridge that is down and has no alias is
a PF whose creation was interrupted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.types import LinkState, PciAddress, pci_address
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.step import VfRef
    from k8s_rdma.linux.netlink.rtnl import Link

_SOMEBODY = -1

MAX_VFS = 256
"""Most VFs: the last byte of a VF's MAC is its index."""

MAX_NAME = 10
"""Longest name of a PF, so that `<name>v255` fits an interface's name (15 bytes)."""

DEFAULT_LINK_MBPS = 1000
"""Link speed that two cores can saturate."""

NO_VLAN = 4094
"""VLAN of the bridge for frames without one, because a port is always in a VLAN. No VF can use it."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")
_BASE_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){4}:00")


class PortState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a VF, stored in its port's alias: at most 255 bytes of JSON.

    owner_inode: inode of the namespace that the VF was moved to, 0 for the host's.
    mac: the administrative MAC; empty for the original one.
    vlan: 0 for no VLAN.
    """

    owner_inode: int = msgspec.field(default=0, name="given")
    mac: str = ""
    vlan: int = 0
    trust: bool = False
    spoof_check: bool = True
    link_state: LinkState = LinkState.AUTO

    @property
    def sends_as_anybody(self) -> bool:
        """Report whether its frames may have any source MAC: unchecked, or the VF may set any MAC."""
        return self.trust or not self.spoof_check


_port_state_decoder = msgspec.json.Decoder(PortState | int)


def state_of(port: Link) -> PortState:
    """Decode a port's alias; an unknown alias counts as a VF in use."""
    if not port.alias:
        return PortState()
    try:
        found = _port_state_decoder.decode(port.alias)
    except msgspec.MsgspecError:
        return PortState(owner_inode=_SOMEBODY)
    return PortState(owner_inode=found) if isinstance(found, int) else found


def port_alias_of(state: PortState) -> str:
    """Encode the alias of a port."""
    return "" if state == PortState() else msgspec.json.encode(state).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPf:
    """A virtual PF. base_mac: MAC of VF 0; the index of another VF is added to its last byte.

    vlans: whether its bridge separates VLANs, which not every kernel supports.
    """

    name: str
    pci: PciAddress
    uplink: str
    vfs: int
    link_mbps: int = DEFAULT_LINK_MBPS
    base_mac: str
    vlans: bool = field(default=False, compare=False)

    def vf_name(self, index: int) -> str:
        """Return the name of the VF's netdev in the host's namespace."""
        return f"{self.name}v{index}"

    def port_name(self, index: int) -> str:
        """Return the name of the VF's port on the bridge."""
        return f"{self.name}r{index}"

    @property
    def scheduler_name(self) -> str:
        """Name of the IFB through which all VFs send."""
        return f"{self.name}-tx"

    @property
    def sink_name(self) -> str:
        """Name of the IFB that drops frames that no VF may send."""
        return f"{self.name}-no"

    def vf_mac(self, index: int) -> str:
        """Return the MAC with which the VF is created."""
        return f"{self.base_mac[:-2]}{index:02x}"

    def mac_of(self, index: int, state: PortState) -> str:
        """Return the MAC that its frames must have."""
        return state.mac or self.vf_mac(index)

    @property
    def mac(self) -> str:
        """MAC of the bridge, which would otherwise change with its ports."""
        return f"06{self.base_mac[2:]}"

    def vf_pci(self, index: int) -> PciAddress:
        """Return the VF's address, in a domain derived from the PF's bus, device and function.

        Linux assigns domains from 10000 on to buses that no firmware numbered
        (`drivers/pci/controller/vmd.c`), so no real device has the address either.
        """
        _, bus, slot = self.pci.split(":")
        device, function = slot.split(".")
        domain = 0x10000 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return pci_address(f"{domain:x}:00:{index // 8:02x}.{index % 8}")


class _Alias(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a PF's alias; at most 255 bytes."""

    pci: str
    uplink: str
    vfs: int
    link_mbps: int
    base_mac: str
    vlans: bool = False


_decoder = msgspec.json.Decoder(_Alias)


def is_pf_mac(mac: str) -> bool:
    """Report whether a MAC has the form of `VirtualPf.mac`."""
    return mac.startswith("06:") and mac.endswith(":00")


def random_base_mac() -> str:
    """Return a random local MAC that ends in zero, so that PFs of two machines can share a network."""
    return (b"\x02" + os.urandom(4) + b"\0").hex(":")


def check(pf: VirtualPf) -> None:
    """Check a PF's values; KernelError names the invalid one."""
    for fault, holds in {
        f"name {pf.name!r}: must be 1 to {MAX_NAME} letters, digits, _ . -": _NAME.fullmatch(pf.name),
        f"vfs {pf.vfs}: must be 1 to {MAX_VFS}": 1 <= pf.vfs <= MAX_VFS,
        f"link_mbps {pf.link_mbps}: must be 1 to 1000000": 1 <= pf.link_mbps <= 1_000_000,
        f"base_mac {pf.base_mac}: must be one station's, and end in :00": _BASE_MAC.fullmatch(pf.base_mac),
    }.items():
        if not holds:
            msg = f"virtual PF: {fault}"
            raise KernelError(msg)


def alias_of(pf: VirtualPf) -> str:
    """Encode the alias of its bridge."""
    alias = _Alias(
        pci=pf.pci,
        uplink=pf.uplink,
        vfs=pf.vfs,
        link_mbps=pf.link_mbps,
        base_mac=pf.base_mac,
        vlans=pf.vlans,
    )
    return msgspec.json.encode(alias).decode()


def pf_of(link: Link) -> VirtualPf | None:
    """Return the virtual PF of a link, if it is the bridge of one."""
    if link.kind != "bridge" or not link.alias:
        return None
    try:
        alias = _decoder.decode(link.alias)
        pci = pci_address(alias.pci)
    except (msgspec.MsgspecError, ValueError):
        return None
    return VirtualPf(
        name=link.name,
        pci=pci,
        uplink=alias.uplink,
        vfs=alias.vfs,
        link_mbps=alias.link_mbps,
        base_mac=alias.base_mac,
        vlans=alias.vlans,
    )


def pfs_among(links: Iterable[Link]) -> dict[PciAddress, VirtualPf]:
    """Return the virtual PFs among these links, ordered by PCI address."""
    found = sorted((pf for link in links if (pf := pf_of(link))), key=lambda pf: pf.pci)
    return {pf.pci: pf for pf in found}


def require(pfs: Mapping[PciAddress, VirtualPf], vf: VfRef) -> VirtualPf:
    """Return the PF of a VF; KernelError when there is no such VF."""
    pf = pfs.get(vf.pf)
    if pf is None or not 0 <= vf.index < pf.vfs:
        found = f"{pf.name} has {pf.vfs} VFs" if pf else "there is no such PF"
        msg = f"VF {vf.index} of PF {vf.pf}: unknown: {found}"
        raise KernelError(msg)
    return pf
