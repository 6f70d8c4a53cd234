"""Rates and settings of a PF's VFs: written where they differ, and read back by one query for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.vf import configuring, rates
from k8s_rdma.linux.vf.readback import written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.core.kernel import PfState
    from k8s_rdma.core.step import ProgramVfs
    from k8s_rdma.linux.discovery.queries import VfInfo
    from k8s_rdma.linux.netlink.vf_config import VfSetting
    from k8s_rdma.linux.vf.configuring import Difference


def program_vfs(
    step: ProgramVfs,
    pf: PfState,
    *,
    write_rates: Callable[[Sequence[VfRate]], None],
    write_settings: Callable[[Sequence[VfSetting]], None],
    read: Callable[[], Sequence[VfInfo]],
) -> PfState:
    """Have a PF hold both; returns it with what was read back of all its VFs.

    Arguments and errors as those of `set_rates` and `configure_vfs`. Nothing is written when any of it
    cannot be.
    """
    rates.check(step.rates, pf, rates.present_rates(pf))
    configuring.check(step.settings, pf)

    def differing(seen: PfState) -> list[VfRate | Difference]:
        return [
            *rates.differing(step.rates, rates.present_rates(seen)),
            *configuring.differing(step.settings, seen),
        ]

    def write(wanted: Sequence[VfRate | Difference]) -> None:
        those_rates = [each for each in wanted if isinstance(each, VfRate)]
        settings = [each for each in wanted if not isinstance(each, VfRate)]
        if those_rates:
            rates.write_to(pf, write_rates, those_rates)
        if settings:
            configuring.write_to(pf, write_settings, settings)

    def read_back() -> PfState:
        infos = read()
        return rates.with_rates(configuring.told(step.settings, pf, infos), rates.rates_of(pf, infos))

    now = written(pf, differing=differing, write=write, read=read_back)
    rates.require(step.rates, rates.present_rates(now))
    configuring.require(step.settings, now)
    return now
