"""Settings of VFs beside rates: whose frames a port takes, whether it is up, and in which VLAN it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.options import LinkState, Setting, VlanProto
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import with_alias
from k8s_rdma.sim.virtual import vlans
from k8s_rdma.sim.virtual.port import PortState, alias_of, state_of
from k8s_rdma.sim.virtual.topology import NO_VLAN, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.step import ConfigureVfs, VfConfig, Vlan
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.sim.virtual.shaper import Shaper
    from k8s_rdma.sim.virtual.topology import VirtualPf

_TAKEN = frozenset({Setting.MAC, Setting.MTU, Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE})


def takes(pf: VirtualPf) -> frozenset[Setting]:
    """What VFs of a PF can be asked for beside rates.

    No priority of a VLAN, as nothing here would heed or mark it, and no other tag than 802.1Q's: a bridge
    has one for all its ports.
    """
    return _TAKEN | {Setting.VLAN} if pf.vlans else _TAKEN


class Settings:
    """Makes settings hold, in one network namespace."""

    def __init__(self, rtnl: Rtnl, shaper: Shaper) -> None:
        """Ask by this socket."""
        self._rtnl = rtnl
        self._shaper = shaper

    def configure(self, pf: VirtualPf, step: ConfigureVfs) -> None:
        """Make them hold, whatever the ports say already, as that may have been cut short.

        KernelError, and nothing is set, when one of them cannot be.
        """
        for config in step.configs:
            require({pf.pci: pf}, VfRef(step.pf, config.index))
            fault = _fault(pf, config)
            if fault:
                msg = f"VF {config.index} of PF {pf.pci}: {fault}"
                raise KernelError(msg)
        ports = {config.index: self._port(pf, config.index) for config in step.configs}
        self._check_macs(pf, step)
        for config in step.configs:
            self._set(pf, ports[config.index], config)
        if pf.vlans and any(config.vlan is not None for config in step.configs):
            vlans.make_as_ports_say(pf, self._rtnl)

    def _set(self, pf: VirtualPf, port: Link, config: VfConfig) -> None:
        state = _with(pf, state_of(port), config)
        if (config.mac, config.trust, config.spoof_check) != (None, None, None):
            self._shaper.admit(pf, config.index, port.index, state)
        if config.link_state is not None:
            up = state.link_state is not LinkState.DISABLE
            self._rtnl.change(port.index, f"{port.name}: link state {state.link_state}", up=up)
        self._rtnl.change(port.index, f"{port.name}: alias", with_alias(alias_of(state)))
        read = state_of(self._port(pf, config.index))
        if read != state:
            msg = f"VF {config.index} of PF {pf.pci}: read back {read}, set {state}"
            raise KernelError(msg)

    def _check_macs(self, pf: VirtualPf, step: ConfigureVfs) -> None:
        """Refuse a MAC that two VFs of the PF would have: the bridge, and the classes, know VFs by it."""
        asked = {config.index: config.mac for config in step.configs if config.mac is not None}
        if not asked:
            return
        after = _macs(pf, {link.name: link for link in self._rtnl.links()}) | asked
        for index, mac in asked.items():
            other = next((each for each in after if each != index and after[each] == mac), None)
            if other is not None:
                msg = f"VF {index} of PF {pf.pci}: MAC {mac} is VF {other}'s"
                raise KernelError(msg)

    def _port(self, pf: VirtualPf, index: int) -> Link:
        port = self._rtnl.link(pf.port_name(index))
        if port is None:
            msg = f"VF {index} of PF {pf.pci}: died with a namespace, and is not made anew yet"
            raise KernelError(msg)
        return port


def _macs(pf: VirtualPf, links: Mapping[str, Link]) -> dict[int, str]:
    ports = {index: links.get(pf.port_name(index)) for index in range(pf.vfs)}
    states = {index: state_of(port) if port else PortState() for index, port in ports.items()}
    return {index: pf.mac_of(index, state) for index, state in states.items()}


def _with(pf: VirtualPf, state: PortState, config: VfConfig) -> PortState:
    changes = {
        "mac": "" if config.mac == pf.vf_mac(config.index) else config.mac,
        "vlan": None if config.vlan is None else config.vlan.id,
        "trust": config.trust,
        "spoof_check": config.spoof_check,
        "link_state": config.link_state,
    }
    asked = {key: value for key, value in changes.items() if value is not None}
    return msgspec.structs.replace(state, **asked)


def _fault(pf: VirtualPf, config: VfConfig) -> str:
    """Why these cannot be, in words; empty when they can."""
    if config.guid is not None:
        return f"GUID {config.guid}: its link is Ethernet"
    if config.mac is not None and (int(config.mac[:2], 16) & 1 or not config.mac.strip("0:")):
        return f"MAC {config.mac}: must be one station's"
    return "" if config.vlan is None else _vlan_fault(pf, config.vlan)


def _vlan_fault(pf: VirtualPf, vlan: Vlan) -> str:
    if vlan.id and not pf.vlans:
        return f"VLAN {vlan.id}: this kernel's bridges keep none apart (CONFIG_BRIDGE_VLAN_FILTERING)"
    if not 0 <= vlan.id < NO_VLAN:
        return f"VLAN {vlan.id}: 0 to {NO_VLAN - 1} can be had; {NO_VLAN} is the bridge's, for what has none"
    if vlan.qos:
        return f"QoS {vlan.qos}: nothing here marks priorities"
    if vlan.proto is not VlanProto.DOT1Q:
        return f"VLAN protocol {vlan.proto}: a bridge has one for all its ports, {VlanProto.DOT1Q}"
    return ""
