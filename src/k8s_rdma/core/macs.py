"""Which MAC a VF is to have, and whether one that a pod asks for is in use on the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.step import VfRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.kernel import Hardware, Vf
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger


NO_MAC = "00:00:00:00:00:00"
"""What a PF has for a VF whose MAC is the VF's own affair."""


def home_mac(vf: Vf) -> str:
    """The MAC of a VF's netdev at home, and in pods that ask for none: the one its PF has for it, if any.

    The netdev has another where somebody told the PF after the VF's driver had asked it: `igb` and others
    then drop what it sends and give it nothing. An InfiniBand netdev's address is not to be chosen.
    """
    told = len(vf.admin_mac) == len(vf.mac) == len(NO_MAC) and vf.admin_mac != NO_MAC
    return vf.admin_mac if told else vf.mac


def taken_mac(chosen: Iterable[AllocatedInterface], hardware: Hardware, ledger: Ledger) -> str:
    """Who else has a MAC that one of these interfaces is to have, in one clause; empty when nobody has.

    Of two functions with one MAC a card gives the frames to either, or takes it from the first: with a PF's,
    a pod would get what is for the node. A VF that a pod has will have that of home again.
    """
    asking = [each for each in chosen if each.options.mac]
    if not asking:
        return ""
    having: dict[str, list[tuple[VfRef | None, str]]] = {}
    for mac, vf, who in (*_of_pods(ledger), *_of_hardware(hardware)):
        having.setdefault(mac, []).append((vf, who))
    for each in asking:
        for vf, who in having.get(each.mac, ()):
            if vf != each.vf:
                return f"interface {each.ifname} asks for MAC {each.mac}, which {who} has"
    return ""


def _of_pods(ledger: Ledger) -> Iterator[tuple[str, VfRef, str]]:
    for receipt in ledger.receipts.values():
        for held in receipt.interfaces:
            who = f"interface {held.ifname} of pod {receipt.pod.namespace}/{receipt.pod.name}"
            for mac in {held.mac, held.home.mac}:
                yield mac, held.vf, who


def _of_hardware(hardware: Hardware) -> Iterator[tuple[str, VfRef | None, str]]:
    for pf in hardware.pfs:
        yield pf.mac, None, f"PF {pf.name} itself"
        for vf in pf.vfs:
            for mac in {vf.mac, vf.admin_mac}:
                yield mac, VfRef(pf.pci, vf.index), f"VF {vf.index} of PF {pf.name}"
