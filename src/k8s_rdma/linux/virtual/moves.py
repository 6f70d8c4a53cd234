"""Moves of VFs to pods' namespaces and back home."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace, named, with_alias, with_mac, with_mtu
from k8s_rdma.linux.pod_interface import make_bare
from k8s_rdma.linux.virtual.pf import revive_vf
from k8s_rdma.linux.virtual.topology import port_alias_of, state_of

if TYPE_CHECKING:
    from k8s_rdma.core.step import BringHome, GiveVf, VfHome, VfRef
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.netns import Namespaces
    from k8s_rdma.linux.virtual.topology import VirtualPf

MIN_MTU = 68
"""ETH_MIN_MTU, `include/uapi/linux/if_ether.h`."""


class Moves:
    """Carries out GiveVf and BringHome.

    A VF is known by its port on the bridge: the port tells the index of its other end and, by the number
    that this namespace has for it, in which namespace that is. Names are the pod's to change.
    """

    def __init__(self, rtnl: Rtnl, host: int, namespaces: Namespaces) -> None:
        """`rtnl` and `host` (a descriptor) are of the namespace where VFs are at home."""
        self._rtnl = rtnl
        self._host = host
        self._namespaces = namespaces

    def move_to_pod(self, pf: VirtualPf, step: GiveVf) -> None:
        """Move a VF into a namespace under a name; holds when it is there."""
        port = self._port(pf, step.vf.index)
        self._check_mtu(pf, step)
        with self._namespaces.existing(step.netns) as namespace:
            if step.mtu not in (None, port.mtu):
                self._rtnl.change(port.index, f"{port.name}: MTU {step.mtu}", with_mtu(step.mtu or 0))
            operation = f"{_describe(step)}: move to {step.netns.path} as {step.ifname}"
            if port.peer_elsewhere is not None:
                self._rename(port, step, namespace)
                return
            # A message that moves and renames would move first, and only then find the name taken.
            with Rtnl(namespace) as pod_rtnl:
                if pod_rtnl.link(step.ifname) is not None:
                    msg = f"{operation}: that name is taken there"
                    raise KernelError(msg)
            self._record_namespace(port, step.netns.inode)
            pod_settings = _pod_settings(replace(step, mac=step.mac or step.home.mac))
            self._rtnl.change(
                port.peer, operation, in_namespace(namespace), named(step.ifname), *pod_settings
            )

    def bring_home(self, pf: VirtualPf, step: BringHome) -> None:
        """Bring a VF home as it was, unless it serves another namespace."""
        port = self._rtnl.link(pf.port_name(step.vf.index))
        if port is None:
            self._revive(pf, step)
            return
        if port.peer_elsewhere is None:
            self._restore(port, step.home)
            return
        holder = state_of(port).given
        is_holder = holder == step.netns.inode
        if holder and not is_holder:
            return
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is not None and port.peer_elsewhere == self._rtnl.number_of(namespace):
                self._fetch(port, step, namespace)
                self._restore(self._port(pf, step.vf.index), step.home)
            elif is_holder:
                # Its namespace is gone, or whoever lives there moved it on.
                self._revive(pf, step)

    def reset(self, pf: VirtualPf, vf: VfRef) -> None:
        """Take a VF that is at home down, and all addresses from it; KernelError when it is not."""
        port = self._port(pf, vf.index)
        if port.peer_elsewhere is not None:
            msg = f"VF {vf.index} of PF {vf.pf}: not in the host's namespace, so it is not reset"
            raise KernelError(msg)
        found = self._other_end(port)
        make_bare(found, self._rtnl, f"{found.name}: reset")

    def _rename(self, port: Link, step: GiveVf, namespace: int) -> None:
        """Make the name hold of a VF that is given already; KernelError when it is in another namespace."""
        if port.peer_elsewhere != self._rtnl.number_of(namespace):
            msg = f"{_describe(step)}: wanted in {step.netns.path}, but it is in another namespace"
            raise KernelError(msg)
        with Rtnl(namespace) as pod_rtnl:
            found = pod_rtnl.link_at(port.peer)
            if found is None or found.name != step.ifname:
                operation = f"{_describe(step)}: rename to {step.ifname} in {step.netns.path}"
                pod_rtnl.change(
                    port.peer, f"{operation}: down", up=False
                )  # Linux before 6.2 renames no other
                pod_rtnl.change(port.peer, operation, named(step.ifname))
            if found is None or (step.mac or found.mac, step.mtu or found.mtu) != (found.mac, found.mtu):
                pod_rtnl.change(
                    port.peer, f"{_describe(step)}: MAC and MTU in {step.netns.path}", *_pod_settings(step)
                )

    def _fetch(self, port: Link, step: BringHome, namespace: int) -> None:
        """Move a VF here from a pod's namespace."""
        operation = f"{_describe(step)}: move home from {step.netns.path} as {step.home.name}"
        self._require_free(step.home.name, operation)
        with Rtnl(namespace) as pod_rtnl:
            pod_rtnl.change(port.peer, operation, in_namespace(self._host), named(step.home.name))

    def _restore(self, port: Link, home: VfHome) -> None:
        """Make a VF that is here what it was: name, MAC, MTU, down; and say that it is nobody's."""
        found = self._other_end(port)
        operation = f"{home.name}: as it was"
        make_bare(found, self._rtnl, operation)
        if found.name != home.name:
            self._require_free(home.name, operation)
        if (found.name, found.mac, found.mtu) != (home.name, home.mac, home.mtu):
            self._rtnl.change(
                found.index, operation, named(home.name), with_mac(home.mac), with_mtu(home.mtu)
            )
        if port.mtu != home.mtu:
            self._rtnl.change(port.index, f"{port.name}: MTU {home.mtu}", with_mtu(home.mtu))
        if state_of(port).given:
            self._record_namespace(port, 0)

    def _record_namespace(self, port: Link, inode: int) -> None:
        state = msgspec.structs.replace(state_of(port), given=inode)
        self._rtnl.change(port.index, f"{port.name}: alias", with_alias(port_alias_of(state)))

    def _check_mtu(self, pf: VirtualPf, step: GiveVf) -> None:
        if step.mtu is None:
            return
        uplink = self._rtnl.link(pf.uplink)
        limit = uplink.mtu if uplink else 0
        if not MIN_MTU <= step.mtu <= limit:
            msg = f"{_describe(step)}: MTU {step.mtu}: it takes {MIN_MTU} to {limit}, its uplink's"
            raise KernelError(msg)

    def _revive(self, pf: VirtualPf, step: BringHome) -> None:
        self._require_free(step.home.name, f"{_describe(step)}: made anew as {step.home.name}")
        revive_vf(pf, step.vf.index, self._rtnl, step.home)

    def _require_free(self, name: str, operation: str) -> None:
        if self._rtnl.link(name) is not None:
            msg = f"{operation}: that name is taken here"
            raise NameTakenError(msg)

    def _other_end(self, port: Link) -> Link:
        found = self._rtnl.link_at(port.peer)
        if found is None:
            msg = f"{port.name}: its other end has just vanished"
            raise KernelError(msg)
        return found

    def _port(self, pf: VirtualPf, index: int) -> Link:
        link = self._rtnl.link(pf.port_name(index))
        if link is None:
            msg = f"VF {index} of PF {pf.pci}: died with a namespace, and is not made anew yet"
            raise KernelError(msg)
        return link


def _pod_settings(step: GiveVf) -> tuple[bytes, ...]:
    """Return the attributes of a VF in the pod besides its name."""
    mac = () if step.mac is None else (with_mac(step.mac),)
    return mac if step.mtu is None else (*mac, with_mtu(step.mtu))


def _describe(step: GiveVf | BringHome) -> str:
    return f"VF {step.vf.index} of PF {step.vf.pf}"
