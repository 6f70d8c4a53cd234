"""Rates that a PF's driver supports, in the words of a node's report and of its `RdmaNode` object."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from k8s_rdma.core.types import EVERY_RATE, RateAbility, RateRange
from k8s_rdma.wire.report_bounds import Rate, Weight


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Rates that a driver takes beside 0: multiples of `step` from `smallest` to `largest`, in Mb/s."""

    step: Rate
    smallest: Rate
    largest: Rate


class Rates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The rates that a PF's driver supports, as `core.types.RateAbility`."""

    min: Range | None
    max: Range | None
    sum_checked: bool
    needs_link: bool
    weights: Weight | None


class PfRates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The minimum and maximum rates of a PF's driver; a range that is absent takes none but 0."""

    min: Range | None = None
    max: Range | None = None
    sum_checked: bool = False
    needs_link: bool = False
    weights: Weight | None = None


def rates_of(ability: RateAbility) -> Rates:
    """The document's words for an ability."""
    return Rates(
        min=_range_of(ability.min),
        max=_range_of(ability.max),
        sum_checked=ability.sum_checked,
        needs_link=ability.needs_link,
        weights=ability.weights,
    )


def _range_of(supported: RateRange | None) -> Range | None:
    if supported is None:
        return None
    return Range(step=supported.step, smallest=supported.smallest, largest=supported.largest)


@lru_cache(maxsize=1024)
def ability_of(rates: Rates | PfRates) -> RateAbility:
    """The ability that a document tells, one object for all that tell the same.

    ValueError when it tells a range without a rate, or weights without one.
    """
    if rates.weights is not None and rates.weights < 1:
        msg = f"weights: {rates.weights} is no largest share"
        raise ValueError(msg)
    ability = RateAbility(
        min=_to_range(rates.min),
        max=_to_range(rates.max),
        sum_checked=rates.sum_checked,
        needs_link=rates.needs_link,
        weights=rates.weights,
    )
    return EVERY_RATE if ability == EVERY_RATE else ability


def _to_range(supported: Range | None) -> RateRange | None:
    if supported is None:
        return None
    return RateRange(step=supported.step, smallest=supported.smallest, largest=supported.largest)


def published_rates(rates: Rates) -> PfRates:
    """The object's words for what a report says."""
    return PfRates(
        min=rates.min,
        max=rates.max,
        sum_checked=rates.sum_checked,
        needs_link=rates.needs_link,
        weights=rates.weights,
    )
