"""Which rates cannot be programmed on a PF, known before the first is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.rates import RateAbility, RateRange
    from k8s_rdma.core.step import SetRates, VfRate


def check_rates(
    step: SetRates, *, ability: RateAbility, link_mbps: int | None, before: Mapping[int, VfRate]
) -> None:
    """Refuse all rates of a step when one of them cannot be.

    before: the rates of all VFs of the PF as they are. KernelError names VF and value, or the sum. A sum that
    is too large already may stay so: the link has become slower under promises that are kept.
    """
    for rate in step.rates:
        why = _refusal(rate, ability)
        if why:
            msg = f"VF {rate.index} of PF {step.pf}: {why}"
            raise KernelError(msg)
    if not ability.sum_checked or link_mbps is None:
        return
    after = {**before, **{rate.index: rate for rate in step.rates}}
    had, has = (sum(rate.min_tx_rate_mbps for rate in rates.values()) for rates in (before, after))
    if has > max(link_mbps, had):
        msg = f"PF {step.pf}: min rates would add up to {has} Mb/s, its link has {link_mbps}"
        raise KernelError(msg)


def _refusal(rate: VfRate, ability: RateAbility) -> str:
    if 0 < rate.max_tx_rate_mbps < rate.min_tx_rate_mbps:
        return f"min rate {rate.min_tx_rate_mbps} Mb/s above its max rate {rate.max_tx_rate_mbps} Mb/s"
    return _outside("min", rate.min_tx_rate_mbps, ability.min) or _outside(
        "max", rate.max_tx_rate_mbps, ability.max
    )


def _outside(which: str, mbps: int, taken: RateRange | None) -> str:
    """Why a driver would not take a rate; empty when it would."""
    if mbps == 0:
        return ""
    if taken is None:
        return f"{which} rate {mbps} Mb/s: the driver takes no {which} rates"
    if not taken.smallest <= mbps <= taken.largest or mbps % taken.step:
        steps = f" in steps of {taken.step}" if taken.step > 1 else ""
        return f"{which} rate {mbps} Mb/s: the driver takes {taken.smallest} to {taken.largest}{steps}"
    return ""
