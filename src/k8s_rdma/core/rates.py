"""What a PF's driver does with the rates of its VFs, and what its VFs effectively get.

The values are those of `linux.drivers`, which has them from the kernel's sources; they travel in the node's
report, so that the scheduler knows of a node what the node's agent knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique

from k8s_rdma.core.request import MAX_RATE_MBPS


@unique
class Enforce(StrEnum):
    """How the rates of a PF's VFs are to be enforced.

    HARDWARE: by the NIC, read back; what its driver cannot program is refused.
    AUTO: by the NIC where its driver can, else only accounted; each allocation says which.
    """

    HARDWARE = "hardware"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Rates that a driver takes beside 0: from `smallest` to `largest` in steps of `step`, all Mb/s."""

    step: int = 1
    smallest: int = 1
    largest: int = MAX_RATE_MBPS


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAbility:
    """What can be programmed on the VFs of a PF.

    min, max: the minimum and maximum transmit rates that it takes; None when it refuses any but 0.
    sum_checked: whether it refuses minimum rates that add up to more than the link.
    needs_link: whether it takes rates only while the link is up.
    weights: the largest share of its scheduler when minimum rates are only the weights of one (see
        `effective_mins`); None when each is a rate of its own.
    """

    min: RateRange | None = None
    max: RateRange | None = None
    sum_checked: bool = False
    needs_link: bool = False
    weights: int | None = None


EVERY_RATE = RateAbility(min=RateRange(), max=RateRange(), sum_checked=True)
"""Whole Mb/s, minimum and maximum, as virtual SR-IOV takes them."""

NO_RATE = RateAbility()
