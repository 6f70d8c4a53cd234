"""Make and destroy virtual PFs, and make VFs anew that died with a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.step import VfHome
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink import nested, u32
from k8s_rdma.linux.rtnl import (
    Rtnl,
    enslaved_to,
    named,
    of_kind,
    with_alias,
    with_mac,
    with_mtu,
    without_link_local,
)
from k8s_rdma.sim.virtual.shaper import Shaper
from k8s_rdma.sim.virtual.topology import alias_of, check, pf_of

if TYPE_CHECKING:
    from k8s_rdma.linux.rtnl import Link
    from k8s_rdma.sim.virtual.topology import VirtualPf

DEFAULT_MTU = 1500
_INFO_DATA = 2
_VETH_PEER = 1
_TX_QUEUE_LENGTH = 13
_SCHEDULER_QUEUE = 1000
"""An IFB's default of 32 packets is also the default limit of queues in it."""


def create_pf(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Make a PF with its VFs around an uplink that exists; holds when it is there with these values.

    KernelError when its name is taken by something else, also by a PF of other values.
    """
    check(pf)
    existing = rtnl.link(pf.name)
    if existing is not None:
        if pf_of(existing) != pf:
            msg = f"virtual PF {pf.name}: that name is taken in this namespace by something else"
            raise KernelError(msg)
        return
    uplink = rtnl.link(pf.uplink)
    if uplink is None:
        msg = f"virtual PF {pf.name}: there is no uplink {pf.uplink}"
        raise KernelError(msg)
    try:
        _build(pf, rtnl, uplink)
    except KernelError:
        destroy_pf(pf, rtnl)
        raise


def destroy_pf(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Take a PF down with all VFs, wherever they are; the uplink stays. Holds when it is gone."""
    names = [*map(pf.port_name, range(pf.vfs)), pf.scheduler_name, pf.sink_name, pf.name]
    for name in names:
        link = rtnl.link(name)
        if link is not None:
            rtnl.delete(link.index, f"destroy {name}")


def revive_vf(pf: VirtualPf, index: int, rtnl: Rtnl, home: VfHome | None = None) -> None:
    """Make a VF anew, at home and down; its rates are where they were. What is left of it goes first."""
    remains = rtnl.link(pf.port_name(index))
    if remains is not None:
        rtnl.delete(remains.index, f"destroy {pf.port_name(index)}")
    bridge = rtnl.link(pf.name)
    if bridge is None:
        msg = f"virtual PF {pf.name}: gone"
        raise KernelError(msg)
    home = home or VfHome(name=pf.vf_name(index), mac=pf.vf_mac(index), mtu=DEFAULT_MTU)
    _create_vf(pf, index, home, rtnl, bridge)


def _build(pf: VirtualPf, rtnl: Rtnl, uplink: Link) -> None:
    # The alias comes last: only with it is this a PF for anyone who looks.
    rtnl.create(f"create bridge {pf.name}", named(pf.name), of_kind("bridge"))
    bridge = rtnl.link(pf.name)
    for name in (pf.scheduler_name, pf.sink_name):
        rtnl.create(f"create {name}", named(name), u32(_TX_QUEUE_LENGTH, _SCHEDULER_QUEUE), of_kind("ifb"))
    scheduler, sink = rtnl.link(pf.scheduler_name), rtnl.link(pf.sink_name)
    if bridge is None or scheduler is None or sink is None:
        msg = f"virtual PF {pf.name}: its links vanished while it was made"
        raise KernelError(msg)
    Shaper(rtnl).build(pf, scheduler.index, sink.index)
    for link in (bridge, scheduler, sink):
        rtnl.change(link.index, f"{link.name}: no address of its own", without_link_local())
        rtnl.change(link.index, f"{link.name}: up", up=True)
    rtnl.change(uplink.index, f"{uplink.name}: no address of its own", without_link_local())
    rtnl.change(uplink.index, f"{uplink.name}: port of {pf.name}", enslaved_to(bridge.index), up=True)
    for index in range(pf.vfs):
        home = VfHome(name=pf.vf_name(index), mac=pf.vf_mac(index), mtu=DEFAULT_MTU)
        _create_vf(pf, index, home, rtnl, bridge)
    rtnl.change(bridge.index, f"{pf.name}: alias", with_alias(alias_of(pf)))


def _create_vf(pf: VirtualPf, index: int, home: VfHome, rtnl: Rtnl, bridge: Link) -> None:
    port = pf.port_name(index)
    peer = nested(_VETH_PEER, bytes(16), named(home.name), with_mac(home.mac), with_mtu(home.mtu))
    veth = of_kind("veth", nested(_INFO_DATA, peer))
    rtnl.create(f"create VF {index} of {pf.name}", named(port), enslaved_to(bridge.index), veth)
    made = rtnl.link(port)
    if made is None:
        msg = f"virtual PF {pf.name}: port {port} vanished while it was made"
        raise KernelError(msg)
    Shaper(rtnl).police(pf, index, made.index)
    rtnl.change(made.index, f"{port}: no address of its own", without_link_local())
    rtnl.change(made.index, f"{port}: up", up=True)
