"""The problem of placing one request on one node: a PF for each interface, as policy and strategy ask.

Exact within a budget of work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.assignment import assign
from k8s_rdma.core.greedy import PREFERENCE, preferred_fit
from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.inventory import NOTHING_USED, Inventory
from k8s_rdma.core.matching import TooFew, match
from k8s_rdma.core.offers import Terms, common_costs, offers, room_of, terms
from k8s_rdma.core.options import NO_NEEDS
from k8s_rdma.core.packing import arrange
from k8s_rdma.core.rates import EVERY_RATE, Enforce
from k8s_rdma.core.request import InterfaceClass, PfPolicy, groups, has_pf_constraints
from k8s_rdma.core.rooms import OutOfWorkError, Verdict
from k8s_rdma.core.strategy import Standing, Strategy, preference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.inventory import Pf, Used
    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.rooms import Room, Work

    Usage = Mapping[PciAddress, Used]

_GREEDY_PERCENT = 30
"""Of the work, at most, for a strategy's own way; what comes after it is exact."""


class Offered(NamedTuple):
    """What PFs offer to interfaces: the class of each (`core.offers.Terms`), the terms, and the offers."""

    classes: list[int]
    terms: Terms
    offers: list[Offer]


@dataclass(slots=True)
class PlacementProblem:
    """What is to be placed, and where.

    kinds: of interfaces, distinct, the largest reservation first. class_indexes: the kind of each interface,
        rising.
    sibling_pfs: where other interfaces of the pod are already.
    any_pf: as if it did not matter which PFs these are: their names, links or MTU.
    found: the PFs' terms, once they are known, which hold whatever is used.
    """

    kinds: Sequence[InterfaceClass]
    class_indexes: Sequence[int]
    inventory: Inventory
    policy: PfPolicy = PfPolicy.ANY
    sibling_pfs: Collection[PciAddress] = ()
    strategy: Strategy = Strategy.BINPACK
    any_pf: bool = False
    found: Terms | None = None

    @property
    def requested_classes(self) -> list[InterfaceClass]:
        """The kind of each interface."""
        return [self.kinds[kind] for kind in self.class_indexes]

    @property
    def rates(self) -> list[int]:
        """What each reserves, Mb/s."""
        return [self.kinds[kind].min_tx_rate_mbps for kind in self.class_indexes]

    @property
    def needy(self) -> bool:
        """Report whether an interface needs something of a PF."""
        for kind in self.kinds:  # noqa: SIM110 - a generator takes three times as long
            if kind.needs is not NO_NEEDS:
                return True
        return False

    @property
    def rooms_alone(self) -> bool:
        """Report whether PFs differ for these in nothing but what is free of them."""
        return self.inventory.takes_every_rate and not self.needy

    @property
    def choosy(self) -> bool:
        """Report whether an interface wants certain PFs, whatever their drivers can do."""
        return any(has_pf_constraints(kind.needs) for kind in self.kinds)

    def groups(self) -> list[tuple[Pf, ...]]:
        """The sets of PFs of which one has to take all."""
        return groups(self.policy, self.inventory.pfs, self.sibling_pfs)

    def among(self, pfs: tuple[Pf, ...]) -> PlacementProblem:
        """The same where a node had these PFs alone, which are as the policy has it."""
        inventory = Inventory(node=self.inventory.node, pfs=pfs)
        return replace(self, inventory=inventory, policy=PfPolicy.ANY, found=None)

    def anywhere(self) -> PlacementProblem:
        """The same if it did not matter which PFs these are."""
        return replace(self, any_pf=True, found=None)

    def plain(self) -> PlacementProblem:
        """The same if drivers could do everything, and nothing but rates was asked for."""
        kinds = [InterfaceClass(kind.min_tx_rate_mbps, 0, Enforce.AUTO, NO_NEEDS) for kind in self.kinds]
        pfs = tuple(replace(pf, rates=EVERY_RATE, enforce=Enforce.AUTO) for pf in self.inventory.pfs)
        inventory = Inventory(node=self.inventory.node, pfs=pfs)
        return replace(self, kinds=kinds, inventory=inventory, found=None)

    def offered(self, used: Usage, work: Work) -> Offered:
        """What the PFs offer to the interfaces. OutOfWorkError on the way."""
        if self.found is None:
            self.found = terms(self.kinds, self.inventory.pfs, work, any_pf=self.any_pf)
        class_indexes = [self.found.class_of[kind] for kind in self.class_indexes]
        return Offered(class_indexes, self.found, offers(self.found, self.inventory.pfs, used))


def choose(task: PlacementProblem, used: Usage, work: Work) -> list[int] | Verdict:
    """The index of a PF for each interface."""
    if _too_much(task, used):
        return Verdict.IMPOSSIBLE
    try:
        if task.policy is PfPolicy.ANY:
            return _anywhere(task, used, work)
        if task.policy is PfPolicy.SPREAD_PFS:
            return _place_spread(task, used, work)
        return _place_in_one_group(task, used, work)
    except OutOfWorkError:
        return Verdict.UNDECIDED


def _too_much(task: PlacementProblem, used: Usage) -> bool:
    """Whether sums alone exclude it, before it is known which PFs take what; no reservation costs less."""
    free, rates = rooms(task.inventory, used), task.rates
    if len(rates) > sum([room.vfs for room in free]) or sum(rates) > sum([room.mbps for room in free]):
        return True
    return bool(rates) and rates[0] > max([room.mbps for room in free if room.vfs], default=0)


def _anywhere(task: PlacementProblem, used: Usage, work: Work) -> list[int] | Verdict:
    """OutOfWorkError on the way."""
    if task.strategy is not Strategy.BINPACK:
        chosen = _preferred(task, used, work)
        if chosen:
            return chosen
    if task.rooms_alone:
        return arrange(task.rates, rooms(task.inventory, used), work)
    class_indexes, found, offers = task.offered(used, work)
    costs = common_costs(offers, found.kinds)
    if costs is None:
        return assign(class_indexes, offers, work)
    falling = sorted(range(len(class_indexes)), key=lambda index: -costs[class_indexes[index]])
    arranged = arrange(
        [costs[class_indexes[position]] for position in falling], [offer.room for offer in offers], work
    )
    if isinstance(arranged, Verdict):
        return arranged
    homes = dict(zip(falling, arranged, strict=True))
    return [homes[index] for index in range(len(class_indexes))]


def _preferred(task: PlacementProblem, used: Usage, work: Work) -> list[int] | None:
    """By the strategy's own way; None where that leads nowhere, or takes too long for so many."""
    needed = PREFERENCE * len(task.class_indexes) * len(task.inventory.pfs)
    if needed > work.remaining * _GREEDY_PERCENT // 100:
        return None
    class_indexes, _, offers = task.offered(used, work)
    runs = [(kind, len(list(run))) for kind, run in groupby(class_indexes)]
    try:
        with work.share(_GREEDY_PERCENT) as share:
            return preferred_fit(runs, offers, task.strategy, share)
    except OutOfWorkError:
        return None


def rooms(inventory: Inventory, used: Usage) -> list[Room]:
    """What is free of each PF."""
    return [room_of(pf, used.get(pf.pci, NOTHING_USED)) for pf in inventory.pfs]


def _place_in_one_group(task: PlacementProblem, used: Usage, work: Work) -> list[int] | Verdict:
    """All on one of the groups: on the first that takes them, the one that the strategy prefers first.

    Each may take its part of the work that is left, so that a hard one does not keep from trying the next.
    """
    found = Verdict.IMPOSSIBLE
    ordered = _roomy(task, used)
    for tried, group in enumerate(ordered):
        with work.share(100 // (len(ordered) - tried)) as share:
            chosen = choose(task.among(group), used, share)
        if not isinstance(chosen, Verdict):
            positions = {pf.pci: index for index, pf in enumerate(task.inventory.pfs)}
            return [positions[group[index].pci] for index in chosen]
        if chosen is Verdict.UNDECIDED:
            found = chosen
    return found


def _roomy(task: PlacementProblem, used: Usage) -> list[tuple[Pf, ...]]:
    """The groups that would have room if it were of one piece, the preferred one first.

    A reservation costs as much as it says at least.
    """
    mbps, vfs = sum(task.rates), len(task.class_indexes)

    def standing(group: Iterable[Pf]) -> Standing:
        return Standing.total(
            [Standing.from_room(pf, room_of(pf, used.get(pf.pci, NOTHING_USED))) for pf in group]
        )

    found = [(standing(group), group) for group in task.groups()]
    roomy = [(free, group) for free, group in found if mbps <= free.mbps and vfs <= free.vfs]
    return [
        group for room, group in sorted(roomy, key=lambda pair: preference(task.strategy, pair[0], mbps, vfs))
    ]


def _place_spread(task: PlacementProblem, used: Usage, work: Work) -> list[int] | Verdict:
    """Each on a PF of its own."""
    found = matched(task, used, work)
    if isinstance(found, TooFew):
        return Verdict.IMPOSSIBLE
    positions = [index for index, pf in enumerate(task.inventory.pfs) if pf.pci not in task.sibling_pfs]
    return [positions[index] for index in found]


def matched(task: PlacementProblem, used: Usage, work: Work) -> list[int] | TooFew:
    """Each on one of its own, of the PFs that are left beside; or what there are too few of them for."""
    [free] = task.groups()
    if len(task.class_indexes) > len(free):
        return TooFew(range(len(task.class_indexes)), range(len(free)))
    class_indexes, _, offers = task.among(free).offered(used, work)
    return match(class_indexes, offers, task.strategy, work)
