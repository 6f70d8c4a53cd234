"""MACs and GUIDs: a VF's, those of a node, and the check that one which a pod asks for is free there."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.mac_ranges import MacRanges
from k8s_rdma.core.mention import Mention
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.step import VfRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.kernel import Hardware, Vf
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.request import InterfaceRequest


NO_MAC = "00:00:00:00:00:00"
"""The MAC that a PF reports for a VF that chooses its own MAC."""


def home_mac(vf: Vf) -> str:
    """Return the MAC of a VF's netdev at home, and in pods without a MAC of their own: the one its PF has.

    The netdev has another MAC if the PF's setting changed after the VF's driver had read it. For example,
    `igb` then drops all that the netdev sends and delivers no frames to it. An InfiniBand netdev's address
    cannot be chosen.
    """
    is_reported = len(vf.admin_mac) == len(vf.mac) == len(NO_MAC) and vf.admin_mac != NO_MAC
    return vf.admin_mac if is_reported else vf.mac


def is_mac(address: str) -> bool:
    """Report whether an address is a MAC; else it is a GUID."""
    return len(address) == len(NO_MAC)


def addresses_of(
    interfaces: Iterable[InterfaceRequest | PlacedInterface | AllocatedInterface],
) -> frozenset[str]:
    """Return the MACs and GUIDs that interfaces ask for."""
    options = [interface.options for interface in interfaces]
    return frozenset(filter(None, (address for option in options for address in (option.mac, option.guid))))


def requested_addresses(ledger: Ledger) -> frozenset[str]:
    """Return the MACs and GUIDs that pods of the node ask for, in prepared claims and in attachments."""
    prepared = (interface.placed for claim in ledger.claims.values() for interface in claim.interfaces)
    attached = (interface for receipt in ledger.receipts.values() for interface in receipt.interfaces)
    return addresses_of((*prepared, *attached))


def macs_of(hardware: Hardware, ledger: Ledger) -> MacRanges:
    """Return the MACs of the node's PFs and VFs, including VFs in pods or prepared; two for a VF at most."""
    allocated = ledger.interfaces_by_pf()
    prepared = {
        interface.vf: interface.placed.options.mac
        for claim in ledger.claims.values()
        for interface in claim.interfaces
    }
    macs = {pf.mac for pf in hardware.pfs}
    for pf in hardware.pfs:
        interfaces = allocated.get(pf.pci, {})
        for vf in pf.vfs:
            interface = interfaces.get(vf.index)
            requested = prepared.get(VfRef(pf.pci, vf.index)) if prepared else None
            if interface:
                macs.update((interface.mac, interface.home.mac))
            elif requested:
                macs.update((requested, home_mac(vf)))
            else:
                macs.update((vf.mac, vf.admin_mac))
    return _ranges(frozenset(macs))


@lru_cache(maxsize=4)
def _ranges(macs: frozenset[str]) -> MacRanges:
    """Return the MACs of a node as ranges; they are the same from one pod to the next."""
    numbers = [address_number(mac) for mac in macs if len(mac) == len(NO_MAC) and mac != NO_MAC]
    return MacRanges.merge(zip(numbers, numbers, strict=True))


class RequestedAddress(NamedTuple):
    """A MAC or GUID that an interface asks for. vf: the VF that is to have it. subject: of messages."""

    address: str
    vf: VfRef
    subject: str


class TakenAddress(NamedTuple):
    """A requested address that another function has, in one clause.

    by_pod: whether that ends with a pod.
    mentions: the pod or claim that the clause names.
    """

    why: str
    by_pod: bool
    mentions: tuple[Mention, ...] = ()


class _Having(NamedTuple):
    """A function that has an address. vf: None for a PF. owner: in a clause, with the mentioned pod."""

    address: str
    vf: VfRef | None
    owner: str
    mentions: tuple[Mention, ...] = ()


def taken_address(
    requested: Iterable[RequestedAddress], hardware: Hardware, ledger: Ledger
) -> TakenAddress | None:
    """Find a requested address that another function has or is prepared with, if there is one.

    A card gives frames to either of two functions with one MAC, or takes the MAC from the first; with a PF's
    MAC, a pod would get the node's frames. A VF that a pod has will have its MAC of home again. GUIDs are
    known only of pods that ask for them.
    """
    requests = tuple(requested)
    if not requests:
        return None
    having: dict[str, list[_Having]] = {}
    for found in (*_of_pods(ledger), *_of_claims(ledger), *_of_hardware(hardware)):
        having.setdefault(found.address, []).append(found)
    in_use = {*ledger.holders(), *ledger.prepared_vfs()}
    for request in requests:
        for found in having.get(request.address, ()):
            if found.vf != request.vf:
                kind = "MAC" if is_mac(request.address) else "GUID"
                why = f"{request.subject} asks for {kind} {request.address}, which {found.owner} has"
                return TakenAddress(why, by_pod=found.vf in in_use, mentions=found.mentions)
    return None


def requests_of(chosen: Iterable[AllocatedInterface]) -> Iterator[RequestedAddress]:
    """Select the MACs and GUIDs that interfaces of an ADD ask for."""
    for interface in chosen:
        for address in addresses_of([interface]):
            yield RequestedAddress(address, interface.vf, f"interface {interface.ifname}")


def _of_pods(ledger: Ledger) -> Iterator[_Having]:
    for receipt in ledger.receipts.values():
        for interface in receipt.interfaces:
            pod = receipt.pod
            owner = f"interface {interface.ifname} of pod {pod.namespace}/{pod.name}"
            mentions = (Mention(namespace=pod.namespace, text=owner),)
            for address in {interface.mac, interface.home.mac, *addresses_of([interface])}:
                yield _Having(address, interface.vf, owner, mentions)


def _of_claims(ledger: Ledger) -> Iterator[_Having]:
    for claim in ledger.claims.values():
        for interface in claim.interfaces:
            owner = f"request {interface.request} of claim {claim.namespace}/{claim.name}"
            mentions = (Mention(namespace=claim.namespace, text=owner),)
            for address in addresses_of([interface.placed]):
                yield _Having(address, interface.vf, owner, mentions)


def _of_hardware(hardware: Hardware) -> Iterator[_Having]:
    for pf in hardware.pfs:
        yield _Having(pf.mac, None, f"PF {pf.name} itself")
        for vf in pf.vfs:
            for mac in {vf.mac, vf.admin_mac}:
                yield _Having(mac, VfRef(pf.pci, vf.index), f"VF {vf.index} of PF {pf.name}")
