"""Rates that the driver of a PF takes for its VFs.

The values are those of `linux.drivers`, from the kernel's sources. The node's report carries them, so that
the scheduler knows of a node what the node's agent knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.core.types import MAX_RATE_MBPS


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Rates that a driver takes beside 0: multiples of `step` from `smallest` to `largest`, all Mb/s."""

    step: int = 1
    smallest: int = 1
    largest: int = MAX_RATE_MBPS

    def __post_init__(self) -> None:
        """Refuse a range without a rate, or that ends between two steps. ValueError."""
        in_order = 1 <= self.step <= self.smallest <= self.largest <= MAX_RATE_MBPS
        if not in_order or self.smallest % self.step or self.largest % self.step:
            msg = f"no range of rates: {self.smallest} to {self.largest} in steps of {self.step} Mb/s"
            raise ValueError(msg)

    def round_up(self, rate: int) -> int | None:
        """Return the least rate that it takes and that is as much; None if the rate is above its range."""
        rounded = max(self.smallest, -(-rate // self.step) * self.step)
        return rounded if rounded <= self.largest else None

    def round_down(self, rate: int) -> int | None:
        """Return the greatest rate that it takes and that is no more; None if the rate is below its range."""
        rounded = min(self.largest, rate // self.step * self.step)
        return rounded if rounded >= self.smallest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAbility:
    """The rates that can be programmed on the VFs of a PF.

    min, max: the minimum and maximum transmit rates that it takes; None if it refuses any but 0.
    sum_checked: whether it refuses minimum rates that add up to more than the link.
    needs_link: whether it takes rates only while the link is up.
    weights: the largest share of its round robin if minimum rates are only the weights of one (see
        `core.programming`); None if each is a rate of its own.
    """

    min: RateRange | None = None
    max: RateRange | None = None
    sum_checked: bool = False
    needs_link: bool = False
    weights: int | None = None

    def __post_init__(self) -> None:
        """Refuse weights that end below 1. ValueError."""
        if self.weights is not None and self.weights < 1:
            msg = f"weights: {self.weights} is no largest share"
            raise ValueError(msg)


EVERY_RATE = RateAbility(min=RateRange(), max=RateRange(), sum_checked=True)
"""Whole Mb/s, minimum and maximum, as virtual SR-IOV takes them."""
NO_RATE = RateAbility()
