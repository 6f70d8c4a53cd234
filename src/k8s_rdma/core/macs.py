"""MACs: that of a VF, those of a node, and the check that one which a pod asks for is free there."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.step import VfRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.core.kernel import Hardware, Vf
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger


NO_MAC = "00:00:00:00:00:00"
"""The MAC that a PF reports for a VF that chooses its own MAC."""


def home_mac(vf: Vf) -> str:
    """The MAC of a VF's netdev at home, and in pods that ask for none: the one its PF has for it, if any.

    The netdev has another if the PF's setting changed after the VF's driver had read it: `igb` and others
    then drop what it sends and give it nothing. An InfiniBand netdev's address is not to be chosen.
    """
    is_reported = len(vf.admin_mac) == len(vf.mac) == len(NO_MAC) and vf.admin_mac != NO_MAC
    return vf.admin_mac if is_reported else vf.mac


@dataclass(frozen=True, slots=True)
class MacRanges:
    """MACs as numbers, in ranges that do not meet: their first ones rising, and the last one of each.

    Sixteen bytes a range: an extender has those of thousands of nodes.
    """

    firsts: array[int]
    lasts: array[int]

    @classmethod
    def merge(cls, ranges: Iterable[tuple[int, int]]) -> MacRanges:
        """Make ranges of pairs of first and last, in any order; adjacent ones are joined."""
        firsts, lasts = array("Q"), array("Q")
        end = -2
        for first, last in sorted(ranges):
            if first > end + 1:
                firsts.append(first)
                lasts.append(last)
                end = last
            elif last > end:
                lasts[-1] = end = last
        return cls(firsts, lasts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last of each."""
        return zip(self.firsts, self.lasts, strict=True)

    def first_index_in(self, macs: Sequence[int]) -> int | None:
        """The first of these rising numbers that is in a range; None when none is."""
        if not (self.firsts and macs) or macs[-1] < self.firsts[0] or macs[0] > self.lasts[-1]:
            return None
        if len(macs) > len(self.firsts):
            for first, last in self:
                index = bisect_left(macs, first)
                if index < len(macs) and macs[index] <= last:
                    return macs[index]
            return None
        for mac in macs:
            index = bisect_right(self.firsts, mac) - 1
            if index >= 0 and mac <= self.lasts[index]:
                return mac
        return None


NO_MACS = MacRanges.merge(())


def macs_of(hardware: Hardware, ledger: Ledger) -> MacRanges:
    """The MACs of the node's PFs and VFs, and those that VFs have in pods; two of a VF at most."""
    allocated = ledger.interfaces_by_pf()
    macs = {pf.mac for pf in hardware.pfs}
    for pf in hardware.pfs:
        interfaces = allocated.get(pf.pci, {})
        for vf in pf.vfs:
            interface = interfaces.get(vf.index)
            macs.add(interface.mac if interface else vf.mac)
            macs.add(interface.home.mac if interface else vf.admin_mac)
    numbers = [address_number(mac) for mac in macs if len(mac) == len(NO_MAC) and mac != NO_MAC]
    return MacRanges.merge(zip(numbers, numbers, strict=True))


class RequestedMac(NamedTuple):
    """A MAC that an interface asks for. vf: it is to be that VF's. subject: of messages."""

    mac: str
    vf: VfRef
    subject: str


class TakenMac(NamedTuple):
    """A requested MAC that another function has, in one clause. by_pod: whether that ends with a pod."""

    why: str
    by_pod: bool


def taken_mac(requested: Iterable[RequestedMac], hardware: Hardware, ledger: Ledger) -> TakenMac | None:
    """Find a requested MAC that another function has or is promised; None when all are free.

    Of two functions with one MAC a card gives the frames to either, or takes it from the first: with a PF's,
    a pod would get what is for the node. A VF that a pod has will have that of home again.
    """
    requests = tuple(requested)
    if not requests:
        return None
    having: dict[str, list[tuple[VfRef | None, str]]] = {}
    for mac, vf, owner in (*_of_pods(ledger), *_of_claims(ledger), *_of_hardware(hardware)):
        having.setdefault(mac, []).append((vf, owner))
    in_use = {*ledger.holders(), *ledger.promised_vfs()}
    for request in requests:
        for vf, owner in having.get(request.mac, ()):
            if vf != request.vf:
                why = f"{request.subject} asks for MAC {request.mac}, which {owner} has"
                return TakenMac(why, by_pod=vf in in_use)
    return None


def requested_macs(chosen: Iterable[AllocatedInterface]) -> Iterator[RequestedMac]:
    """Select the MACs that interfaces of an ADD ask for."""
    for interface in chosen:
        if interface.options.mac:
            yield RequestedMac(interface.options.mac, interface.vf, f"interface {interface.ifname}")


def _of_pods(ledger: Ledger) -> Iterator[tuple[str, VfRef, str]]:
    for receipt in ledger.receipts.values():
        for interface in receipt.interfaces:
            owner = f"interface {interface.ifname} of pod {receipt.pod.namespace}/{receipt.pod.name}"
            for mac in {interface.mac, interface.home.mac}:
                yield mac, interface.vf, owner


def _of_claims(ledger: Ledger) -> Iterator[tuple[str, VfRef, str]]:
    for promise in ledger.promises.values():
        for interface in promise.interfaces:
            if mac := interface.placed.options.mac:
                owner = f"request {interface.request} of claim {promise.namespace}/{promise.name}"
                yield mac, interface.vf, owner


def _of_hardware(hardware: Hardware) -> Iterator[tuple[str, VfRef | None, str]]:
    for pf in hardware.pfs:
        yield pf.mac, None, f"PF {pf.name} itself"
        for vf in pf.vfs:
            for mac in {vf.mac, vf.admin_mac}:
                yield mac, VfRef(pf.pci, vf.index), f"VF {vf.index} of PF {pf.name}"
