"""What PFs and their drivers have against a request, in clauses for its refusal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from k8s_rdma.core.needs import unmet
from k8s_rdma.core.packing import best_fit
from k8s_rdma.core.programming import objection
from k8s_rdma.core.rates import Enforce
from k8s_rdma.core.weights import effective_mins

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.needs import Kind
    from k8s_rdma.core.offers import Offer

_LOOKED_AT = 64
"""Needs; a request may have a thousand different ones, and to word them all takes longer than to decide."""
_MOST = 3
"""Clauses; one interface that nothing takes is enough to refuse a request, and the line is for a terminal."""


def objections(wanted: Sequence[Kind], made: Sequence[Offer]) -> tuple[str, ...]:
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
    more = [f"{len(found) - _MOST} more such limits"] if len(found) > _MOST else []
    return (*found[:_MOST], *more)


def _unmet(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[str]:
    """PFs that are not what is needed: one clause for those that say the same, what fewest take first."""
    takers = [sum([offer.costs[at] is not None for offer in made]) for at in range(len(kinds))]
    needs_of = (kinds[at].needs for at in sorted(range(len(kinds)), key=takers.__getitem__))
    said: dict[str, list[str]] = {}
    for needs in islice(dict.fromkeys(needs_of), _LOOKED_AT):
        for offer in made:
            why = unmet(offer.pf, needs)
            if why and offer.pf.name not in said.setdefault(why, []):
                said[why].append(offer.pf.name)
    for why, names in said.items():
        yield f"{', '.join(names)}: {why}"


def _refused(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[str]:
    """Rates that cannot be programmed but must be: one clause for the PFs that say the same.

    PFs that share their costs object are alike in all that matters (`offers`).
    """
    alike: dict[tuple[int, str], list[Pf]] = {}
    for offer in made:
        alike.setdefault((id(offer.costs), offer.pf.driver), []).append(offer.pf)
    said: dict[tuple[str, str], list[str]] = {}
    for kind in kinds:
        for pf, *others in alike.values():
            why = objection(pf, kind)
            if why:
                by = "there" if pf.enforce is Enforce.HARDWARE else "by the pod"
                said.setdefault((why, by), []).extend(each.name for each in (pf, *others))
    for (why, by), names in said.items():
        yield f"{', '.join(names)}: {why}, and enforcement by hardware is demanded {by}"


def _rounded(kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[str]:
    """Reservations that cost more than they say."""
    said: dict[tuple[int, int, str], list[str]] = {}
    for offer in made:
        for kind, cost in zip(kinds, offer.costs, strict=True):
            if cost is not None and cost > kind.min_tx_rate_mbps:
                key = kind.min_tx_rate_mbps, cost, offer.pf.driver
                said.setdefault(key, []).append(offer.pf.name)
    for (rate, cost, driver), names in said.items():
        yield f"{', '.join(names)}: {driver} rounds a reservation of {rate} up to {cost} Mb/s"


def _weighed(wanted: Sequence[Kind], kinds: Sequence[Kind], made: Sequence[Offer]) -> Iterator[str]:
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
            yield (
                f"{offer.pf.name}: minimum rates of {offer.pf.driver} are weights of 1 to "
                f"{round_robin.most}, by which one VF would get {rate + short} of its {rate} Mb/s"
            )
