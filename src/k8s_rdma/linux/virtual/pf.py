"""Creation and destruction of virtual PFs, and recreation of VFs that ended with a namespace."""

from __future__ import annotations

import errno
import re
from dataclasses import replace

from k8s_rdma.core.step import VfHome
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import (
    Link,
    Rtnl,
    enslaved_to,
    named,
    of_kind,
    vlan_bridge,
    with_alias,
    with_mac,
    with_mtu,
    without_link_local,
)
from k8s_rdma.linux.netlink.socket import NetlinkError, nested, u32
from k8s_rdma.linux.virtual.settings import Shaper
from k8s_rdma.linux.virtual.topology import (
    NO_VLAN,
    PortState,
    VirtualPf,
    alias_of,
    check,
    is_pf_mac,
    pf_of,
    pfs_among,
)

DEFAULT_MTU = 1500
_INFO_DATA = 2
_VETH_PEER = 1
_TX_QUEUE_LENGTH = 13
_SCHEDULER_QUEUE = 1000
"""An IFB's default of 32 packets is also the default limit of queues in it."""


def create_pf(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Create a PF with its VFs around an existing uplink; no change when it exists with these values.

    A PF whose creation was interrupted is recreated. KernelError when its PCI address or one of its names is
    in use, also by a PF with other values, or when the uplink belongs to another bridge.
    """
    check(pf)
    links = rtnl.links()
    found = pfs_among(links).get(pf.pci)
    if found == pf:
        return
    holder = next((link for link in links if link.name == pf.name and not _unfinished(link)), None)
    if found is not None or holder is not None:
        msg = f"virtual PF {pf.name}: expected {pf}, found {found or (holder and pf_of(holder)) or holder}"
        raise KernelError(msg)
    destroy_pf(pf, rtnl)
    uplink = _free_uplink(pf, rtnl)
    pf = _create_bridge(pf, rtnl)
    try:
        _build(pf, rtnl, uplink)
    except KernelError:
        destroy_pf(pf, rtnl)
        raise


def destroy_pf(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Destroy a PF with all VFs in any namespace; the uplink stays. No change when it does not exist.

    Links that only have such names are left alone.
    """
    links = {link.name: link for link in rtnl.links()}
    bridge = links.get(pf.name)
    if bridge is None or bridge.kind != "bridge":
        return
    port_name = re.compile(rf"{re.escape(pf.name)}r\d+")
    ports = [
        link
        for link in links.values()
        if link.kind == "veth" and link.master == bridge.index and port_name.fullmatch(link.name)
    ]
    ifbs = [link for link in links.values() if link.kind == "ifb" and link.name in _ifb_names(pf)]
    # The bridge last: as long as it is there, a destruction that was cut short can be repeated.
    for link in (*ports, *ifbs, bridge):
        rtnl.delete(link.index, f"destroy {link.name}")


def revive_vf(pf: VirtualPf, index: int, rtnl: Rtnl, home: VfHome | None = None) -> None:
    """Recreate a VF in the host's namespace, down, with its rates and the settings of a new VF.

    Its remains are deleted first.
    """
    remains = rtnl.link(pf.port_name(index))
    if remains is not None:
        rtnl.delete(remains.index, f"destroy {pf.port_name(index)}")
    bridge = rtnl.link(pf.name)
    if bridge is None:
        msg = f"virtual PF {pf.name}: no longer exists"
        raise KernelError(msg)
    home = home or VfHome(name=pf.vf_name(index), mac=pf.vf_mac(index), mtu=DEFAULT_MTU)
    port = _create_vf(pf, index, home, rtnl, bridge)
    Shaper(rtnl).admit(pf, index, port.index, PortState())


def _unfinished(link: Link) -> bool:
    """Report whether a link is the bridge of a PF whose creation was interrupted."""
    return link.kind == "bridge" and not link.is_up and not link.alias and is_pf_mac(link.mac)


def _ifb_names(pf: VirtualPf) -> tuple[str, str]:
    return pf.scheduler_name, pf.sink_name


def _free_uplink(pf: VirtualPf, rtnl: Rtnl) -> Link:
    """Return the uplink; KernelError when it is unusable, or when the name of a port or IFB is in use."""
    links = {link.name: link for link in rtnl.links()}
    for name in (*map(pf.port_name, range(pf.vfs)), *_ifb_names(pf)):
        if name in links:
            msg = f"virtual PF {pf.name}: the name {name} is taken in this namespace"
            raise KernelError(msg)
    uplink = links.get(pf.uplink)
    if uplink is None:
        msg = f"virtual PF {pf.name}: there is no uplink {pf.uplink}"
        raise KernelError(msg)
    if uplink.master:
        msg = f"virtual PF {pf.name}: uplink {pf.uplink} is a port of something else (link #{uplink.master})"
        raise KernelError(msg)
    return uplink


def _create_bridge(pf: VirtualPf, rtnl: Rtnl) -> VirtualPf:
    """Create the bridge; returns the PF, with VLANs where the kernel's bridges support them."""
    operation = f"create bridge {pf.name}"
    try:
        rtnl.create(operation, named(pf.name), with_mac(pf.mac), vlan_bridge(NO_VLAN))
    except NetlinkError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        rtnl.create(operation, named(pf.name), with_mac(pf.mac), of_kind("bridge"))
        return replace(pf, vlans=False)
    return replace(pf, vlans=True)


def _build(pf: VirtualPf, rtnl: Rtnl, uplink: Link) -> None:
    bridge = rtnl.link(pf.name)
    for name in _ifb_names(pf):
        rtnl.create(f"create {name}", named(name), u32(_TX_QUEUE_LENGTH, _SCHEDULER_QUEUE), of_kind("ifb"))
    scheduler, sink = rtnl.link(pf.scheduler_name), rtnl.link(pf.sink_name)
    if bridge is None or scheduler is None or sink is None:
        msg = f"virtual PF {pf.name}: its links disappeared during creation"
        raise KernelError(msg)
    Shaper(rtnl).build(pf, scheduler.index, sink.index)
    for link in (scheduler, sink, bridge):
        rtnl.change(link.index, f"{link.name}: no address of its own", without_link_local())
    for link in (scheduler, sink):
        rtnl.change(link.index, f"{link.name}: up", up=True)
    rtnl.change(uplink.index, f"{uplink.name}: no address of its own", without_link_local())
    rtnl.change(uplink.index, f"{uplink.name}: port of {pf.name}", enslaved_to(bridge.index), up=True)
    for index in range(pf.vfs):
        home = VfHome(name=pf.vf_name(index), mac=pf.vf_mac(index), mtu=DEFAULT_MTU)
        _create_vf(pf, index, home, rtnl, bridge)
    # Last of all: only with its alias is this a PF for anyone who looks.
    rtnl.change(bridge.index, f"{pf.name}: alias, up", with_alias(alias_of(pf)), up=True)


def _create_vf(pf: VirtualPf, index: int, home: VfHome, rtnl: Rtnl, bridge: Link) -> Link:
    port = pf.port_name(index)
    peer = nested(_VETH_PEER, bytes(16), named(home.name), with_mac(home.mac), with_mtu(home.mtu))
    veth = of_kind("veth", nested(_INFO_DATA, peer))
    operation = f"create VF {index} of {pf.name}"
    rtnl.create(operation, named(port), enslaved_to(bridge.index), with_mtu(home.mtu), veth)
    created = rtnl.link(port)
    if created is None:
        msg = f"virtual PF {pf.name}: port {port} disappeared during creation"
        raise KernelError(msg)
    Shaper(rtnl).police(pf, index, created.index)
    rtnl.change(created.index, f"{port}: no address of its own", without_link_local())
    rtnl.change(created.index, f"{port}: up", up=True)
    return created
