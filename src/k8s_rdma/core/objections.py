"""What PFs and their drivers have against a request, in clauses for its refusal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.needs import unmet, unmet_cause
from k8s_rdma.core.options import Setting
from k8s_rdma.core.packing import best_fit
from k8s_rdma.core.programming import demand, enforcement, objection, objection_cause
from k8s_rdma.core.said import Said
from k8s_rdma.core.weights import effective_mins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Sized

    from k8s_rdma.core.choosing import Offered
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.needs import Kind
    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.options import Needs

_LOOKED_AT = 512
"""Pairs of a need, or of a rate, and a PF; a request may have a thousand different ones, and to word them all
takes longer than to decide."""
_WEIGHED = 10_000
"""Interfaces times PFs: for more it is not said what weights make of them."""
_MOST = 3
"""Clauses; one interface that nothing takes is enough to refuse a request, and the line is for a terminal."""


class _Clause(NamedTuple):
    """What some PFs, by their names, have against it; the cause without numbers of theirs.

    names: keys, each once, though interfaces that differ in something else are refused with the same words.
    """

    names: dict[str, None]
    why: str
    cause: str


def objections(kinds: Sequence[Kind], offered: Offered) -> list[Said]:
    """The clauses, none when nothing but what is free matters.

    kinds: the largest reservation first. Where there are many, those are looked at that fewest PFs take.
    """
    of, terms, made = offered
    takers = [sum([offer.costs[at] is not None for offer in made]) for at in range(len(terms.kinds))]
    scarce = sorted(range(len(kinds)), key=lambda at: takers[terms.class_of[at]])
    few = sorted(scarce[: max(1, _LOOKED_AT // max(1, len(made)))])
    found = [
        *_unmet([kinds[at].needs for at in scarce], made),
        *_refused([kinds[at] for at in few], made),
        *_rounded([(kinds[at].min_tx_rate_mbps, terms.class_of[at]) for at in few], made),
        *_weighed(of, made),
    ]
    if not found:
        return []
    more = [f"{len(found) - _MOST} more such limits"] if len(found) > _MOST else []
    clauses = found[:_MOST]
    return [
        Said(
            "; ".join([*(f"{', '.join(each.names)}: {each.why}" for each in clauses), *more]),
            "; ".join([*(f"{_number(each.names)}: {each.why}" for each in clauses), *more]),
            "; ".join(sorted({each.cause for each in found})[:_MOST]),
        )
    ]


def _number(pfs: Sized) -> str:
    return f"{len(pfs)} PF{'s' if len(pfs) > 1 else ''}"


def _unmet(scarce: Iterable[Needs], made: Sequence[Offer]) -> Iterator[_Clause]:
    """PFs that are not what is needed: one clause for those that say the same."""
    said: dict[str, _Clause] = {}
    for needs in islice(dict.fromkeys(scarce), max(1, _LOOKED_AT // max(1, len(made)))):
        for offer in made:
            why = unmet(offer.pf, needs)
            if not why:
                continue
            clause = said.setdefault(why, _Clause({}, why, f"a PF: {unmet_cause(offer.pf, needs)}"))
            clause.names[offer.pf.name] = None
    yield from said.values()


def _refused(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Rates that cannot be programmed but must be: one clause for the PFs that say the same."""
    alike: dict[tuple[object, ...], list[Pf]] = {}
    for pf in (offer.pf for offer in made):
        by_software = Setting.SOFTWARE_CAPS in pf.takes
        alike.setdefault((pf.rates, pf.link_mbps, pf.enforce, by_software, pf.driver), []).append(pf)
    said: dict[tuple[str, str], _Clause] = {}
    for kind in kinds:
        for pf, *others in alike.values():
            why = objection(pf, kind)
            if why:
                by = "there" if pf.enforce is enforcement(pf, kind) else "by the pod"
                clause = _Clause(
                    {},
                    f"{why}, and {demand(pf, kind)} {by}",
                    f"{objection_cause(pf, kind)}, and {demand(pf, kind)} {by}",
                )
                said.setdefault((why, by), clause).names.update({each.name: None for each in (pf, *others)})
    yield from said.values()


def _rounded(rates: Sequence[tuple[int, int]], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Reservations, each with its class, that cost more than they say."""
    said: dict[tuple[int, int, str], dict[str, None]] = {}
    for offer in made:
        for rate, at in rates:
            cost = offer.costs[at]
            if cost is not None and cost > rate:
                said.setdefault((rate, cost, offer.pf.driver), {})[offer.pf.name] = None
    for (rate, cost, driver), names in said.items():
        why = f"{driver} rounds a reservation of {rate} up to {cost} Mb/s"
        yield _Clause(names, why, f"{driver} rounds reservations up")


def _weighed(of: Sequence[int], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Where the reservations would add up, but some VF would get less than its own."""
    if not any(offer.round_robin for offer in made) or len(of) * len(made) > _WEIGHED:
        return
    least = [
        min((cost or 0 for cost in row if cost is not None), default=0)
        for row in zip(*(offer.costs for offer in made), strict=True)
    ]
    costs = sorted([least[each] for each in of], reverse=True)
    chosen = best_fit(costs, [offer.room for offer in made])
    for at, offer in enumerate(made):
        round_robin = offer.round_robin
        if round_robin is None or chosen is None:
            continue
        joining = [cost for cost, there in zip(costs, chosen, strict=True) if there == at]
        mins = [*round_robin.mins, *joining, *[0] * round_robin.others]
        got = effective_mins(mins, round_robin.link_mbps, round_robin.most)
        short, rate = min(
            zip((g - m for g, m in zip(got, mins, strict=True)), mins, strict=True), default=(0, 0)
        )
        if joining and short < 0:
            weights = f"minimum rates of {offer.pf.driver} are weights"
            yield _Clause(
                {offer.pf.name: None},
                f"{weights} of 1 to {round_robin.most}, by which one VF would get {rate + short} of its "
                f"{rate} Mb/s",
                f"{weights}, by which a VF would get less than is reserved for it",
            )
