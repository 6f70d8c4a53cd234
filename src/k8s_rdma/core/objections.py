"""What PFs and their drivers have against a request, in clauses for its refusal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.needs import unmet, unmet_cause
from k8s_rdma.core.packing import best_fit
from k8s_rdma.core.programming import demand, enforcement, objection, objection_cause
from k8s_rdma.core.said import Said
from k8s_rdma.core.weights import effective_mins

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.needs import Kind
    from k8s_rdma.core.offers import Offer

_LOOKED_AT = 64
"""Needs; a request may have a thousand different ones, and to word them all takes longer than to decide."""
_MOST = 3
"""Clauses; one interface that nothing takes is enough to refuse a request, and the line is for a terminal."""


class _Clause(NamedTuple):
    """What some PFs, by their names, have against it; the cause without numbers of theirs.

    names: keys, each once, though interfaces that differ in something else are refused with the same words.
    """

    names: dict[str, None]
    why: str
    cause: str


def objections(wanted: Sequence[Kind], made: Sequence[Offer]) -> list[Said]:
    """The clauses, none when nothing but what is free matters.

    wanted: the largest reservation first. made: what is offered to its distinct interfaces, in that order.
    """
    kinds = list(dict.fromkeys(wanted))
    found = [
        *_unmet(kinds, made),
        *_refused(kinds, made),
        *_rounded(kinds, made),
        *_weighed(wanted, kinds, made),
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


def _unmet(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[_Clause]:
    """PFs that are not what is needed: one clause for those that say the same, what fewest take first."""
    takers = [sum([offer.costs[at] is not None for offer in made]) for at in range(len(kinds))]
    needs_of = (kinds[at].needs for at in sorted(range(len(kinds)), key=takers.__getitem__))
    said: dict[str, _Clause] = {}
    for needs in islice(dict.fromkeys(needs_of), _LOOKED_AT):
        for offer in made:
            why = unmet(offer.pf, needs)
            if not why:
                continue
            clause = said.setdefault(why, _Clause({}, why, f"a PF: {unmet_cause(offer.pf, needs)}"))
            clause.names[offer.pf.name] = None
    yield from said.values()


def _refused(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Rates that cannot be programmed but must be: one clause for the PFs that say the same.

    PFs that share their costs object are alike in all that matters (`offers`).
    """
    alike: dict[tuple[int, str], list[Pf]] = {}
    for offer in made:
        alike.setdefault((id(offer.costs), offer.pf.driver), []).append(offer.pf)
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


def _rounded(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Reservations that cost more than they say."""
    said: dict[tuple[int, int, str], dict[str, None]] = {}
    for offer in made:
        for kind, cost in zip(kinds, offer.costs, strict=True):
            if cost is not None and cost > kind.min_tx_rate_mbps:
                key = kind.min_tx_rate_mbps, cost, offer.pf.driver
                said.setdefault(key, {})[offer.pf.name] = None
    for (rate, cost, driver), names in said.items():
        why = f"{driver} rounds a reservation of {rate} up to {cost} Mb/s"
        yield _Clause(names, why, f"{driver} rounds reservations up")


def _weighed(wanted: Sequence[Kind], kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[_Clause]:
    """Where the reservations would add up, but some VF would get less than its own."""
    costs = {
        kind: min((offer.costs[at] or 0 for offer in made if offer.costs[at] is not None), default=0)
        for at, kind in enumerate(kinds)
    }
    chosen = best_fit([costs[kind] for kind in wanted], [offer.room for offer in made])
    for at, offer in enumerate(made):
        round_robin = offer.round_robin
        if round_robin is None or chosen is None:
            continue
        joining = [costs[kind] for kind, there in zip(wanted, chosen, strict=True) if there == at]
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
