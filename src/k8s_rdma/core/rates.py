"""Rates of VFs as a PF's driver takes them, and the check of rates before the first is written.

The values are those of `linux.drivers`, which has them from the kernel's sources; they travel in the node's
report, so that the scheduler knows of a node what the node's agent knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.step import SetRates, VfRate


def check_rates(
    step: SetRates, *, ability: RateAbility, link_mbps: int | None, current: Mapping[int, VfRate]
) -> None:
    """Refuse all rates of a step when one of them cannot be.

    current: the rates of all VFs of the PF as they are. KernelError names VF and value, or the sum. A sum
    that is too large already may stay so: the link has become slower under promises that are kept.
    """
    for rate in step.rates:
        why = _refusal(rate, ability)
        if why:
            msg = f"VF {rate.index} of PF {step.pf}: {why}"
            raise KernelError(msg)
    if not ability.sum_checked or link_mbps is None:
        return
    after = {**current, **{rate.index: rate for rate in step.rates}}
    sum_before, sum_after = (
        sum(rate.min_tx_rate_mbps for rate in rates.values()) for rates in (current, after)
    )
    if sum_after > max(link_mbps, sum_before):
        msg = f"PF {step.pf}: min rates would add up to {sum_after} Mb/s, its link has {link_mbps}"
        raise KernelError(msg)


def _refusal(rate: VfRate, ability: RateAbility) -> str:
    if 0 < rate.max_tx_rate_mbps < rate.min_tx_rate_mbps:
        return f"min rate {rate.min_tx_rate_mbps} Mb/s above its max rate {rate.max_tx_rate_mbps} Mb/s"
    return _outside("min", rate.min_tx_rate_mbps, ability.min) or _outside(
        "max", rate.max_tx_rate_mbps, ability.max
    )


def _outside(rate_name: str, mbps: int, supported: RateRange | None) -> str:
    """Describe why the driver does not take a rate; empty when it does."""
    if mbps == 0:
        return ""
    if supported is None:
        return f"{rate_name} rate {mbps} Mb/s: the driver takes no {rate_name} rates"
    if not supported.smallest <= mbps <= supported.largest or mbps % supported.step:
        steps = f" in steps of {supported.step}" if supported.step > 1 else ""
        span = f"{supported.smallest} to {supported.largest}"
        return f"{rate_name} rate {mbps} Mb/s: the driver takes {span}{steps}"
    return ""


MAX_RATE_MBPS = 2**32 - 1
"""The kernel's rates are unsigned 32 bit Mb/s (`struct ifla_vf_rate`, include/uapi/linux/if_link.h, 6.1)."""


@unique
class Enforce(StrEnum):
    """The enforcement of rates that a PF's configuration asks for; an interface may demand more.

    HARDWARE: by the NIC, read back; what its driver cannot program is refused.
    SOFTWARE: caps by a queueing discipline on the VF's netdev in the pod, which sees what the pod's kernel
        sends and none of what RDMA hardware sends by itself; reservations as with AUTO, since no software
        on a sender can keep its neighbours from sending.
    AUTO: by the NIC where its driver can; else caps as with SOFTWARE where the kernel can, and reservations
        only accounted. Each allocation says which.
    """

    HARDWARE = "hardware"
    SOFTWARE = "software"
    AUTO = "auto"


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
        """The least that it takes and that is as much; None above all of it."""
        rounded = max(self.smallest, -(-rate // self.step) * self.step)
        return rounded if rounded <= self.largest else None

    def round_down(self, rate: int) -> int | None:
        """The most that it takes and that is no more; None below all of it."""
        rounded = min(self.largest, rate // self.step * self.step)
        return rounded if rounded >= self.smallest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAbility:
    """The rates that can be programmed on the VFs of a PF.

    min, max: the minimum and maximum transmit rates that it takes; None when it refuses any but 0.
    sum_checked: whether it refuses minimum rates that add up to more than the link.
    needs_link: whether it takes rates only while the link is up.
    weights: the largest share of its round robin when minimum rates are only the weights of one (see
        `core.weights`); None when each is a rate of its own.
    """

    min: RateRange | None = None
    max: RateRange | None = None
    sum_checked: bool = False
    needs_link: bool = False
    weights: int | None = None


EVERY_RATE = RateAbility(min=RateRange(), max=RateRange(), sum_checked=True)
"""Whole Mb/s, minimum and maximum, as virtual SR-IOV takes them."""

NO_RATE = RateAbility()
