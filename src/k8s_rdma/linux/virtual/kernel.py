"""`core.kernel.Kernel` on the virtual PFs of the current network namespace.

It moves VFs to pods' namespaces and back.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from k8s_rdma.core.kernel import (
    Hardware,
    LocatedVf,
    PauseFrames,
    PfState,
    PodInterface,
    Unreadable,
    Vf,
    VfCounters,
)
from k8s_rdma.core.netdev_attributes import Attributes, faults
from k8s_rdma.core.step import (
    BindVf,
    BringHome,
    CapInterface,
    CleanVf,
    ClearInterface,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    NetnsRef,
    ProgramVfs,
    SetRates,
    Step,
    UnbindVf,
    VfConfig,
    VfHome,
    VfRate,
    VfRef,
    Vlan,
)
from k8s_rdma.core.types import VIRTUAL_DRIVER, LinkState, PciAddress, VlanProto
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import CLASSES, LINKS, Changes
from k8s_rdma.linux.netlink.rtnl import (
    Link,
    Rtnl,
    counters_of_all,
    in_namespace,
    named,
    with_alias,
    with_mac,
    with_mtu,
)
from k8s_rdma.linux.netns import Namespaces, current_namespace
from k8s_rdma.linux.pod_interface import (
    CapAbility,
    announce,
    cap_interface,
    change_interface,
    interfaces_in,
    located_vfs,
    make_bare,
)
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from k8s_rdma.linux.virtual.known_links import KnownLinks, LinkReports, beside
from k8s_rdma.linux.virtual.pf import (
    DEFAULT_MTU,
    Settings,
    Shaper,
    VfRateCache,
    revive_vf,
    supported_settings,
)
from k8s_rdma.linux.virtual.topology import (
    VirtualPf,
    pf_of,
    pfs_among,
    port_alias_of,
    require,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


MIN_MTU = 68
"""The kernel's ETH_MIN_MTU, `include/uapi/linux/if_ether.h`."""
VF_DRIVER = "veth"

REVIVALS_AT_MOST = 256
"""Most rounds of recreation in one observation. Each recreates all VFs missing by then, so that this many
would need as many namespaces to end one after the other meanwhile."""
_LINK_STATES = {LinkState.AUTO: "Follow", LinkState.ENABLE: "Up", LinkState.DISABLE: "Down"}

VfParts = tuple[VfRate, Link, Link | None]
"""A VF's rates, its port, and its netdev if that is at home."""


class VirtualSriov:
    """Implements `core.kernel.Kernel`; made and used on one thread, which must stay in its namespace."""

    def __init__(self, namespaces: Namespaces, rtnl: Rtnl | None = None) -> None:
        """Work with the virtual PFs that exist in this namespace.

        rtnl: a socket in this namespace, closed with the kernel.
        """
        self._namespaces = namespaces
        self._open = ExitStack()
        self._host = current_namespace()
        self._open.callback(os.close, self._host)
        self._rtnl = self._open.enter_context(rtnl or Rtnl())
        self._caps = CapAbility(self._rtnl.socket)
        shaper = Shaper(self._rtnl)
        self._rates, self._settings = VfRateCache(shaper), Settings(self._rtnl, shaper)
        self._moves = Moves(self._rtnl, self._host, namespaces, self._pf)
        self._attributes = self._open.enter_context(NetdevAttributes(self._rtnl))
        self._links = self._open.enter_context(KnownLinks(self._rtnl))
        by_others = beside(self._rtnl.socket.port, CLASSES)
        self._classes = self._open.enter_context(LinkReports(by_others, "classes"))
        self._pfs = pfs_among(self._links.read())
        self._seen_vfs: dict[VirtualPf, dict[int, SeenVf]] = {}
        self._watches: list[Changes] = []

    def observe(self) -> Hardware:
        """Observe the hardware. VFs that ended with a pod's namespace are recreated first."""
        links, unreadable = self._links_with_all_vfs()
        self._rates.forget(self._classes.links())
        states = [self._observe_pf(pf, links, unreadable) for pf in self._pfs.values()]
        observed = Hardware(pfs=tuple(filter(None, states)), unreadable=tuple(unreadable))
        return self._caps.shown_in(observed)

    def apply(self, step: Step) -> Attributes | None:
        """Apply the step; a repeated call has no further effect."""
        if isinstance(step, BringHome):
            return self._bring_home(step)
        self._apply(step)
        return None

    def _apply(self, step: Step) -> None:
        match step:
            case SetRates():
                self._set_rates(step)
            case GiveVf():
                self._moves.move_to_pod(self._cached_pf(step.vf), step)
            case CleanVf():
                self._clean(step)
            case ConfigureVfs():
                self._configure_vfs(step)
            case ProgramVfs():
                self._set_rates(step.rates)
                self._configure_vfs(step.settings)
            case BindVf() | UnbindVf():
                self._require_no_driver(step)
            case ConfigureInterface() | ClearInterface():
                change_interface(step, self._namespaces)
            case CapInterface():
                cap_interface(step, self._namespaces)

    def attributes(self, vf: VfRef) -> Attributes:
        """Return the attributes of a VF's netdev at home, without those that only sysfs shows."""
        port = self._moves.port(self._cached_pf(vf), vf.index)
        return self._attributes_at_home(vf, self._moves.require_at_home(port, vf))

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Report whether exactly this namespace still exists."""
        return self._namespaces.alive(netns)

    def interfaces(self, netns: NetnsRef) -> Mapping[str, PodInterface]:
        """Return the interfaces of a namespace."""
        return interfaces_in(netns, self._namespaces)

    def located(self, netns: NetnsRef) -> Mapping[PciAddress, LocatedVf]:
        """Return the VFs whose ports lead into a namespace."""
        with self._namespaces.existing(netns) as namespace, Rtnl(namespace) as rtnl:
            return located_vfs(self._vfs_in(namespace, rtnl), rtnl, f"namespace {netns.path}")

    def announce(self, netns: NetnsRef, addresses: Mapping[str, Collection[str]]) -> None:
        """Announce an interface's addresses on its network."""
        with self._namespaces.existing(netns) as namespace:
            announce(addresses, namespace)

    def sample(self, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:  # noqa: ARG002  all count here
        """Read the VFs' counters from their ports, which stay in this namespace, with directions swapped."""
        links = {link.name: link for link in self._rtnl.links()}
        counted = counters_of_all(self._rtnl.socket)
        return tuple(
            VfCounters(vf=VfRef(pf.pci, index), **asdict(counted[port.index].opposite))
            for pf in pfs_among(links.values()).values()
            for index in range(pf.vfs)
            if (port := links.get(pf.port_name(index))) and port.index in counted
        )

    def pause_frames(self, pf: str) -> Mapping[int, PauseFrames]:  # noqa: ARG002  of no virtual one
        """Return an empty mapping: bridges have no priority flow control."""
        return {}

    def reset(self, vf: VfRef) -> None:
        """Reset the settings and rates of a VF in the host's namespace."""
        self._moves.reset(self._pf(vf), vf)
        configs = (VfConfig(index=vf.index, vlan=Vlan(0)),)
        self._configure_vfs(ConfigureVfs(pf=vf.pf, configs=configs, previous=configs))
        self._set_rates(SetRates(pf=vf.pf, rates=(VfRate(vf.index),), previous=(VfRate(vf.index),)))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from a thread of its own when links of this namespace changed."""
        events = Changes(changed, (LINKS,))
        self._watches.append(events)

        def end() -> None:
            if events in self._watches:
                self._watches.remove(events)
                events.close()

        return end

    def close(self) -> None:
        """Release sockets and threads; a second call has no effect."""
        while self._watches:
            self._watches.pop().close()
        self._open.close()

    # Observation

    def _links_with_all_vfs(self) -> tuple[dict[str, Link], list[Unreadable]]:
        """Return the links by name, and the VFs that cannot be recreated.

        The kernel ends namespaces asynchronously (`cleanup_net`, net/core/net_namespace.c), and VFs with
        them, also between two scans; so scans are repeated until no VF is to be recreated.
        """
        for _ in range(REVIVALS_AT_MOST):
            uplinks = {pf.uplink for pf in self._pfs.values()}
            links = {link.name: link for link in self._links.read(uplinks)}
            self._pfs = pfs_among(links.values())
            unreadable: list[Unreadable] = []
            if not self._revive_dead(links, unreadable):
                break
        return links, unreadable

    def _revive_dead(self, links: Mapping[str, Link], unreadable: list[Unreadable]) -> bool:
        """Recreate VFs that ended with a namespace or whose creation was interrupted; report whether any was.

        The port of a VF whose creation was interrupted is down.
        """
        dead = [
            (pf, index)
            for pf in self._pfs.values()
            for index in range(pf.vfs)
            if not _whole(links.get(pf.port_name(index)))
        ]
        for pf, index in dead:
            try:
                revive_vf(pf, index, self._rtnl)
            except KernelError as error:
                unreadable.append(
                    Unreadable(f"VF {index} of PF {pf.pci}", f"cannot be recreated: {error}", pf.pci)
                )
        return len(dead) > len(unreadable)

    def _observe_pf(
        self, pf: VirtualPf, links: Mapping[str, Link], unreadable: list[Unreadable]
    ) -> PfState | None:
        """Observe a PF; None, with an entry in `unreadable`, when part of it is missing."""
        uplink, scheduler = links.get(pf.uplink), links.get(pf.scheduler_name)
        ports = [links.get(pf.port_name(index)) for index in range(pf.vfs)]
        if scheduler is None or None in ports:
            unreadable.append(
                Unreadable(f"PF {pf.pci}", f"links that {pf.name} is made of are missing", pf.pci)
            )
            return None
        try:
            rates = self._rates.read_unless_known(pf, scheduler.index)
        except KernelError as error:
            unreadable.append(Unreadable(f"PF {pf.pci}", f"rates: {error}", pf.pci))
            return None
        by_index = {link.index: link for link in links.values()}
        bridge = links.get(pf.name)
        vfs = {
            index: (rates[index], port, _home_link(port, by_index))
            for index, port in enumerate(ports)
            if port is not None
        }
        return PfState(
            name=pf.name,
            pci=pf.pci,
            link_mbps=pf.link_mbps if _connects(uplink, bridge) else None,
            driver=VIRTUAL_DRIVER,
            mtu=uplink.mtu if uplink else DEFAULT_MTU,
            supported_settings=supported_settings(pf),
            mac=bridge.mac if bridge else "",
            vfs=self._observe_vfs(pf, vfs),
        )

    def _observe_vfs(self, pf: VirtualPf, found: Mapping[int, VfParts]) -> tuple[Vf, ...]:
        """Return the VFs of a PF; the same objects as before for those whose parts are."""
        earlier_vfs = self._seen_vfs.get(pf, {})
        vfs = {
            index: vf
            if (vf := earlier_vfs.get(index)) and vf.parts == parts
            else SeenVf(parts, _vf(pf, index, *parts))
            for index, parts in found.items()
        }
        self._seen_vfs[pf] = vfs
        return tuple(vf.state for vf in vfs.values())

    # Steps

    def _set_rates(self, step: SetRates) -> None:
        if step.rates:
            pf = self._pf(VfRef(step.pf, step.rates[0].index))
            self._rates.set(pf, self._named(pf.scheduler_name).index, step)

    def _configure_vfs(self, step: ConfigureVfs) -> None:
        if step.configs:
            self._settings.configure(self._pf(VfRef(step.pf, step.configs[0].index)), step)

    def _require_no_driver(self, step: BindVf | UnbindVf) -> None:
        self._pf(step.vf)
        if isinstance(step, BindVf):
            msg = f"{_describe(step.vf)}: {step.driver}: it is no PCI function, only the kernel drives it"
            raise KernelError(msg)

    def _clean(self, step: CleanVf) -> None:
        port = self._moves.port(self._cached_pf(step.vf), step.vf.index)
        if port.peer_elsewhere is None and faults(
            self._attributes_at_home(step.vf, port.peer), step.home.attributes
        ):
            self._renew(step)

    def _bring_home(self, step: BringHome) -> Attributes | None:
        netdev = self._moves.bring_home(self._cached_pf(step.vf), step)
        if netdev is None:
            return None
        home, found = step.home.attributes, self._attributes_at_home(step.vf, netdev)
        if home is None or faults(found, home) or self._moves.has_links_above(netdev, step):
            self._renew(step)
            return None
        return found

    def _attributes_at_home(self, vf: VfRef, netdev: int) -> Attributes:
        return self._attributes.read(netdev, f"{_describe(vf)}: its netdev")

    def _renew(self, step: CleanVf | BringHome) -> None:
        """Recreate a VF, with the settings that it has; its rates are not its own, and stay."""
        pf = self._pf(step.vf)
        state = state_of(self._named(pf.port_name(step.vf.index)))
        revive_vf(pf, step.vf.index, self._rtnl, step.home)
        config = VfConfig(
            index=step.vf.index,
            mac=pf.mac_of(step.vf.index, state),
            vlan=Vlan(state.vlan) if pf.vlans else None,
            trust=state.trust,
            spoof_check=state.spoof_check,
            link_state=state.link_state,
        )
        self._configure_vfs(ConfigureVfs(pf=pf.pci, configs=(config,), previous=(config,)))

    # Present objects

    def _vfs_in(self, namespace: int, rtnl: Rtnl) -> dict[PciAddress, Link]:
        """Return the VFs in a namespace (a descriptor, and a socket there), with their links there."""
        links = {link.name: link for link in self._rtnl.links()}
        number = self._rtnl.number_of(namespace)
        ends = {
            port.peer: pf.vf_pci(index)
            for pf in pfs_among(links.values()).values()
            for index in range(pf.vfs)
            if (port := links.get(pf.port_name(index))) and port.peer_elsewhere == number is not None
        }
        return {ends[link.index]: link for link in rtnl.links() if link.index in ends}

    def _cached_pf(self, vf: VfRef) -> VirtualPf:
        """Return the PF as last observed, sufficient to find a VF's port by its name."""
        cached = self._pfs.get(vf.pf)
        return cached if cached is not None and vf.index < cached.vfs else self._pf(vf)

    def _pf(self, vf: VfRef) -> VirtualPf:
        cached = self._pfs.get(vf.pf)
        bridge = self._rtnl.link(cached.name) if cached else None
        if bridge is None or pf_of(bridge) != cached:  # never seen, or recreated with other values since
            self._pfs = pfs_among(self._rtnl.links())
        return require(self._pfs, vf)

    def _named(self, name: str) -> Link:
        link = self._rtnl.link(name)
        if link is None:
            msg = f"link {name}: no longer exists"
            raise KernelError(msg)
        return link


class Moves:
    """Applies GiveVf and BringHome steps.

    A VF is identified by its port on the bridge: the port has the index of its other end and this namespace's
    number for the namespace of that end. The pod may change names.
    """

    def __init__(
        self, rtnl: Rtnl, host: int, namespaces: Namespaces, present_pf: Callable[[VfRef], VirtualPf]
    ) -> None:
        """Work with `rtnl` and `host` (a descriptor), both of the host's namespace.

        present_pf: returns the PF of a VF as it is now; KernelError if there is no such VF.
        """
        self._rtnl = rtnl
        self._host = host
        self._namespaces = namespaces
        self._present_pf = present_pf

    def move_to_pod(self, pf: VirtualPf, step: GiveVf) -> None:
        """Move a VF into a namespace under a name; no change when it is there."""
        port = self.port(pf, step.vf.index)
        self._check_mtu(pf, step)
        with self._namespaces.existing(step.netns) as namespace:
            if step.mtu not in (None, port.mtu):
                self._rtnl.change(port.index, f"{port.name}: MTU {step.mtu}", with_mtu(step.mtu or 0))
            operation = f"{_describe_move(step)}: move to {step.netns.path} as {step.ifname}"
            if port.peer_elsewhere is not None:
                self._rename(port, step, namespace)
                return
            # A message that moves and renames would move first, and only then find the name taken.
            with Rtnl(namespace) as pod_rtnl:
                pod_rtnl.require_free(step.ifname, operation)
            self._rtnl.delete_altnames(self._other_end(port), operation)
            self._record_namespace(port, step.netns.inode)
            pod_settings = _pod_settings(replace(step, mac=step.mac or step.home.mac))
            self._rtnl.change(
                port.peer, operation, in_namespace(namespace), named(step.ifname), *pod_settings
            )

    def bring_home(self, pf: VirtualPf, step: BringHome) -> int | None:
        """Move a VF back to the host's namespace and restore it, unless it serves another namespace.

        pf: as last observed, sufficient to find the VF's port by its name.
        Returns the index of its netdev if that is home, and the same as before.
        """
        port = self._rtnl.link(pf.port_name(step.vf.index))
        if port is None:
            self._revive(step)
            return None
        if port.peer_elsewhere is None:
            return self._restore(port, step.home)
        holder = state_of(port).owner_inode
        is_holder = holder == step.netns.inode
        if holder and not is_holder:
            return None
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is not None and port.peer_elsewhere == self._rtnl.number_of(namespace):
                self._fetch(port, step, namespace)
                return self._restore(self.port(pf, step.vf.index), step.home)
            if is_holder:
                # Its namespace has ended, or the pod moved it to another one.
                self._revive(step)
        return None

    def has_links_above(self, netdev: int, step: BringHome) -> bool:
        """Report whether the step's namespace has links on a VF's netdev, which is home; they would stay.

        netdev: its index.
        """
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is None:
                return False
            with Rtnl(namespace) as pod_rtnl:
                return bool(pod_rtnl.above(netdev, self._host))

    def require_at_home(self, port: Link, vf: VfRef) -> int:
        """Return the index of a VF's netdev; KernelError when it is not in the host's namespace."""
        if port.peer_elsewhere is not None:
            msg = f"VF {vf.index} of PF {vf.pf}: its netdev is not in the host's namespace"
            raise KernelError(msg)
        return port.peer

    def reset(self, pf: VirtualPf, vf: VfRef) -> None:
        """Take a VF in the host's namespace down and delete its addresses; else KernelError."""
        port = self.port(pf, vf.index)
        self.require_at_home(port, vf)
        found = self._other_end(port)
        make_bare(found, self._rtnl, f"{found.name}: reset")

    def _rename(self, port: Link, step: GiveVf, namespace: int) -> None:
        """Set the name of a VF in the pod's namespace; KernelError when it is in another namespace."""
        if port.peer_elsewhere != self._rtnl.number_of(namespace):
            msg = f"{_describe_move(step)}: expected in {step.netns.path}, but it is in another namespace"
            raise KernelError(msg)
        with Rtnl(namespace) as pod_rtnl:
            found = pod_rtnl.link_at(port.peer)
            if found is None or found.name != step.ifname:
                operation = f"{_describe_move(step)}: rename to {step.ifname} in {step.netns.path}"
                if found is not None:
                    pod_rtnl.delete_altnames(found, operation)
                pod_rtnl.require_free(step.ifname, operation)
                pod_rtnl.change(
                    port.peer, f"{operation}: down", up=False
                )  # Linux before 6.2 renames no other
                pod_rtnl.change(port.peer, operation, named(step.ifname))
            if found is None or (step.mac or found.mac, step.mtu or found.mtu) != (found.mac, found.mtu):
                pod_rtnl.change(
                    port.peer,
                    f"{_describe_move(step)}: MAC and MTU in {step.netns.path}",
                    *_pod_settings(step),
                )

    def _fetch(self, port: Link, step: BringHome, namespace: int) -> None:
        """Move a VF from a pod's namespace to the host's."""
        operation = f"{_describe_move(step)}: move home from {step.netns.path} as {step.home.name}"
        self._rtnl.require_free(step.home.name, operation)
        with Rtnl(namespace) as pod_rtnl:
            link = pod_rtnl.link_at(port.peer)
            if link is not None:
                pod_rtnl.delete_altnames(link, operation)
            pod_rtnl.change(port.peer, operation, in_namespace(self._host), named(step.home.name))

    def _restore(self, port: Link, home: VfHome) -> int:
        """Restore name, MAC and MTU of a VF in the host's namespace, take it down and mark it as unused.

        Returns the index of its netdev.
        """
        found = self._other_end(port)
        operation = f"{home.name}: as it was"
        make_bare(found, self._rtnl, operation)
        self._rtnl.delete_altnames(found, operation)
        if found.name != home.name:
            self._rtnl.require_free(home.name, operation)
        if (found.name, found.mac, found.mtu) != (home.name, home.mac, home.mtu):
            self._rtnl.change(
                found.index, operation, named(home.name), with_mac(home.mac), with_mtu(home.mtu)
            )
        if port.mtu != home.mtu:
            self._rtnl.change(port.index, f"{port.name}: MTU {home.mtu}", with_mtu(home.mtu))
        if state_of(port).owner_inode:
            self._record_namespace(port, 0)
        return found.index

    def _record_namespace(self, port: Link, inode: int) -> None:
        state = msgspec.structs.replace(state_of(port), owner_inode=inode)
        self._rtnl.change(port.index, f"{port.name}: alias", with_alias(port_alias_of(state)))

    def _check_mtu(self, pf: VirtualPf, step: GiveVf) -> None:
        if step.mtu is None:
            return
        uplink = self._rtnl.link(pf.uplink)
        limit = uplink.mtu if uplink else 0
        if not MIN_MTU <= step.mtu <= limit:
            msg = f"{_describe_move(step)}: MTU {step.mtu}: it takes {MIN_MTU} to {limit}, its uplink's"
            raise KernelError(msg)

    def _revive(self, step: BringHome) -> None:
        self._rtnl.require_free(step.home.name, f"{_describe_move(step)}: recreated as {step.home.name}")
        revive_vf(self._present_pf(step.vf), step.vf.index, self._rtnl, step.home)

    def _other_end(self, port: Link) -> Link:
        found = self._rtnl.link_at(port.peer)
        if found is None:
            msg = f"{port.name}: its other end has just disappeared"
            raise KernelError(msg)
        return found

    def port(self, pf: VirtualPf, index: int) -> Link:
        """Return the port of a VF; KernelError when there is no such VF now."""
        link = self._rtnl.link(pf.port_name(index))
        if link is None:
            msg = f"VF {index} of PF {pf.pci}: ended with a namespace and is not recreated yet"
            raise KernelError(msg)
        return link


def _pod_settings(step: GiveVf) -> tuple[bytes, ...]:
    """Return the attributes of a VF in the pod besides its name."""
    mac = () if step.mac is None else (with_mac(step.mac),)
    return mac if step.mtu is None else (*mac, with_mtu(step.mtu))


def _describe_move(step: GiveVf | BringHome) -> str:
    return f"VF {step.vf.index} of PF {step.vf.pf}"


def _whole(port: Link | None) -> bool:
    return port is not None and (
        port.is_up or port.peer_elsewhere is not None or state_of(port).link_state is LinkState.DISABLE
    )


def _connects(uplink: Link | None, bridge: Link | None) -> bool:
    """Report whether an uplink has a carrier and is its bridge's port."""
    return (
        uplink is not None
        and uplink.carrier
        and bridge is not None
        and bridge.is_up
        and uplink.master == bridge.index
    )


def _home_link(port: Link, links: Mapping[int, Link]) -> Link | None:
    return links.get(port.peer) if port.peer_elsewhere is None else None


class SeenVf(NamedTuple):
    """A VF as it was observed, and the parts that say so."""

    parts: VfParts
    state: Vf


def _vf(pf: VirtualPf, index: int, rate: VfRate, port: Link, netdev: Link | None) -> Vf:
    state = state_of(port)
    mac = pf.mac_of(index, state)
    return Vf(
        index=index,
        pci=pf.vf_pci(index),
        netdev=netdev.name if netdev else None,
        mac=mac,
        mtu=netdev.mtu if netdev else DEFAULT_MTU,
        min_tx_rate_mbps=rate.min_tx_rate_mbps,
        max_tx_rate_mbps=rate.max_tx_rate_mbps,
        vlan=state.vlan,
        vlan_proto=VlanProto.DOT1Q if state.vlan else "N/A",
        spoof_check="ON" if state.spoof_check else "OFF",
        trust="ON" if state.trust else "OFF",
        link_state=_LINK_STATES[state.link_state],
        admin_mac=mac,
        driver=VF_DRIVER,
    )


def _describe(vf: VfRef) -> str:
    return f"VF {vf.index} of PF {vf.pf}"
