"""`core.kernel.Kernel` on virtual PFs of the network namespace where it is made."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, PfState, Unreadable, Vf
from k8s_rdma.core.step import (
    BringHome,
    ClearInterface,
    ConfigureInterface,
    GiveVf,
    SetRates,
    VfHome,
    VfRate,
    VfRef,
)
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.link_events import LinkEvents
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.pod_interface import clear, configure
from k8s_rdma.linux.rtnl import Rtnl, in_namespace, named, with_alias, with_mac, with_mtu
from k8s_rdma.sim.virtual.pf import revive_vf
from k8s_rdma.sim.virtual.shaper import Shaper
from k8s_rdma.sim.virtual.topology import VirtualPf, pfs_among, require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.core.step import NetnsRef, Step
    from k8s_rdma.linux.netns import Namespaces
    from k8s_rdma.linux.rtnl import Link

DRIVER = "virtual"


class VirtualSriov:
    """Implements `core.kernel.Kernel`; made and used on one thread, which must stay in its namespace."""

    def __init__(self, namespaces: Namespaces) -> None:
        """Find the virtual PFs that are here; none is made."""
        self._namespaces = namespaces
        self._open = ExitStack()
        self._host = current_namespace()
        self._open.callback(os.close, self._host)
        self._rtnl = self._open.enter_context(Rtnl())
        self._shaper = Shaper(self._rtnl)
        self._pfs = pfs_among(self._rtnl.links())
        self._watches: list[LinkEvents] = []

    def observe(self) -> Hardware:
        """Everything there is now. VFs that died with a pod's namespace are made anew first."""
        links = {link.name: link for link in self._rtnl.links()}
        self._pfs = pfs_among(links.values())
        if self._revive_dead(links):
            links = {link.name: link for link in self._rtnl.links()}
        unreadable: list[Unreadable] = []
        states = [self._observe_pf(pf, links, unreadable) for pf in self._pfs.values()]
        return Hardware(pfs=tuple(filter(None, states)), unreadable=tuple(unreadable))

    def apply(self, step: Step) -> None:
        """Make the step hold."""
        match step:
            case SetRates():
                self._set_rates(step)
            case GiveVf():
                self._give(step)
            case BringHome():
                self._bring_home(step)
            case ConfigureInterface():
                with self._namespaces.opened(step.netns) as namespace:
                    configure(step, _alive(namespace, step.netns))
            case ClearInterface():
                with self._namespaces.opened(step.netns) as namespace:
                    if namespace is not None:
                        clear(step, namespace)

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Whether that very namespace still exists."""
        return self._namespaces.alive(netns)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from a thread of the watch's own when links of this namespace changed."""
        events = LinkEvents(changed)
        self._watches.append(events)

        def end() -> None:
            if events in self._watches:
                self._watches.remove(events)
                events.close()

        return end

    def close(self) -> None:
        """Release sockets and threads; once more does nothing."""
        while self._watches:
            self._watches.pop().close()
        self._open.close()

    # Observation

    def _revive_dead(self, links: Mapping[str, Link]) -> bool:
        dead = [
            (pf, index)
            for pf in self._pfs.values()
            for index in range(pf.vfs)
            if pf.port_name(index) not in links
        ]
        for pf, index in dead:
            revive_vf(pf, index, self._rtnl)
        return bool(dead)

    def _observe_pf(
        self, pf: VirtualPf, links: Mapping[str, Link], unreadable: list[Unreadable]
    ) -> PfState | None:
        """The PF; None, and said why, when part of it is missing."""
        uplink, scheduler = links.get(pf.uplink), links.get(pf.scheduler_name)
        ports = [links.get(pf.port_name(index)) for index in range(pf.vfs)]
        if scheduler is None or None in ports:
            unreadable.append(Unreadable(f"PF {pf.name}", "links that it is made of are missing"))
            return None
        rates = self._shaper.rates(pf, scheduler.index)
        here = {link.index: link for link in links.values()}
        return PfState(
            name=pf.name,
            pci=pf.pci,
            link_mbps=pf.link_mbps if uplink is not None and uplink.carrier else None,
            driver=DRIVER,
            vfs=tuple(
                _vf(pf, index, rates.get(index, VfRate(index)), _at_home(port, here))
                for index, port in enumerate(ports)
                if port is not None
            ),
        )

    # Steps

    def _set_rates(self, step: SetRates) -> None:
        pf = self._pf(VfRef(step.pf, step.rates[0].index))
        scheduler = self._named(pf.scheduler_name)
        before = self._shaper.rates(pf, scheduler.index)
        _check_rates(pf, step, before)
        for rate in step.rates:
            if before.get(rate.index) != rate:
                self._shaper.set_rate(pf, scheduler.index, rate)
        after = self._shaper.rates(pf, scheduler.index)
        for rate in step.rates:
            if after.get(rate.index) != rate:
                msg = f"{_words(VfRef(step.pf, rate.index))}: read back {after.get(rate.index)}, set {rate}"
                raise KernelError(msg)

    def _give(self, step: GiveVf) -> None:
        port = self._port(step.vf)
        with self._namespaces.opened(step.netns) as found:
            namespace = _alive(found, step.netns)
            if port.alias and port.alias != str(step.netns.inode):
                msg = f"{_words(step.vf)}: cannot be given to {step.netns.path}: it is in another namespace"
                raise KernelError(msg)
            if _holds(port, step, namespace):
                return
            self._refuse_taken(namespace, step)
            self._rtnl.change(port.index, f"{port.name}: alias", with_alias(str(step.netns.inode)))
            self._rtnl.change(
                port.peer,
                f"{_words(step.vf)}: move to {step.netns.path} as {step.ifname}",
                in_namespace(namespace),
                named(step.ifname),
            )

    def _refuse_taken(self, namespace: int, step: GiveVf) -> None:
        """A message that moves and renames would move first, and only then find the name taken."""
        with Rtnl(namespace) as there:
            if there.link(step.ifname) is not None:
                msg = (
                    f"{_words(step.vf)}: cannot become {step.ifname} in {step.netns.path}: "
                    "that name is taken there"
                )
                raise KernelError(msg)

    def _bring_home(self, step: BringHome) -> None:
        pf = self._pf(step.vf)
        port = self._rtnl.link(pf.port_name(step.vf.index))
        if port is None:
            revive_vf(pf, step.vf.index, self._rtnl, step.home)
            return
        if port.peer_elsewhere is None:
            self._tidy(port, step.home)
            return
        if port.alias != str(step.netns.inode):
            return  # it serves another namespace meanwhile
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is None or not self._fetch(port, step, namespace):
                revive_vf(pf, step.vf.index, self._rtnl, step.home)
                return
        self._tidy(port, step.home)

    def _fetch(self, port: Link, step: BringHome, namespace: int) -> bool:
        """Move a VF here from a pod's namespace; False when it is not there any more."""
        with Rtnl(namespace) as there:
            found = there.link_at(port.peer)
            if found is None or found.kind != "veth":
                return False
            if self._rtnl.link(step.home.name) is not None:
                msg = f"{_words(step.vf)}: cannot come home: the name {step.home.name} is taken there"
                raise KernelError(msg)
            what = f"{_words(step.vf)}: move home from {step.netns.path}"
            there.change(found.index, what, in_namespace(self._host), named(step.home.name))
        return True

    def _tidy(self, port: Link, home: VfHome) -> None:
        """Make a VF that is here what it was: name, MAC, MTU, down; and say that it is nobody's."""
        now = self._named(port.name)
        found = self._rtnl.link_at(now.peer)
        if found is None:
            msg = f"{port.name}: its other end vanished while it was brought home"
            raise KernelError(msg)
        what = f"{home.name}: as it was"
        if found.up:
            self._rtnl.change(found.index, what, up=False)
        if (found.name, found.mac, found.mtu) != (home.name, home.mac, home.mtu):
            self._rtnl.change(found.index, what, named(home.name), with_mac(home.mac), with_mtu(home.mtu))
        if now.alias:
            self._rtnl.change(now.index, f"{port.name}: alias", with_alias(""))

    # What is there

    def _pf(self, vf: VfRef) -> VirtualPf:
        if vf.pf not in self._pfs:
            self._pfs = pfs_among(self._rtnl.links())
        return require(self._pfs, vf)

    def _port(self, vf: VfRef) -> Link:
        return self._named(self._pf(vf).port_name(vf.index))

    def _named(self, name: str) -> Link:
        link = self._rtnl.link(name)
        if link is None:
            msg = f"link {name}: gone"
            raise KernelError(msg)
        return link


def _holds(port: Link, step: GiveVf, namespace: int) -> bool:
    """Whether the VF is in that namespace under that name; KernelError when it is there under another."""
    if port.peer_elsewhere is None:
        return False
    with Rtnl(namespace) as there:
        found = there.link_at(port.peer)
    if found is None or found.name != step.ifname:
        msg = f"{_words(step.vf)}: is in a namespace already, not as {step.ifname} in {step.netns.path}"
        raise KernelError(msg)
    return True


def _alive(namespace: int | None, netns: NetnsRef) -> int:
    if namespace is None:
        msg = f"namespace {netns.path} (inode {netns.inode}): gone"
        raise KernelError(msg)
    return namespace


def _at_home(port: Link, here: Mapping[int, Link]) -> Link | None:
    return here.get(port.peer) if port.peer_elsewhere is None else None


def _vf(pf: VirtualPf, index: int, rate: VfRate, netdev: Link | None) -> Vf:
    return Vf(
        index=index,
        pci=pf.vf_pci(index),
        netdev=netdev.name if netdev else None,
        mac=netdev.mac if netdev else pf.vf_mac(index),
        mtu=netdev.mtu if netdev else 1500,
        min_tx_rate_mbps=rate.min_tx_rate_mbps,
        max_tx_rate_mbps=rate.max_tx_rate_mbps,
        spoof_check="ON",
    )


def _check_rates(pf: VirtualPf, step: SetRates, before: Mapping[int, VfRate]) -> None:
    """Refuse all rates before the first is set when one cannot be."""
    after = dict(before)
    for rate in step.rates:
        require({pf.pci: pf}, VfRef(step.pf, rate.index))
        if 0 < rate.max_tx_rate_mbps < rate.min_tx_rate_mbps:
            msg = (
                f"{_words(VfRef(step.pf, rate.index))}: min rate {rate.min_tx_rate_mbps} Mb/s"
                f" above its max rate {rate.max_tx_rate_mbps} Mb/s"
            )
            raise KernelError(msg)
        after[rate.index] = rate
    had, has = (sum(rate.min_tx_rate_mbps for rate in rates.values()) for rates in (before, after))
    if has > max(pf.link_mbps, had):
        msg = f"PF {step.pf}: min rates add up to {has} Mb/s, the link has {pf.link_mbps}"
        raise KernelError(msg)


def _words(vf: VfRef) -> str:
    return f"VF {vf.index} of PF {vf.pf}"
