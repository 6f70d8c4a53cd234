"""Virtual PFs: created, destroyed, with the rates and settings of their VFs.

A setting is checked, written where it differs, and read back. The settings are MAC, link state, trust,
spoof check and VLAN. A VF's port is an untagged member of its VLAN, the uplink a tagged member of all.
Frames without a VLAN use a VLAN of the bridge's own, `topology.NO_VLAN`, untagged on the uplink.

The transmit scheduler of a virtual PF enforces rates: HTB on an IFB that all traffic of its VFs passes. A
class's `rate` is the reservation, its `ceil` the cap. One scheduler for all traffic also caps traffic
between two VFs of a PF, and counts it against the link, as the embedded switch of a NIC does.
"""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.step import ConfigureVfs, SetRates, VfConfig, VfHome, VfRate, VfRef, Vlan, check_rates
from k8s_rdma.core.types import BYTES_PER_MEGABIT, LinkState, Setting, VlanProto
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import (
    Link,
    Rtnl,
    add_tagged_vlan,
    add_untagged_vlan,
    bridge_vlans,
    enslaved_to,
    named,
    of_kind,
    remove_vlan,
    vlan_bridge,
    with_alias,
    with_mac,
    with_mtu,
    without_link_local,
)
from k8s_rdma.linux.netlink.socket import NetlinkError, nested, u32
from k8s_rdma.linux.netlink.traffic_control import TICKS_PER_S, HtbClass, Place, SourceMac, TrafficControl
from k8s_rdma.linux.virtual.topology import (
    NO_VLAN,
    PortState,
    VirtualPf,
    alias_of,
    check,
    is_pf_mac,
    pf_of,
    pfs_among,
    port_alias_of,
    require,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet


FLOOR = 12_500
"""Bytes a second for a VF without reservation: HTB refuses 0, and 100 kbit/s keep a connection alive while
others use all they reserved. The link's own class is larger by the sum of all floors, so that reservations
up to the last Mb/s of the link are kept."""

NO_CAP = BYTES_PER_MEGABIT // 2
"""Addition to the link's rate in the `ceil` of a VF without a cap; no cap in whole Mb/s has this value."""

UNFINISHED = FLOOR
"""Value of `ceil` of a VF's class before it has a queue and a filter."""

BURST = 128 << 10
"""Bytes: two of the largest packets that TCP sends (GSO, 64 KiB). With less, a class that waits for a late
timer would lose rate."""

QUANTUM = 64 << 10
"""Bytes that a class sends before the next one's turn at the remaining rate: one packet, the same for all."""

MOST_DEBT = TICKS_PER_S
"""A second of debt: a packet takes 0.12 s at the floor, one of 64 KiB (GSO) 5 s."""

QUEUE = 512 << 10
"""Bytes in a class's queue: 4 ms at 1,000 Mb/s; more is dropped, and TCP slows down."""
_QDISC = 0x10000
_LINK = _QDISC | 1
_DROPPED = 0xFFFF
_FIRST_VF = 0x10

_SOURCES: Place = _QDISC, 1000
"""Place of the table of source MACs, after a place for each VF."""

_ADMITTED, _UNMATCHED = 1, 2
"""Priorities of a port's two filters."""

_SINGLE_READ_COST = 4
"""Cost of querying a single class, in entries of a list of all."""
_SUPPORTED = frozenset({Setting.MAC, Setting.MTU, Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE})

DEFAULT_MTU = 1500
_INFO_DATA = 2
_VETH_PEER = 1
_TX_QUEUE_LENGTH = 13
_SCHEDULER_QUEUE = 1000
"""An IFB's default of 32 packets is also the default limit of queues in it."""


class VfRateCache:
    """Cache of the rates of all VFs; those that a step does not set are not queried again."""

    def __init__(self, shaper: Shaper) -> None:
        """Program rates by this shaper."""
        self._shaper = shaper
        self._cached: dict[tuple[VirtualPf, int], dict[int, VfRate]] = {}

    def read_unless_known(self, pf: VirtualPf, scheduler: int) -> dict[int, VfRate]:
        """Return the rates of all VFs, as last read unless that was forgotten."""
        cached = self._cached.get((pf, scheduler))
        return self.read_all(pf, scheduler) if cached is None else dict(cached)

    def forget(self, schedulers: Collection[int] | None) -> None:
        """Forget the rates of VFs with these schedulers, because they may have changed; None: of all."""
        for pf, scheduler in tuple(self._cached):
            if schedulers is None or scheduler in schedulers:
                del self._cached[pf, scheduler]

    def read_all(self, pf: VirtualPf, scheduler: int) -> dict[int, VfRate]:
        """Read the rates of all VFs; an interrupted class is first recreated without rates."""
        found = self._shaper.rates(pf, scheduler)
        for index in range(pf.vfs):
            if index not in found:
                found[index] = VfRate(index)
                self._shaper.set_rate(pf, scheduler, found[index], None)
        self._cached[pf, scheduler] = found
        return dict(found)

    def set(self, pf: VirtualPf, scheduler: int, step: SetRates) -> None:
        """Apply a step; KernelError, without a change, when a rate cannot be programmed.

        Rates that this changes and does not read back, because it fails, are forgotten.
        """
        indexes = [rate.index for rate in step.rates]
        for index in indexes:
            require({pf.pci: pf}, VfRef(pf.pci, index))
        current = self._read(pf, scheduler, indexes)
        try:
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, current=current)
        except KernelError:  # the others may have less by now
            current = self.read_all(pf, scheduler)
            check_rates(step, ability=EVERY_RATE, link_mbps=pf.link_mbps, current=current)
        after = self._changed(pf, scheduler, step, current)
        for rate in step.rates:
            if after[rate.index] != rate:
                msg = f"VF {rate.index} of PF {pf.pci}: read back {after[rate.index]}, set {rate}"
                raise KernelError(msg)

    def _changed(
        self, pf: VirtualPf, scheduler: int, step: SetRates, current: Mapping[int, VfRate]
    ) -> dict[int, VfRate]:
        """Change the rates that differ, and return all as `_read` does."""
        cached = self._cached.pop((pf, scheduler))
        for rate in step.rates:
            if current[rate.index] != rate:
                self._shaper.set_rate(pf, scheduler, rate, current[rate.index])
        self._cached[pf, scheduler] = cached
        return self._read(pf, scheduler, [rate.index for rate in step.rates])

    def _read(self, pf: VirtualPf, scheduler: int, indexes: Collection[int]) -> dict[int, VfRate]:
        """Return the rates of all VFs, after reading those of the indexes."""
        cached = self._cached.get((pf, scheduler))
        if cached is None or len(indexes) * _SINGLE_READ_COST > pf.vfs:
            return self.read_all(pf, scheduler)
        found = {index: self._shaper.rate(scheduler, index) for index in indexes}
        if None in found.values():
            return self.read_all(pf, scheduler)
        cached.update({index: rate for index, rate in found.items() if rate is not None})
        return dict(cached)


class Settings:
    """Applies settings in one network namespace."""

    def __init__(self, rtnl: Rtnl, shaper: Shaper) -> None:
        """Use this socket."""
        self._rtnl = rtnl
        self._shaper = shaper

    def configure(self, pf: VirtualPf, step: ConfigureVfs) -> None:
        """Write settings, also those that the ports have, because an earlier write may be incomplete.

        KernelError, without a change, when a setting is not supported.
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
        """Refuse a MAC that two VFs of the PF would have: bridge and classes identify VFs by it."""
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
            msg = f"VF {index} of PF {pf.pci}: ended with a namespace and is not recreated yet"
            raise KernelError(msg)
        return port


class Shaper:
    """Creates and reads schedulers of virtual PFs in one network namespace."""

    def __init__(self, rtnl: Rtnl) -> None:
        """Use this socket."""
        self._rtnl = rtnl
        self._tc = TrafficControl(rtnl.socket)

    def build(self, pf: VirtualPf, scheduler: int, sink: int) -> None:
        """Create the scheduler on link `scheduler`, without rates; link `sink` drops everything."""
        self._tc.add_fifo(sink, 0xFFFFFFFF, 0, f"{pf.sink_name}: queue", packets=True)
        self._tc.add_htb(scheduler, _QDISC, _DROPPED, f"{pf.scheduler_name}: HTB")
        link = pf.link_mbps * BYTES_PER_MEGABIT + pf.vfs * FLOOR
        whole = HtbClass(handle=_LINK, parent=_QDISC, rate=link, ceil=link, burst=BURST, quantum=QUANTUM)
        self._tc.set_class(scheduler, whole, f"{pf.scheduler_name}: the link's class")
        self._tc.add_source_table(scheduler, *_SOURCES, f"{pf.scheduler_name}: table of source MACs")
        unknown = HtbClass(
            handle=_QDISC | _DROPPED, parent=_LINK, rate=FLOOR, ceil=FLOOR, burst=BURST, quantum=QUANTUM
        )
        self._tc.set_class(scheduler, unknown, f"{pf.scheduler_name}: class of what no VF sends")
        self._tc.add_fifo(scheduler, unknown.handle, 0, f"{pf.scheduler_name}: queue that drops")
        for index in range(pf.vfs):
            self._create_class(pf, scheduler, VfRate(index), PortState())

    def police(self, pf: VirtualPf, index: int, port: int) -> None:
        """Drop frames that a new VF's port receives, except those from the VF's MAC."""
        operation = f"{pf.port_name(index)}: filter"
        self._tc.add_ingress(port, operation)
        self._tc.redirect(port, self._index(pf.sink_name), operation, priority=_UNMATCHED)
        self._admit(pf, index, port, PortState())

    def admit(self, pf: VirtualPf, index: int, port: int, state: PortState) -> None:
        """Send frames that a VF's port receives to its class, from the VF's MAC only or from any MAC."""
        scheduler = self._index(pf.scheduler_name)
        self._forget(pf, scheduler, index)
        self._admit(pf, index, port, state)
        self._classify(pf, scheduler, index, state)

    def set_rate(self, pf: VirtualPf, scheduler: int, rate: VfRate, previous: VfRate | None) -> None:
        """Program a VF's rates; `previous` is its entry in `rates`.

        HTB stores a class's debt as time, up to a minute, and keeps it when the rate changes
        (`htb_accnt_tokens`): after a few packets at the floor a reservation would have no effect for a
        minute. So a class with a debt of more than `MOST_DEBT` is recreated, which loses packets in its queue
        and those that come meanwhile; any other is changed in place, without losses.
        """
        operation = f"{pf.scheduler_name}: rates of VF {rate.index}"
        if previous is None or (
            rate.min_tx_rate_mbps
            and not previous.min_tx_rate_mbps
            and self._has_overdrawn(scheduler, rate.index, operation)
        ):
            self._recreate_class(pf, scheduler, rate)
        else:
            self._tc.set_class(scheduler, _class(pf, rate), operation)

    def rate(self, scheduler: int, index: int) -> VfRate | None:
        """Read the rates of one VF, unless its class is unfinished."""
        found = self._tc.class_state(scheduler, _handle(index), f"class of VF {index}")
        return None if found is None or found.ceil == UNFINISHED else _rate(index, found.rate, found.ceil)

    def rates(self, pf: VirtualPf, scheduler: int) -> dict[int, VfRate]:
        """Read the rates by VF, without unfinished classes; one netlink query."""
        found = self._tc.class_rates(scheduler, f"{pf.scheduler_name}: classes")
        classes = {index: found.get(_handle(index), (0, UNFINISHED)) for index in range(pf.vfs)}
        return {
            index: _rate(index, rate, ceil) for index, (rate, ceil) in classes.items() if ceil != UNFINISHED
        }

    def _has_overdrawn(self, scheduler: int, index: int, operation: str) -> bool:
        found = self._tc.class_state(scheduler, _handle(index), operation)
        return found is None or found.tokens < -MOST_DEBT

    def _recreate_class(self, pf: VirtualPf, scheduler: int, rate: VfRate) -> None:
        """Recreate a VF's class."""
        operation = f"{pf.scheduler_name}: VF {rate.index}"
        port = self._rtnl.link(pf.port_name(rate.index))
        self._tc.set_class(scheduler, _unfinished_class(pf, rate), operation)
        self._forget(pf, scheduler, rate.index)
        self._tc.delete_class(scheduler, _handle(rate.index), operation)
        self._create_class(pf, scheduler, rate, state_of(port) if port else PortState())

    def _create_class(self, pf: VirtualPf, scheduler: int, rate: VfRate, state: PortState) -> None:
        """Create a VF's class, with queue and filter; its rates are written last and mark it as complete."""
        operation = f"{pf.scheduler_name}: VF {rate.index}"
        self._tc.set_class(scheduler, _unfinished_class(pf, rate), operation)
        self._tc.add_fifo(scheduler, _handle(rate.index), QUEUE, operation)
        self._classify(pf, scheduler, rate.index, state)
        self._tc.set_class(scheduler, _class(pf, rate), operation)

    def _admit(self, pf: VirtualPf, index: int, port: int, state: PortState) -> None:
        """Replace the filter that admits a port's frames; between the requests everything is dropped."""
        operation = f"{pf.port_name(index)}: filter"
        source = "" if state.sends_as_anybody else pf.mac_of(index, state)
        self._tc.forget_redirects(port, operation, priority=_ADMITTED)
        scheduler = self._index(pf.scheduler_name)
        self._tc.redirect(port, scheduler, operation, priority=_ADMITTED, source=source)

    def _classify(self, pf: VirtualPf, scheduler: int, index: int, state: PortState) -> None:
        """Put a VF's traffic into its class by its MAC, or by its port if it may use any MAC."""
        operation = f"{pf.scheduler_name}: VF {index}"
        source = SourceMac(pf.mac_of(index, state), index + 1)
        self._tc.classify_source(scheduler, _SOURCES, source, _handle(index), operation)
        if state.sends_as_anybody:
            self._tc.classify_port(scheduler, _by_port(index), pf.port_name(index), _handle(index), operation)

    def _forget(self, pf: VirtualPf, scheduler: int, index: int) -> None:
        """Delete a VF's filters, including that of a port that no longer exists."""
        operation = f"{pf.scheduler_name}: VF {index}"
        for node, handle in self._tc.classified_sources(scheduler, _SOURCES, operation).items():
            if handle == _handle(index):
                self._tc.forget_source(scheduler, _SOURCES, node, operation)
        self._tc.forget_port(scheduler, _by_port(index), operation)

    def _index(self, name: str) -> int:
        link = self._rtnl.link(name)
        if link is None:
            msg = f"link {name}: no longer exists"
            raise KernelError(msg)
        return link.index


def _handle(index: int) -> int:
    return _QDISC | (_FIRST_VF + index)


def _by_port(index: int) -> Place:
    """Return the place of the filter by a VF's port, which precedes the filters by MAC."""
    return _QDISC, index + 1


def _unfinished_class(pf: VirtualPf, rate: VfRate) -> HtbClass:
    return replace(_class(pf, rate), rate=FLOOR, ceil=UNFINISHED)


def _class(pf: VirtualPf, rate: VfRate) -> HtbClass:
    link = pf.link_mbps * BYTES_PER_MEGABIT
    return HtbClass(
        handle=_handle(rate.index),
        parent=_LINK,
        rate=rate.min_tx_rate_mbps * BYTES_PER_MEGABIT or FLOOR,
        ceil=rate.max_tx_rate_mbps * BYTES_PER_MEGABIT or link + NO_CAP,
        burst=BURST,
        quantum=QUANTUM,
    )


@lru_cache(maxsize=1024)
def _rate(index: int, rate: int, ceil: int) -> VfRate:
    """Return the rates of a VF from its class; for the same ones the same object, which compares at once."""
    return VfRate(
        index,
        0 if rate == FLOOR else rate // BYTES_PER_MEGABIT,
        0 if ceil % BYTES_PER_MEGABIT else ceil // BYTES_PER_MEGABIT,
    )


def restore_vlans(pf: VirtualPf, rtnl: Rtnl) -> None:
    """Put a PF's ports and uplink into their VLANs and read back; KernelError when they differ."""
    links = {link.name: link for link in rtnl.links()}
    ports = [links[name] for name in map(pf.port_name, range(pf.vfs)) if name in links]
    desired = {port.index: frozenset({state_of(port).vlan or NO_VLAN}) for port in ports}
    if pf.uplink in links:
        desired[links[pf.uplink].index] = frozenset({NO_VLAN}).union(*desired.values())
    names = {link.index: link for link in links.values()}
    present = bridge_vlans(rtnl, f"{pf.name}: VLANs")
    for index, vlans in desired.items():
        _set_vlans(names[index], vlans, present.get(index, frozenset()), rtnl)
    present = bridge_vlans(rtnl, f"{pf.name}: VLANs")
    for index, vlans in desired.items():
        found = present.get(index, frozenset())
        if found != vlans:
            msg = f"{names[index].name}: read back VLANs {sorted(found)}, set {sorted(vlans)}"
            raise KernelError(msg)


def _set_vlans(port: Link, desired: AbstractSet[int], present: AbstractSet[int], rtnl: Rtnl) -> None:
    """Set a port's VLANs. Old ones are removed first, so that a VF is never in two."""
    for vlan in present - desired:
        remove_vlan(rtnl, port.index, vlan, f"{port.name}: no VLAN {vlan}")
    for vlan in desired - present:
        add = add_tagged_vlan if NO_VLAN in desired - {vlan} else add_untagged_vlan
        add(rtnl, port.index, vlan, f"{port.name}: VLAN {vlan}")


def supported_settings(pf: VirtualPf) -> frozenset[Setting]:
    """Return the settings that VFs of a PF support besides rates.

    Priorities of VLANs are not supported, because nothing here would obey or mark them; nor protocols other
    than 802.1Q, because a bridge has one for all its ports.
    """
    return _SUPPORTED | {Setting.VLAN} if pf.vlans else _SUPPORTED


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
    """Describe why settings are not supported; empty when they are."""
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
    """Create the bridge; return the PF, with VLANs if the kernel's bridges support them."""
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
