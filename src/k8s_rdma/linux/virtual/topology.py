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

from k8s_rdma.core.ids import PciAddress, pci_address
from k8s_rdma.core.options import LinkState
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.step import VfRef
    from k8s_rdma.linux.netlink.rtnl import Link

_SOMEBODY = -1


class PortState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most 255 bytes of JSON.

    given: inode of the namespace that the VF was given to, 0 while it is home.
    mac: what its PF has for it; empty for the one that it was made with. vlan: 0 for none.
    """

    given: int = 0
    mac: str = ""
    vlan: int = 0
    trust: bool = False
    spoof_check: bool = True
    link_state: LinkState = LinkState.AUTO

    @property
    def sends_as_anybody(self) -> bool:
        """Report whether its frames may bear any source MAC: unchecked, or the VF may set every MAC."""
        return self.trust or not self.spoof_check


_port_state_decoder = msgspec.json.Decoder(PortState | int)


def state_of(port: Link) -> PortState:
    """Decode a port's alias; an unknown alias counts as a VF in use."""
    if not port.alias:
        return PortState()
    try:
        found = _port_state_decoder.decode(port.alias)
    except msgspec.MsgspecError:
        return PortState(given=_SOMEBODY)
    return PortState(given=found) if isinstance(found, int) else found


def port_alias_of(state: PortState) -> str:
    """Encode the alias of a port."""
    return "" if state == PortState() else msgspec.json.encode(state).decode()


MAX_VFS = 256
"""The last byte of a VF's MAC is its index."""

MAX_NAME = 10
"""Of a PF, so that `<name>v255` is an interface's name as well (15 bytes)."""

DEFAULT_LINK_MBPS = 1000
"""What two cores can fill."""

NO_VLAN = 4094
"""Of the bridge, for frames that have none: a port is in one always. No VF can have this one."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")
_BASE_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){4}:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPf:
    """A virtual PF. base_mac: of VF 0; the index of another VF is added to its last byte.

    vlans: whether its bridge keeps VLANs apart, which not every kernel's can.
    """

    name: str
    pci: PciAddress
    uplink: str
    vfs: int
    link_mbps: int = DEFAULT_LINK_MBPS
    base_mac: str
    vlans: bool = field(default=False, compare=False)

    def vf_name(self, index: int) -> str:
        """The VF's netdev at home."""
        return f"{self.name}v{index}"

    def port_name(self, index: int) -> str:
        """The VF's port on the bridge."""
        return f"{self.name}r{index}"

    @property
    def scheduler_name(self) -> str:
        """The IFB through which all VFs send."""
        return f"{self.name}-tx"

    @property
    def sink_name(self) -> str:
        """The IFB that swallows what no VF may send."""
        return f"{self.name}-no"

    def vf_mac(self, index: int) -> str:
        """The MAC address that the VF is made with."""
        return f"{self.base_mac[:-2]}{index:02x}"

    def mac_of(self, index: int, state: PortState) -> str:
        """The MAC address that its frames must bear."""
        return state.mac or self.vf_mac(index)

    @property
    def mac(self) -> str:
        """The bridge's own, which would otherwise change with its ports."""
        return f"06{self.base_mac[2:]}"

    def vf_pci(self, index: int) -> PciAddress:
        """The VF's address, in a domain of the PF's own: made of bus, device and function.

        Domains from 10000 on are where Linux puts buses that no firmware numbered
        (`drivers/pci/controller/vmd.c`), so it is no real device's either.
        """
        _, bus, slot = self.pci.split(":")
        device, function = slot.split(".")
        domain = 0x10000 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return pci_address(f"{domain:x}:00:{index // 8:02x}.{index % 8}")


class _Alias(msgspec.Struct, frozen=True, kw_only=True):
    """What a PF's alias says; at most 255 bytes."""

    pci: str
    uplink: str
    vfs: int
    link_mbps: int
    base_mac: str
    vlans: bool = False


_decoder = msgspec.json.Decoder(_Alias)


def is_pf_mac(mac: str) -> bool:
    """Report whether `VirtualPf.mac` could be this one."""
    return mac.startswith("06:") and mac.endswith(":00")


def random_base_mac() -> str:
    """A locally administered MAC that ends in zero, so that PFs of two machines can share a network."""
    return (b"\x02" + os.urandom(4) + b"\0").hex(":")


def check(pf: VirtualPf) -> None:
    """KernelError names what of a PF cannot be."""
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
    """What its bridge's alias says."""
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
    """The virtual PF that this link is; None for any other link."""
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
    """The virtual PFs among these links, ordered by PCI address."""
    found = sorted((pf for link in links if (pf := pf_of(link))), key=lambda pf: pf.pci)
    return {pf.pci: pf for pf in found}


def require(pfs: Mapping[PciAddress, VirtualPf], vf: VfRef) -> VirtualPf:
    """The PF of a VF; KernelError when there is no such VF."""
    pf = pfs.get(vf.pf)
    if pf is None or not 0 <= vf.index < pf.vfs:
        found = f"{pf.name} has {pf.vfs} VFs" if pf else "there is no such PF"
        msg = f"VF {vf.index} of PF {vf.pf}: unknown: {found}"
        raise KernelError(msg)
    return pf
