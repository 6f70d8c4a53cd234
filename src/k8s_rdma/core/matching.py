"""A PF of its own for each interface: bipartite matching by augmenting paths (Kuhn 1955), which is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.greedy import Bin

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.rooms import Work
    from k8s_rdma.core.strategy import Strategy


class TooFew(NamedTuple):
    """All interfaces, as indices, that none but these offers take, which are fewer (Hall's theorem)."""

    interfaces: Collection[int]
    offers: Collection[int]


def match(kinds: Sequence[int], made: Sequence[Offer], strategy: Strategy, work: Work) -> list[int] | TooFew:
    """An offer's index for each interface, no two the same; or which interfaces there are too few offers for.

    Each goes to the offer that the strategy would rather have it on, as far as the others leave it that.
    OutOfWorkError on the way.
    """
    if len(kinds) > len(made):
        return TooFew(range(len(kinds)), range(len(made)))
    bins = [Bin(at, offer) for at, offer in enumerate(made)]
    takers = {kind: _takers(kind, bins, strategy, work) for kind in set(kinds)}
    owners: dict[int, int] = {}
    for interface in range(len(kinds)):
        work.spend(1 + len(made))
        short = _augment(interface, kinds, takers, owners)
        if short is not None:
            return TooFew([at for at, kind in enumerate(kinds) if short.issuperset(takers[kind])], short)
    homes = {interface: offer for offer, interface in owners.items()}
    return [homes[interface] for interface in range(len(kinds))]


def _takers(kind: int, bins: Sequence[Bin], strategy: Strategy, work: Work) -> list[int]:
    """The offers that take an interface of the kind beside nothing else, the preferred one first."""
    work.spend(3 * len(bins))
    takers = [each for each in bins if each.turn_to(kind) and each.takes(work)]
    return [each.at for each in sorted(takers, key=lambda each: (*each.preference(strategy), each.at))]


def _augment(
    interface: int, kinds: Sequence[int], takers: dict[int, list[int]], owners: dict[int, int]
) -> set[int] | None:
    """Find the interface an offer, for which others may have to go to another; breadth first.

    owners: the interface that each offer in use was given to; changed when that works. Returns the offers
    that were asked for in vain; None when it does.
    """
    came_from: dict[int, int] = {}
    asking = [interface]
    for asks in asking:
        for offer in takers[kinds[asks]]:
            if offer in came_from:
                continue
            came_from[offer] = asks
            if offer not in owners:
                _hand_over(offer, came_from, owners, until=interface)
                return None
            asking.append(owners[offer])
    return set(came_from)


def _hand_over(offer: int, came_from: dict[int, int], owners: dict[int, int], *, until: int) -> None:
    """Give the offer to whoever asked for it, and what that one had before to who asked for that."""
    had = {interface: each for each, interface in owners.items()}
    while True:
        taker = came_from[offer]
        owners[offer] = taker
        if taker == until:
            return
        offer = had[taker]
