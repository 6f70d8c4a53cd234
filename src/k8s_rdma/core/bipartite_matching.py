"""Interfaces matched to PFs, if each must have a PF of its own.

Bipartite matching by augmenting paths decides (Kuhn 1955). A refusal is a proof (Hall's theorem: some
interfaces have too few PFs that take them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.offers import Bin, Offer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.core.packing import Work
    from k8s_rdma.core.types import Strategy


class TooFew(NamedTuple):
    """Interfaces, as indices, that only these offers take, which are fewer (Hall's theorem)."""

    interfaces: Collection[int]
    offers: Collection[int]


def match(
    kinds: Sequence[int], offers: Sequence[Offer], strategy: Strategy, work: Work
) -> list[int] | TooFew:
    """Return an offer's index for each interface, each once; or the interfaces that have too few offers.

    Each gets the offer that the strategy prefers, if the others can still be matched.
    OutOfWorkError on the way.
    """
    if len(kinds) > len(offers):
        return TooFew(range(len(kinds)), range(len(offers)))
    bins = [Bin(index, offer) for index, offer in enumerate(offers)]
    takers = {kind: _takers(kind, bins, strategy, work) for kind in set(kinds)}
    owners: dict[int, int] = {}
    for interface in range(len(kinds)):
        work.spend(1 + len(offers))
        short = _augment(interface, kinds, takers, owners, work)
        if short is not None:
            return TooFew(
                [kind_index for kind_index, kind in enumerate(kinds) if short.issuperset(takers[kind])], short
            )
    homes = {interface: offer for offer, interface in owners.items()}
    return [homes[interface] for interface in range(len(kinds))]


def _takers(kind: int, bins: Sequence[Bin], strategy: Strategy, work: Work) -> list[int]:
    """Return the offers that take an interface of the kind beside no other, the preferred one first."""
    work.spend(3 * len(bins))
    takers = [taker for taker in bins if taker.turn_to(kind) and taker.accepts(work)]
    return [
        taker.index for taker in sorted(takers, key=lambda taker: (*taker.preference(strategy), taker.index))
    ]


def _augment(
    interface: int, kinds: Sequence[int], takers: dict[int, list[int]], owners: dict[int, int], work: Work
) -> set[int] | None:
    """Find the interface an offer, for which others may have to go to another; breadth first.

    If that fails, return the offers that were tried in vain.

    owners: the interface that each offer in use was given to; changed if it works.
    """
    came_from: dict[int, int] = {}
    queue = [interface]
    for requester in queue:
        work.spend(1 + len(takers[kinds[requester]]) // 4)
        for offer in takers[kinds[requester]]:
            if offer in came_from:
                continue
            came_from[offer] = requester
            if offer not in owners:
                _hand_over(offer, came_from, owners, target=interface)
                return None
            queue.append(owners[offer])
    return set(came_from)


def _hand_over(offer: int, came_from: dict[int, int], owners: dict[int, int], *, target: int) -> None:
    """Give the offer to the interface that asked for it, its previous offer to the next, and so on."""
    previous = {interface: owner for owner, interface in owners.items()}
    while True:
        taker = came_from[offer]
        owners[offer] = taker
        if taker == target:
            return
        offer = previous[taker]
