"""The transmit scheduler of a virtual PF: HTB on an IFB that all traffic of its VFs passes.

A class's `rate` is the reservation, its `ceil` the cap. One scheduler for all traffic makes caps hold
between two VFs of a PF, and counts that traffic against the link, as the embedded switch of a NIC does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.step import VfRate
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.traffic_control import HtbClass, Place, Source, TrafficControl
from k8s_rdma.linux.virtual.topology import PortState, state_of

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Rtnl
    from k8s_rdma.linux.virtual.topology import VirtualPf

BYTES_PER_MBPS = 125_000

FLOOR = 12_500
"""Bytes a second for a VF without reservation: HTB refuses none at all, and with 100 kbit/s a connection
lives on while others use all they reserved. The link's own class is larger by all floors together, so that
reservations up to the last Mb/s of the link remain true."""

NO_CAP = BYTES_PER_MBPS // 2
"""Added to the link's rate in the `ceil` of a VF without a cap: no cap in whole Mb/s reads the same."""

UNFINISHED = FLOOR
"""The `ceil` of a VF's class before it has a queue and a filter."""

BURST = 128 << 10
"""Bytes: two of the largest packets that TCP hands down (GSO, 64 KiB). With less, a class that waits for a
late timer would lose what it has not sent."""

QUANTUM = 64 << 10
"""Bytes a class sends before the next one has its turn at what is left: one packet, the same for all."""

QUEUE = 512 << 10
"""Bytes that wait for a class: 4 ms at 1,000 Mb/s; what is more is dropped, and TCP slows down."""

_QDISC = 0x10000
_LINK = _QDISC | 1
_DROPPED = 0xFFFF
_FIRST_VF = 0x10

_SOURCES: Place = _QDISC, 1000
"""Where the table of source MACs is, after a place for each VF."""

_ADMITTED, _UNMATCHED = 1, 2
"""Priorities of a port's two filters."""


class Shaper:
    """Makes and reads schedulers of virtual PFs, in one network namespace."""

    def __init__(self, rtnl: Rtnl) -> None:
        """Ask by this socket."""
        self._rtnl = rtnl
        self._tc = TrafficControl(rtnl.socket)

    def build(self, pf: VirtualPf, scheduler: int, sink: int) -> None:
        """The scheduler on link `scheduler`, every VF without rates; link `sink` drops all it gets."""
        self._tc.add_fifo(sink, 0xFFFFFFFF, 0, f"{pf.sink_name}: queue", packets=True)
        self._tc.add_htb(scheduler, _QDISC, _DROPPED, f"{pf.scheduler_name}: HTB")
        link = pf.link_mbps * BYTES_PER_MBPS + pf.vfs * FLOOR
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
        """Have a new VF's port drop all it receives but what bears the VF's MAC."""
        operation = f"{pf.port_name(index)}: filter"
        self._tc.add_ingress(port, operation)
        self._tc.redirect(port, self._index(pf.sink_name), operation, priority=_UNMATCHED)
        self._admit(pf, index, port, PortState())

    def admit(self, pf: VirtualPf, index: int, port: int, state: PortState) -> None:
        """Send what a VF's port receives to the VF's class if it bears the VF's MAC, or whatever it bears."""
        scheduler = self._index(pf.scheduler_name)
        self._forget(pf, scheduler, index)
        self._admit(pf, index, port, state)
        self._classify(pf, scheduler, index, state)

    def set_rate(self, pf: VirtualPf, scheduler: int, rate: VfRate, previous: VfRate | None) -> None:
        """Program a VF's rates; `previous` is what `rates` told of it.

        HTB counts what a class has overdrawn as time, up to a minute, and keeps it when the rate changes
        (`htb_accnt_tokens`): of a few packets at the floor that is a minute in which a reservation would not
        hold. So a class that has is made anew.
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
        """Read the rates of one VF; None when its class is unfinished."""
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
        return found is None or found.tokens < 0

    def _recreate_class(self, pf: VirtualPf, scheduler: int, rate: VfRate) -> None:
        """Make a VF's class anew."""
        operation = f"{pf.scheduler_name}: VF {rate.index}"
        port = self._rtnl.link(pf.port_name(rate.index))
        self._tc.set_class(scheduler, _unfinished(pf, rate), operation)
        self._forget(pf, scheduler, rate.index)
        self._tc.delete_class(scheduler, _handle(rate.index), operation)
        self._create_class(pf, scheduler, rate, state_of(port) if port else PortState())

    def _create_class(self, pf: VirtualPf, scheduler: int, rate: VfRate, state: PortState) -> None:
        """Make a VF's class, with queue and filter; its rates come last and tell that it is whole."""
        operation = f"{pf.scheduler_name}: VF {rate.index}"
        self._tc.set_class(scheduler, _unfinished(pf, rate), operation)
        self._tc.add_fifo(scheduler, _handle(rate.index), QUEUE, operation)
        self._classify(pf, scheduler, rate.index, state)
        self._tc.set_class(scheduler, _class(pf, rate), operation)

    def _admit(self, pf: VirtualPf, index: int, port: int, state: PortState) -> None:
        """Between the two, all is dropped."""
        operation = f"{pf.port_name(index)}: filter"
        source = "" if state.sends_as_anybody else pf.mac_of(index, state)
        self._tc.forget_redirects(port, operation, priority=_ADMITTED)
        scheduler = self._index(pf.scheduler_name)
        self._tc.redirect(port, scheduler, operation, priority=_ADMITTED, source=source)

    def _classify(self, pf: VirtualPf, scheduler: int, index: int, state: PortState) -> None:
        """Put what a VF sends into its class: by its MAC, or if that may be any, before that by its port."""
        operation = f"{pf.scheduler_name}: VF {index}"
        source = Source(pf.mac_of(index, state), index + 1)
        self._tc.classify_source(scheduler, _SOURCES, source, _handle(index), operation)
        if state.sends_as_anybody:
            self._tc.classify_port(scheduler, _by_port(index), pf.port_name(index), _handle(index), operation)

    def _forget(self, pf: VirtualPf, scheduler: int, index: int) -> None:
        """Put nothing into a VF's class, also not what a port of it that is gone was to send."""
        operation = f"{pf.scheduler_name}: VF {index}"
        for node, handle in self._tc.classified_sources(scheduler, _SOURCES, operation).items():
            if handle == _handle(index):
                self._tc.forget_source(scheduler, _SOURCES, node, operation)
        self._tc.forget_port(scheduler, _by_port(index), operation)

    def _index(self, name: str) -> int:
        link = self._rtnl.link(name)
        if link is None:
            msg = f"link {name}: gone"
            raise KernelError(msg)
        return link.index


def _handle(index: int) -> int:
    return _QDISC | (_FIRST_VF + index)


def _by_port(index: int) -> Place:
    """Where the filter is that knows a VF by its port: before those that know others by their MAC."""
    return _QDISC, index + 1


def _unfinished(pf: VirtualPf, rate: VfRate) -> HtbClass:
    return replace(_class(pf, rate), rate=FLOOR, ceil=UNFINISHED)


def _class(pf: VirtualPf, rate: VfRate) -> HtbClass:
    link = pf.link_mbps * BYTES_PER_MBPS
    return HtbClass(
        handle=_handle(rate.index),
        parent=_LINK,
        rate=rate.min_tx_rate_mbps * BYTES_PER_MBPS or FLOOR,
        ceil=rate.max_tx_rate_mbps * BYTES_PER_MBPS or link + NO_CAP,
        burst=BURST,
        quantum=QUANTUM,
    )


def _rate(index: int, rate: int, ceil: int) -> VfRate:
    return VfRate(
        index,
        0 if rate == FLOOR else rate // BYTES_PER_MBPS,
        0 if ceil % BYTES_PER_MBPS else ceil // BYTES_PER_MBPS,
    )
