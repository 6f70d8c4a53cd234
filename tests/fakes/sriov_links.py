"""Netlink of a machine in memory: queries, and settings of its VFs."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from k8s_rdma.core.types import LinkType
from k8s_rdma.linux.netlink.queries import DevlinkRate, RdmaNetlinkDevice, RdmaPort, VfInfo
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.sriov_links import GuidOf, Setting, VfLinkState, VfMac, VfTrust

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fakes.sriov_machine import CardState, SriovMachine, VfState
    from k8s_rdma.core.types import PciAddress

_FIRST_BOND = 1 << 20
_FIRST_VLAN = 1_000_000
_TYPES = {LinkType.ETHERNET: 1, LinkType.INFINIBAND: 32}


class MachineLinks:
    """`linux.netlink.queries.Queries` and `linux.vf.creation.SriovLinks` of a pretended machine."""

    def __init__(self, machine: SriovMachine) -> None:
        """Of this machine."""
        self._machine = machine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def links(self) -> Sequence[Link]:
        """PFs and VFs that have a netdev here."""
        with self._machine.lock:
            return [link for state in self._machine.cards.values() for link in self._links_of(state)]

    def link(self, name: str) -> Link | None:
        """The one of that name."""
        return next((link for link in self.links() if link.name == name), None)

    def addressed_links(self) -> frozenset[int]:
        """Of VFs with an address that is not link-local."""
        with self._machine.lock:
            return frozenset(
                vf.netdev_index
                for state in self._machine.cards.values()
                for vf in state.vfs.values()
                if vf.netdev and not vf.away and any(not address.ip.is_link_local for address in vf.addresses)
            )

    def permanent_address(self, link: Link) -> str:
        """The PF's."""
        return self._pf(link.index).card.mac

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """As the PF has them."""
        with self._machine.lock:
            return [
                VfInfo(
                    index=vf,
                    mac=state.mac,
                    trust=state.trust,
                    link_state=state.link_state,
                    node_guid=state.node_guid,
                    port_guid=state.port_guid,
                )
                for vf, state in self._pf(index).vfs.items()
            ]

    def set_vf(self, pf: Link, vf: int, setting: Setting) -> bool:
        """Only if the card's driver takes such settings. EINVAL for a VF that does not exist."""
        with self._machine.lock:
            state = self._pf(pf.index)
            if setting.kind not in state.card.settings:
                return False
            if vf not in state.vfs:
                operation = f"PF {pf.name}: VF {vf}"
                raise NetlinkError(operation, errno.EINVAL)
            _set(state.vfs[vf], setting)
            return True

    def bring_up(self, link: Link) -> None:
        """A PF."""
        self._machine.bring_up(self._pf(link.index).card.pci)

    def set_mtu(self, link: Link, mtu: int) -> bool:
        """A PF's or a VF's netdev, up to the card's maximum."""
        with self._machine.lock:
            for state in self._machine.cards.values():
                vf = next((vf for vf in state.vfs.values() if vf.netdev_index == link.index), None)
                if vf is None and state.index != link.index:
                    continue
                if mtu > state.card.max_mtu:
                    return False
                (vf or state).mtu = mtu
                return True
        operation = f"{link.name}: MTU {mtu}"
        raise NetlinkError(operation, errno.ENODEV)

    def rename(self, link: Link, name: str) -> None:
        """A VF's netdev; EEXIST when the name is taken."""
        with self._machine.lock:
            if self.link(name):
                operation = f"{link.name}: name {name}"
                raise NetlinkError(operation, errno.EEXIST)
            self._machine.rename(self._by_index(link.index)[1], name)

    def default_route_links(self) -> frozenset[int]:
        """Empty: no card has one."""
        return frozenset()

    def rdma_devices(self) -> Sequence[RdmaNetlinkDevice]:
        """Those of PFs."""
        with self._machine.lock:
            return [
                RdmaNetlinkDevice(
                    index=state.index,
                    name=state.rdma_device,
                    ports=(RdmaPort(number=1, state="ACTIVE", netdev_index=state.index),),
                )
                for state in self._machine.cards.values()
                if state.rdma_device
            ]

    def eswitch_modes(self) -> Mapping[str, str]:
        """No card has an embedded switch."""
        return {}

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """Empty, as without an embedded switch."""
        return {}

    def firmware(self, name: str) -> str:
        """Empty; ENODEV if there is no such link."""
        if self.link(name) is None:
            operation = f"firmware of {name}"
            raise NetlinkError(operation, errno.ENODEV)
        return ""

    def _links_of(self, state: CardState) -> list[Link]:
        pf = [self._pf_link(state)] if state.has_driver else []
        present = [vf for vf in state.vfs.values() if vf.netdev and not vf.away]
        vlans = [self._vlan_link(self._vf_link(state, vf)) for vf in present if vf.has_vlan]
        bond = [self._bond(state)] if state.bond else []
        return [*pf, *(self._vf_link(state, vf) for vf in present), *vlans, *bond]

    def _bond(self, state: CardState) -> Link:
        pf = self._pf_link(state)
        return replace(pf, index=pf.master, name=state.bond, kind="bond", master=0, device="", altnames=())

    def _vlan_link(self, lower: Link) -> Link:
        return replace(
            lower,
            index=_FIRST_VLAN + lower.index,
            name=f"vlan{lower.index}",
            kind="vlan",
            peer=lower.index,
            device="",
        )

    def _device(self, pci: PciAddress) -> str:
        return pci if self._machine.tells_devices else ""

    def _pf_link(self, state: CardState) -> Link:
        return _link(
            state,
            state.index,
            state.card.name,
            state.card.mac,
            device=self._device(state.card.pci),
            is_up=state.up_since is not None,
            carrier=state.has_link(self._machine.now_s),
            master=_FIRST_BOND + state.index if state.bond else 0,
            mtu=state.mtu,
            altnames=state.card.altnames,
        )

    def _vf_link(self, state: CardState, vf: VfState) -> Link:
        return _link(
            state,
            vf.netdev_index,
            vf.netdev,
            vf.netdev_mac,
            device=self._device(vf.pci),
            master=vf.master,
            mtu=vf.mtu,
        )

    def _pf(self, index: int) -> CardState:
        for state in self._machine.cards.values():
            if state.index == index and state.has_driver:
                return state
        operation = f"link #{index}"
        raise NetlinkError(operation, errno.ENODEV)

    def _by_index(self, index: int) -> tuple[CardState, VfState]:
        for state in self._machine.cards.values():
            for vf in state.vfs.values():
                if vf.netdev and vf.netdev_index == index:
                    return state, vf
        operation = f"link #{index}"
        raise NetlinkError(operation, errno.ENODEV)


def _link(
    state: CardState,
    index: int,
    name: str,
    mac: str,
    *,
    device: str,
    is_up: bool = False,
    carrier: bool = False,
    master: int = 0,
    mtu: int,
    altnames: tuple[str, ...] = (),
) -> Link:
    return Link(
        index=index,
        name=name,
        mac=mac,
        mtu=mtu,
        altnames=altnames,
        is_up=is_up,
        carrier=carrier,
        kind="",
        master=master,
        alias="",
        peer=0,
        peer_elsewhere=None,
        type=_TYPES[state.card.link_type],
        device=device,
    )


def _set(vf: VfState, setting: Setting) -> None:
    if isinstance(setting, VfMac):
        vf.mac = setting.value
    elif isinstance(setting, VfTrust):
        vf.trust = setting.value
    elif isinstance(setting, VfLinkState):
        vf.link_state = setting.value
    elif setting.guid_of is GuidOf.NODE:
        vf.node_guid = setting.value
    else:
        vf.port_guid = setting.value
