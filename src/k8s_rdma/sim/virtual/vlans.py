"""The VLANs of a PF's bridge: a VF's port is in the one it says, without tags, the uplink in all, tagged.

Frames without a VLAN are in one of the bridge's own, `topology.NO_VLAN`, and without a tag on the uplink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink import bridge_vlans
from k8s_rdma.sim.virtual.port import state_of
from k8s_rdma.sim.virtual.topology import NO_VLAN

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.sim.virtual.topology import VirtualPf


def make_as_ports_say(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Have a PF's ports and uplink in their VLANs; KernelError when they are not afterwards."""
    links = {link.name: link for link in rtnl.links()}
    ports = [links[name] for name in map(pf.port_name, range(pf.vfs)) if name in links]
    wanted = {port.index: frozenset({state_of(port).vlan or NO_VLAN}) for port in ports}
    if pf.uplink in links:
        wanted[links[pf.uplink].index] = frozenset({NO_VLAN}).union(*wanted.values())
    names = {link.index: link for link in links.values()}
    present = bridge_vlans.vlans(rtnl, f"{pf.name}: VLANs")
    for index, those in wanted.items():
        _be_in(names[index], those, present.get(index, frozenset()), rtnl)
    present = bridge_vlans.vlans(rtnl, f"{pf.name}: VLANs")
    for index, those in wanted.items():
        found = present.get(index, frozenset())
        if found != those:
            msg = f"{names[index].name}: read back VLANs {sorted(found)}, set {sorted(those)}"
            raise KernelError(msg)


def _be_in(port: Link, wanted: AbstractSet[int], present: AbstractSet[int], rtnl: Rtnl) -> None:
    """Left first, so that a VF is in two at no moment."""
    for vlan in present - wanted:
        bridge_vlans.remove(rtnl, port.index, vlan, f"{port.name}: no VLAN {vlan}")
    for vlan in wanted - present:
        add = bridge_vlans.add_tagged if NO_VLAN in wanted - {vlan} else bridge_vlans.add_untagged
        add(rtnl, port.index, vlan, f"{port.name}: VLAN {vlan}")
