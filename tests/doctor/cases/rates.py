"""Facts of `rates`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.rates import RatesFact, RunningRates, check_rates

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


RATES = RatesFact(pod="default/gold", node="w1", generation=1)


def rates(**more: Any) -> list[Finding]:
    return list(check_rates(RunningRates(pods=(replace(RATES, **more),))))


IN_ORDER = rates()

CASES = {
    "rates-refused": rates(refusal="PF eth0: 900 Mb/s needed, and others leave 700 of 1000 Mb/s to the pod"),
    "rates-undecided": rates(is_decided=False, age_s=300.0),
    "rates-not-programmed": rates(is_programmed=False, age_s=300.0),
    "rates-refused-on-node": rates(
        is_programmed=False,
        refusal_on_node=(
            "the rates of generation 1 are not programmed: PF eth0: 3000 Mb/s needed, and others leave 2000 "
            "of 10000 Mb/s to the pod"
        ),
    ),
}
