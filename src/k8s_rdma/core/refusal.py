"""Refusals of a request: the reason, and one line of text with the node's numbers.

The causes are searched in this order: options and rates that PFs and their drivers do not take, the policy if
the request would fit without it, then VFs and bandwidth.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum, unique
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.bipartite_matching import TooFew
from k8s_rdma.core.packing import Demand, NoPacking, OutOfWorkError, Room, Work, best_fit, places
from k8s_rdma.core.pf_needs import unmet, unmet_cause
from k8s_rdma.core.placement_problem import Offered, PlacementProblem, Usage, choose, matched, rooms
from k8s_rdma.core.programming import demand, enforcement, objection, objection_cause
from k8s_rdma.core.request import InterfaceClass, InterfaceRequest, PfPolicy
from k8s_rdma.core.round_robin import effective_mins
from k8s_rdma.core.shortage import Lack, NodeTotals
from k8s_rdma.core.types import NO_NEEDS, Needs, Setting, Strategy
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Sized

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.offers import Offer

_EMPTY = (Reason.EXCEEDS_CAPACITY, Reason.NO_SUCH_PF, Reason.DRIVER_REFUSES)

_EXAMINED = 512
"""Pairs of a need, or of a rate, and a PF; a request may have a thousand different ones, and to word them all
takes longer than to decide."""
_WEIGHED = 10_000
"""The most interfaces times PFs for which the effect of weights is explained."""
_MAX_CLAUSES = 3
"""Clauses; one interface that no PF takes is enough to refuse a request, and the line is for a terminal."""

_TOGETHER = {PfPolicy.SAME_PF: "PF", PfPolicy.SAME_NUMA: "NUMA node"}

_TERMS = 4_000
"""Work units to compute the PFs' offers again, for the words alone; most often they are known."""


@unique
class Detail(StrEnum):
    """The detail of refusals; nodes with equal texts are shown as one.

    NUMBERS: with the node's free capacity.
    CAUSE: with the missing resource, but without its numbers.
    """

    NUMBERS = "numbers"
    CAUSE = "cause"


class RefusalMessage(NamedTuple):
    """A refusal's text in three forms.

    full: with the names of PFs.
    numbers: with a node's numbers only.
    cause: with neither, so that nodes that refuse a request for one cause give the same text.
    """

    full: str
    numbers: str
    cause: str

    @classmethod
    def nameless(cls, numbers: str, cause: str) -> RefusalMessage:
        """Return a message that names no PF."""
        return cls(numbers, numbers, cause)

    @classmethod
    def joined(cls, messages: Sequence[RefusalMessage]) -> RefusalMessage:
        """Join clauses to one message."""
        return messages[0] if len(messages) == 1 else cls(*map("; ".join, zip(*messages, strict=True)))

    def text(self, detail: Detail) -> str:
        """Return the text with as much of the node as is wanted; never with names."""
        return self.numbers if detail is Detail.NUMBERS else self.cause


class Free(NamedTuple):
    """A PF and its free capacity."""

    pf: Pf
    room: Room


def explain(
    classes: Sequence[InterfaceClass],
    free: Sequence[Free],
    reason: Reason,
    objections: Sequence[RefusalMessage] = (),
    claims_pfs: Sequence[Pf] = (),
) -> RefusalMessage:
    """Return the sentence: the need, the obstacles found, and the remedy if there is one.

    free: the node's present free capacity, or that of the empty node if even that does not take the request
        (`is_empty`). If interfaces have needs, it lists only PFs that meet the needs of any of them.
    objections: the obstacles of PFs and drivers, in clauses.
    claims_pfs: the PFs that are for ResourceClaims alone.
    """
    scene = Scene.from_free(classes, free, empty=is_empty(reason))
    if not free:
        no_pf = _ONLY_CLAIMS_PFS if claims_pfs else _NO_PF
        return RefusalMessage.joined([scene.only_needs(), *(objections or [no_pf])])
    if reason is Reason.UNDECIDED:
        sentences = [scene.undecided()]
    elif reason is not Reason.DRIVER_REFUSES or any(
        interface_class.needs is not NO_NEEDS for interface_class in classes
    ):
        sentences = [scene.impossible(), *scene.unknown_links()]
    else:
        sentences = [scene.only_needs()]
    return RefusalMessage.joined([*sentences, *objections])


def explain_room(need: Need, pfs: Sequence[Pf], rooms: Sequence[Room]) -> RefusalMessage:
    """Return the sentence if only a lack of free capacity keeps the request from these PFs."""
    scene = Scene(need, pfs, rooms)
    return RefusalMessage.joined([scene.impossible(), *scene.unknown_links()])


def explain_rooms(need: Need, pfs: Sequence[Pf], lack: Lack, largest_figure: int | None) -> str:
    """Return the sentence for nodes with these PFs that differ in the free capacity that they lack.

    largest_figure: the largest one of these nodes, if it is wanted: VFs, Mb/s of one PF or of all, or fitting
        interfaces.
    """
    vfs_on_each = 0 if lack is Lack.VFS else need.number
    scene = Scene(need, pfs, [Room(0, vfs_on_each)] * len(pfs))
    figure = ""
    if largest_figure is not None:
        figures = {Lack.VFS: count(largest_figure, "VF"), Lack.PLACES: count(largest_figure, "interface")}
        place = "PF" if lack is Lack.LARGEST else "node"
        figure = f", at most {figures.get(lack, f'{largest_figure} Mb/s')} on a {place}"
    return "; ".join([f"{scene.cause(lack)}{figure}", *(clause.cause for clause in scene.unknown_links())])


def is_empty(reason: Reason) -> bool:
    """Report whether a refusal for the reason tells of the empty node."""
    return reason in _EMPTY


def needed(requests: Sequence[InterfaceRequest | InterfaceClass]) -> str:
    """Return `2 interfaces of 100000 Mb/s`, or another need, in words."""
    return Need.of_interfaces(requests).text


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 PF`, `2 PFs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_NO_PF = RefusalMessage.nameless(*["the node has no SR-IOV PF"] * 2)
_ONLY_CLAIMS_PFS = RefusalMessage.nameless(*["its PFs are for claims"] * 2)


class Need(NamedTuple):
    """The need of a request: how many interfaces, their reservations, and both in words."""

    number: int
    demand: Demand
    text: str

    @classmethod
    def of_interfaces(cls, interfaces: Iterable[InterfaceRequest | InterfaceClass]) -> Need:
        """Return the need of these interfaces."""
        return _need(tuple([interface.min_tx_rate_mbps for interface in interfaces]))


@lru_cache(maxsize=64)
def _need(rates: tuple[int, ...]) -> Need:
    """Return the need; it is cached because thousands of nodes refuse one request."""
    demand = Demand.from_rates(rates)
    return Need(len(rates), demand, _needed(len(rates), demand))


def _needed(number: int, demand: Demand) -> str:
    interfaces = count(number, "interface")
    if not demand.sizes:
        return interfaces
    rates = f"{demand.sizes[0]} Mb/s"
    if len(demand.sizes) > 1:
        rates = f"{demand.sizes[-1]} to {rates}"
    reserving = len(demand.descending)
    return (
        f"{interfaces} of {rates}" if reserving == number else f"{interfaces}, {reserving} of them of {rates}"
    )


class Scene:
    """A request and the PFs that refuse it. rooms: the free capacity of each, or if `empty`, all of it."""

    def __init__(self, need: Need, pfs: Sequence[Pf], rooms: Sequence[Room], *, empty: bool = False) -> None:
        self.number, self.demand, text = need
        self.needs = f"needs {text}"
        self.pfs = pfs
        self.rooms = rooms
        self.empty = empty
        self.totals = NodeTotals.of_rooms(rooms)
        self.mbps, self.vfs, self.best = self.totals

    @classmethod
    def from_free(cls, classes: Sequence[InterfaceClass], free: Sequence[Free], *, empty: bool) -> Scene:
        """Return the scene of interfaces before these PFs."""
        return cls(
            Need.of_interfaces(classes), [pf for pf, _ in free], [room for _, room in free], empty=empty
        )

    @property
    def pfs_have(self) -> str:
        """The PFs that the amounts are of."""
        return f"{count(len(self.pfs), 'PF')} {'has' if len(self.pfs) == 1 else 'have'}"

    @property
    def condition(self) -> str:
        """The condition on the PFs."""
        return "when empty" if self.empty else "free"

    def only_needs(self) -> RefusalMessage:
        """Explain the need, if only drivers keep it from fitting."""
        return RefusalMessage.nameless(self.needs, self.needs)

    def impossible(self) -> RefusalMessage:
        """Return the simplest of the causes that apply."""
        sizes, total_mbps = self.demand.sizes, self.demand.total
        lack = self.totals.lack(self.number, sizes[0], total_mbps) if sizes else Lack.VFS
        return RefusalMessage.nameless(self._numbers(lack), self.cause(lack))

    def cause(self, lack: Lack) -> str:
        """Return the need and the lack, without figures of the node."""
        even = "even when empty" if self.empty else "free"
        if lack is Lack.VFS:
            cause = f"too few VFs {even}"
        elif lack is Lack.LARGEST:
            cause = f"no PF has {self.demand.sizes[0]} Mb/s {even}"
        elif lack is Lack.BANDWIDTH:
            cause = f"too little bandwidth {even}"
        else:
            ending = ", even when empty" if self.empty else ""
            cause = f"no arrangement of the interfaces on its PFs fits{ending}"
        return f"{self.needs}; {cause}"

    def undecided(self) -> RefusalMessage:
        """Explain the known facts, and how to make the request decidable."""
        why = (
            f"the search for an arrangement of {len(self.demand.sizes)} distinct rates "
            "ended at its work budget: fewer distinct rates (such as multiples of 1000 Mb/s), "
            "fewer interfaces or less bandwidth make it decidable"
        )
        return RefusalMessage.nameless(f"{self._together()}; {why}", f"{self.needs}; {why}")

    def unknown_links(self) -> list[RefusalMessage]:
        """Return a clause on PFs with unknown link speed; empty without such PFs, or if VFs are missing."""
        if not self.demand.sizes or self.number > self.vfs:
            return []
        pairs = zip(self.pfs, self.rooms, strict=True)
        names = [pf.name for pf, room in pairs if pf.link_mbps is None and room.vfs]
        if not names:
            return []
        only = "is unknown (link down?), only interfaces without a reservation fit there"
        return [
            RefusalMessage(
                f"link speed of {', '.join(names)} {only}",
                f"link speed of {count(len(names), 'PF')} {only}",
                f"link speed of a PF {only}",
            )
        ]

    def _numbers(self, lack: Lack) -> str:
        """Return the need and the lack, with the figures of the node."""
        if lack is Lack.VFS:
            return f"{self.needs}; {self.pfs_have} {self._free_vfs()}"
        if lack is Lack.LARGEST:
            needs = self.needs
            if len(self.demand.sizes) > 1:
                needs = f"needs an interface of {self.demand.sizes[0]} Mb/s"
            mbps, vfs = self.best
            return f"{needs}; best PF has {mbps} Mb/s and {count(vfs, 'VF')} {self.condition}"
        if lack is Lack.BANDWIDTH:
            return (
                f"needs {self.demand.total} Mb/s for {count(self.number, 'interface')}; "
                f"{self.pfs_have} {self._free_mbps()} and {self._free_vfs()}"
            )
        return self._too_few_places() or f"{self._together()}, but no arrangement of the interfaces fits"

    def _too_few_places(self) -> str:
        """Explain more interfaces of a rate, or larger, than PFs take; empty when that is not the cause."""
        needed = 0
        for size, number in zip(self.demand.sizes, self.demand.counts, strict=True):
            needed += number
            room_for = places(size, self.rooms)
            if needed > room_for:
                least = " or more" if size < self.demand.sizes[0] else ""
                return (
                    f"needs {count(needed, 'interface')} of {size} Mb/s{least}; "
                    f"{self.pfs_have} {self._free_mbps()} and {self._free_vfs()}, "
                    f"room for {room_for} such {'interface' if room_for == 1 else 'interfaces'}"
                )
        return ""

    def _together(self) -> str:
        return (
            f"{self.needs} ({self.demand.total} Mb/s together); "
            f"{self.pfs_have} {self._free_mbps()} and {self._free_vfs()}"
        )

    def _free_mbps(self) -> str:
        if self.empty:
            return f"{self.mbps} Mb/s"
        return f"{self.mbps} of {sum(pf.link_mbps or 0 for pf in self.pfs)} Mb/s unreserved"

    def _free_vfs(self) -> str:
        if self.empty:
            return f"{count(self.vfs, 'VF')} {self.condition}"
        return f"{self.vfs} of {count(sum(pf.capacity_vfs for pf in self.pfs), 'VF')} free"


class _Clause(NamedTuple):
    """A clause about some PFs, with their names; the cause has no numbers of theirs.

    names: keys, each once, though interfaces that differ in something else are refused with the same words.
    """

    names: dict[str, None]
    why: str
    cause: str


def objections(kinds: Sequence[InterfaceClass], offered: Offered) -> list[RefusalMessage]:
    """Return the clauses; empty if only free capacity matters.

    kinds: the largest reservation first. If there are many, those that fewest PFs take are examined.
    """
    class_indexes, terms, offers = offered
    takers = [sum([offer.costs[index] is not None for offer in offers]) for index in range(len(terms.kinds))]
    scarce = sorted(range(len(kinds)), key=lambda index: takers[terms.class_of[index]])
    examined = sorted(scarce[: max(1, _EXAMINED // max(1, len(offers)))])
    found = [
        *_unmet([kinds[index].needs for index in scarce], offers),
        *_refused([kinds[index] for index in examined], offers),
        *_rounded([(kinds[index].min_tx_rate_mbps, terms.class_of[index]) for index in examined], offers),
        *_weighed(class_indexes, offers),
    ]
    if not found:
        return []
    omitted = [f"{len(found) - _MAX_CLAUSES} more such limits"] if len(found) > _MAX_CLAUSES else []
    clauses = found[:_MAX_CLAUSES]
    return [
        RefusalMessage(
            "; ".join([*(f"{', '.join(clause.names)}: {clause.why}" for clause in clauses), *omitted]),
            "; ".join([*(f"{_number(clause.names)}: {clause.why}" for clause in clauses), *omitted]),
            "; ".join(sorted({clause.cause for clause in found})[:_MAX_CLAUSES]),
        )
    ]


def _number(pfs: Sized) -> str:
    return f"{len(pfs)} PF{'s' if len(pfs) > 1 else ''}"


def _unmet(scarce: Iterable[Needs], offers: Sequence[Offer]) -> Iterator[_Clause]:
    """Explain PFs that do not meet needs: one clause for those with the same explanation."""
    clauses: dict[str, _Clause] = {}
    for needs in islice(dict.fromkeys(scarce), max(1, _EXAMINED // max(1, len(offers)))):
        for offer in offers:
            why = unmet(offer.pf, needs)
            if not why:
                continue
            clause = clauses.setdefault(why, _Clause({}, why, f"a PF: {unmet_cause(offer.pf, needs)}"))
            clause.names[offer.pf.name] = None
    yield from clauses.values()


def _refused(kinds: Sequence[InterfaceClass], offers: Sequence[Offer]) -> Iterator[_Clause]:
    """Rates that cannot be programmed but must be: one clause for the PFs that say the same."""
    alike: dict[tuple[object, ...], list[Pf]] = {}
    for pf in (offer.pf for offer in offers):
        by_software = Setting.SOFTWARE_CAPS in pf.supported_settings
        alike.setdefault((pf.rates, pf.link_mbps, pf.enforce, by_software, pf.driver), []).append(pf)
    clauses: dict[tuple[str, str], _Clause] = {}
    for kind in kinds:
        for pf, *similar in alike.values():
            why = objection(pf, kind)
            if why:
                origin = "there" if pf.enforce is enforcement(pf, kind) else "by the pod"
                clause = _Clause(
                    {},
                    f"{why}, and {demand(pf, kind)} {origin}",
                    f"{objection_cause(pf, kind)}, and {demand(pf, kind)} {origin}",
                )
                clauses.setdefault((why, origin), clause).names.update(
                    {alike_pf.name: None for alike_pf in (pf, *similar)}
                )
    yield from clauses.values()


def _rounded(rates: Sequence[tuple[int, int]], offers: Sequence[Offer]) -> Iterator[_Clause]:
    """Reservations, each with its class, that cost more than they say."""
    pf_names: dict[tuple[int, int, str], dict[str, None]] = {}
    for offer in offers:
        for rate, index in rates:
            cost = offer.costs[index]
            if cost is not None and cost > rate:
                pf_names.setdefault((rate, cost, offer.pf.driver), {})[offer.pf.name] = None
    for (rate, cost, driver), names in pf_names.items():
        why = f"{driver} rounds a reservation of {rate} up to {cost} Mb/s"
        yield _Clause(names, why, f"{driver} rounds reservations up")


def _weighed(class_indexes: Sequence[int], offers: Sequence[Offer]) -> Iterator[_Clause]:
    """Explain PFs on which the sum would fit, but some VF would get less than its reservation."""
    if not any(offer.round_robin for offer in offers) or len(class_indexes) * len(offers) > _WEIGHED:
        return
    least = [
        min((cost or 0 for cost in row if cost is not None), default=0)
        for row in zip(*(offer.costs for offer in offers), strict=True)
    ]
    costs = sorted([least[class_index] for class_index in class_indexes], reverse=True)
    chosen = best_fit(costs, [offer.room for offer in offers])
    for index, offer in enumerate(offers):
        round_robin = offer.round_robin
        if round_robin is None or chosen is None:
            continue
        joining = [cost for cost, offer_index in zip(costs, chosen, strict=True) if offer_index == index]
        mins = [*round_robin.mins, *joining, *[0] * round_robin.unreserved_vfs]
        effective = effective_mins(mins, round_robin.link_mbps, round_robin.max_weight)
        short, rate = min(
            zip((g - m for g, m in zip(effective, mins, strict=True)), mins, strict=True), default=(0, 0)
        )
        if joining and short < 0:
            weights = f"minimum rates of {offer.pf.driver} are weights"
            yield _Clause(
                {offer.pf.name: None},
                f"{weights} of 1 to {round_robin.max_weight}, by which one VF would get {rate + short} "
                f"of its {rate} Mb/s",
                f"{weights}, by which a VF would get less than is reserved for it",
            )


def explain_policy(
    task: PlacementProblem, used: Usage, free: Sequence[Free], work: Work, *, empty: bool
) -> RefusalMessage:
    """Return the sentence for a task that fits nowhere, but would without its policy.

    free: of the node as it is used, or of the empty node.
    """
    if task.policy is PfPolicy.SPREAD_PFS:
        sentence = _apart(task, used, work, empty=empty)
    else:
        sentence = _together(task, free, empty=empty)
    return RefusalMessage(*(f"policy {task.policy}: {text}" for text in sentence))


def _apart(task: PlacementProblem, used: Usage, work: Work, *, empty: bool) -> RefusalMessage:
    """Return the interfaces that too few PFs take, and how many these are."""
    [pfs] = task.groups()
    interfaces = task.requested_classes
    number, takers = len(interfaces), len(pfs)
    try:
        short = matched(task, used, work) if number <= len(pfs) else None
    except OutOfWorkError:
        short = None
    adjective = "other " if task.sibling_pfs else ""
    pf_count = f"the node has {count(len(pfs), f'{adjective}PF')}"
    if isinstance(short, TooFew):
        interfaces = [interfaces[index] for index in sorted(short.interfaces)]
        number, takers = len(interfaces), len(short.offers)
        reserving = any(interface.min_tx_rate_mbps for interface in interfaces)
        need = f"{'a VF' if empty else 'a free VF'}{' and enough bandwidth' if reserving else ''}"
        auxiliary = "has" if takers == 1 else "have"
        pf_count = f"{takers} of {len(pfs)} {adjective}PFs {auxiliary} {need}{' when empty' if empty else ''}"
    verb = "needs" if number == 1 else "need"
    even = " even when empty" if empty else ""
    return RefusalMessage.nameless(
        f"{needed(interfaces)} {verb} {count(number, 'PF')}; {pf_count}",
        f"needs {needed(task.requested_classes)}; too few PFs have room for one{even}",
    )


def _together(task: PlacementProblem, free: Sequence[Free], *, empty: bool) -> RefusalMessage:
    """Explain the shortage of the best of the groups."""
    group_noun = _TOGETHER[task.policy]
    needs = f"needs {needed(task.requested_classes)}"
    even = " even when empty" if empty else ""
    cause = f"{needs}; no {group_noun} has room for all{even}"
    found = task.groups()
    if not found:
        return RefusalMessage.nameless(f"{needs}; no {group_noun} has all of its other interfaces", cause)
    by_pci = {candidate.pf.pci: candidate for candidate in free}
    groups = [[by_pci[pf.pci] for pf in group if pf.pci in by_pci] for group in found]
    number, mbps = len(task.class_indexes), sum(task.rates)
    best = Scene.from_free(
        task.requested_classes,
        max(groups, key=lambda candidates: _roominess(candidates, number, mbps)),
        empty=empty,
    )
    subject = (
        "where its other interfaces are" if task.sibling_pfs else f"best of {_counted(task.policy, found)}"
    )
    return RefusalMessage.nameless(f"{best.impossible().numbers} ({subject})", cause)


def _counted(policy: PfPolicy, found: Sequence[Sequence[Pf]]) -> str:
    """`4 PFs`, `2 NUMA nodes and 1 PF without one`."""
    lone = 0
    if policy is PfPolicy.SAME_NUMA:
        lone = sum(group[0].numa_node is None for group in found)
    together = [count(len(found) - lone, _TOGETHER[policy])] if lone < len(found) else []
    alone = [f"{count(lone, 'PF')} without {'one' if together else 'a NUMA node'}"] if lone else []
    return " and ".join([*together, *alone])


def _roominess(candidates: Sequence[Free], number: int, needed_mbps: int) -> tuple[bool, bool, int, int]:
    mbps, vfs = (
        sum(candidate.room.mbps for candidate in candidates),
        sum(entry.room.vfs for entry in candidates),
    )
    return vfs >= number and mbps >= needed_mbps, vfs >= number, mbps, vfs


def explain_refusal(
    task: PlacementProblem, used: Usage, verdict: NoPacking, work: Work
) -> tuple[Reason, RefusalMessage]:
    """Return the reason for `core.placement.Rejection`, and the sentence.

    If only the policy keeps the request from fitting, the reason stays the same, and the sentence names the
    policy.
    """
    if task.strategy is not Strategy.BINPACK:  # whether there is a placement is found soonest so
        task = replace(task, strategy=Strategy.BINPACK)
    reason = _reason(task, verdict, work)
    if is_empty(reason):
        used = {}
    free = list(map(Free, task.inventory.pfs, rooms(task.inventory, used)))
    against: Sequence[RefusalMessage] = ()
    offered = None if task.rooms_alone else _offered(task, used)
    if offered is not None:
        against = objections(task.kinds, offered)
        if reason is not Reason.EXCEEDS_CAPACITY:  # # that holds for any driver
            free = _free_for(task, offered, free)
    if reason is not Reason.UNDECIDED and _by_policy(task, used, work):
        sentence = explain_policy(task, used, free, work, empty=is_empty(reason))
        return reason, RefusalMessage.joined([sentence, *against])
    claims_pfs = task.inventory.claims_pfs
    return reason, explain(task.requested_classes, free, reason, against, claims_pfs)


def _offered(task: PlacementProblem, used: Usage) -> Offered | None:
    """Compute the offers, unless request and node are too large even for that."""
    try:
        return task.offered(used, Work(_TERMS))
    except OutOfWorkError:
        return None


def _reason(task: PlacementProblem, verdict: NoPacking, work: Work) -> Reason:
    if not task.inventory.pfs:
        return Reason.NO_RDMA
    if verdict is not NoPacking.IMPOSSIBLE:
        return Reason.UNDECIDED
    if choose(task, {}, work) is not NoPacking.IMPOSSIBLE:
        return Reason.INSUFFICIENT
    if not task.rooms_alone and _plain(task, work) is not NoPacking.IMPOSSIBLE:
        return Reason.NO_SUCH_PF if _by_choice(task, work) else Reason.DRIVER_REFUSES
    return Reason.EXCEEDS_CAPACITY


def _by_choice(task: PlacementProblem, work: Work) -> bool:
    """Report whether only its choice of PFs excludes it on the empty node, not drivers."""
    return task.choosy and choose(task.anywhere(), {}, work) is not NoPacking.IMPOSSIBLE


def _plain(task: PlacementProblem, work: Work) -> list[int] | NoPacking:
    """Place the rates alone on the empty node, as if drivers supported everything."""
    return choose(task.plain(), {}, work)


def _by_policy(task: PlacementProblem, used: Usage, work: Work) -> bool:
    """Report whether it would fit without the policy."""
    if task.policy is PfPolicy.ANY or not task.inventory.pfs:
        return False
    return choose(replace(task, policy=PfPolicy.ANY), used, work) is not NoPacking.IMPOSSIBLE


def _free_for(task: PlacementProblem, offered: Offered, free: Sequence[Free]) -> list[Free]:
    """Return the free capacity for these interfaces; if they have needs, of the PFs that take any of them."""
    if not task.needy:
        return [Free(offer.pf, offer.room) for offer in offered.offers]
    return [candidate for candidate, offer in zip(free, offered.offers, strict=True) if offer.accepts_any]
