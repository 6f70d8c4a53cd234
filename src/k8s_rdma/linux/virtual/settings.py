"""Rates and settings of VFs: checked, written where they differ, read back.

The settings are MAC, link state, trust, spoof check and VLAN. A VF's port is an untagged member of its
VLAN, the uplink a tagged member of all. Frames without a VLAN use a VLAN of the bridge's own,
`topology.NO_VLAN`, untagged on the uplink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.options import LinkState, Setting, VlanProto
from k8s_rdma.core.rates import EVERY_RATE, check_rates
from k8s_rdma.core.step import VfRate, VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink import bridge_vlans
from k8s_rdma.linux.netlink.rtnl import with_alias
from k8s_rdma.linux.virtual.topology import NO_VLAN, PortState, port_alias_of, require, state_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet

    from k8s_rdma.core.step import ConfigureVfs, SetRates, VfConfig, Vlan
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.virtual.shaper import Shaper
    from k8s_rdma.linux.virtual.topology import VirtualPf

_SINGLE_READ_COST = 4
"""A class that is asked for alone costs as much as so many in a list of all."""


class Rates:
    """The rates of all VFs. What was seen of those that a step does not set is not asked for again."""

    def __init__(self, shaper: Shaper) -> None:
        """Program them by this."""
        self._shaper = shaper
        self._cached: dict[VirtualPf, dict[int, VfRate]] = {}

    def read_all(self, pf: VirtualPf, scheduler: int) -> dict[int, VfRate]:
        """Read the rates of all VFs; an interrupted class is first recreated without rates."""
        found = self._shaper.rates(pf, scheduler)
        for index in range(pf.vfs):
            if index not in found:
                found[index] = VfRate(index)
                self._shaper.set_rate(pf, scheduler, found[index], None)
        self._cached[pf] = found
        return dict(found)

    def set(self, pf: VirtualPf, scheduler: int, step: SetRates) -> None:
        """Make a step hold; KernelError, and nothing is set, when one of them cannot be."""
        indexes = [rate.index for rate in step.rates]
        for index in indexes:
            require({pf.pci: pf}, VfRef(pf.pci, index))
        current = self._read(pf, scheduler, indexes)
        try:
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, current=current)
        except KernelError:  # the others may have less by now
            current = self.read_all(pf, scheduler)
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, current=current)
        for rate in step.rates:
            if current[rate.index] != rate:
                self._shaper.set_rate(pf, scheduler, rate, current[rate.index])
        after = self._read(pf, scheduler, indexes)
        for rate in step.rates:
            if after[rate.index] != rate:
                msg = f"VF {rate.index} of PF {pf.pci}: read back {after[rate.index]}, set {rate}"
                raise KernelError(msg)

    def _read(self, pf: VirtualPf, scheduler: int, indexes: Collection[int]) -> dict[int, VfRate]:
        """Return the rates of all VFs, after reading those of the indexes."""
        cached = self._cached.get(pf)
        if cached is None or len(indexes) * _SINGLE_READ_COST > pf.vfs:
            return self.read_all(pf, scheduler)
        found = {index: self._shaper.rate(scheduler, index) for index in indexes}
        if None in found.values():
            return self.read_all(pf, scheduler)
        cached.update({index: rate for index, rate in found.items() if rate is not None})
        return dict(cached)


def restore_vlans(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Put a PF's ports and uplink into their VLANs and read back; KernelError when they differ."""
    links = {link.name: link for link in rtnl.links()}
    ports = [links[name] for name in map(pf.port_name, range(pf.vfs)) if name in links]
    desired = {port.index: frozenset({state_of(port).vlan or NO_VLAN}) for port in ports}
    if pf.uplink in links:
        desired[links[pf.uplink].index] = frozenset({NO_VLAN}).union(*desired.values())
    names = {link.index: link for link in links.values()}
    present = bridge_vlans.vlans(rtnl, f"{pf.name}: VLANs")
    for index, vlans in desired.items():
        _set_vlans(names[index], vlans, present.get(index, frozenset()), rtnl)
    present = bridge_vlans.vlans(rtnl, f"{pf.name}: VLANs")
    for index, vlans in desired.items():
        found = present.get(index, frozenset())
        if found != vlans:
            msg = f"{names[index].name}: read back VLANs {sorted(found)}, set {sorted(vlans)}"
            raise KernelError(msg)


def _set_vlans(port: Link, desired: AbstractSet[int], present: AbstractSet[int], rtnl: Rtnl) -> None:
    """Set a port's VLANs. Old ones are removed first, so that a VF is never in two."""
    for vlan in present - desired:
        bridge_vlans.remove(rtnl, port.index, vlan, f"{port.name}: no VLAN {vlan}")
    for vlan in desired - present:
        add = bridge_vlans.add_tagged if NO_VLAN in desired - {vlan} else bridge_vlans.add_untagged
        add(rtnl, port.index, vlan, f"{port.name}: VLAN {vlan}")


_SUPPORTED = frozenset({Setting.MAC, Setting.MTU, Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE})


def supported_settings(pf: VirtualPf) -> frozenset[Setting]:
    """Return the settings that VFs of a PF support besides rates.

    No priority of a VLAN, as nothing here would heed or mark it, and no other tag than 802.1Q's: a bridge
    has one for all its ports.
    """
    return _SUPPORTED | {Setting.VLAN} if pf.vlans else _SUPPORTED


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
            restore_vlans(pf, self._rtnl)

    def _set(self, pf: VirtualPf, port: Link, config: VfConfig) -> None:
        state = _changed_state(pf, state_of(port), config)
        if (config.mac, config.trust, config.spoof_check) != (None, None, None):
            self._shaper.admit(pf, config.index, port.index, state)
        if config.link_state is not None:
            is_up = state.link_state is not LinkState.DISABLE
            self._rtnl.change(port.index, f"{port.name}: link state {state.link_state}", up=is_up)
        self._rtnl.change(port.index, f"{port.name}: alias", with_alias(port_alias_of(state)))
        read = state_of(self._port(pf, config.index))
        if read != state:
            msg = f"VF {config.index} of PF {pf.pci}: read back {read}, set {state}"
            raise KernelError(msg)

    def _check_macs(self, pf: VirtualPf, step: ConfigureVfs) -> None:
        """Refuse a MAC that two VFs of the PF would have: the bridge, and the classes, know VFs by it."""
        requested = {config.index: config.mac for config in step.configs if config.mac is not None}
        if not requested:
            return
        after = _macs(pf, {link.name: link for link in self._rtnl.links()}) | requested
        for index, mac in requested.items():
            holder = next((vf for vf in after if vf != index and after[vf] == mac), None)
            if holder is not None:
                msg = f"VF {index} of PF {pf.pci}: MAC {mac} is VF {holder}'s"
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


def _changed_state(pf: VirtualPf, state: PortState, config: VfConfig) -> PortState:
    changes = {
        "mac": "" if config.mac == pf.vf_mac(config.index) else config.mac,
        "vlan": None if config.vlan is None else config.vlan.id,
        "trust": config.trust,
        "spoof_check": config.spoof_check,
        "link_state": config.link_state,
    }
    requested = {key: value for key, value in changes.items() if value is not None}
    return msgspec.structs.replace(state, **requested)


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
