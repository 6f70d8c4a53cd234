"""Rates of VFs: checked, written where they differ, read back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.core.rate_check import check_rates
from k8s_rdma.core.step import VfRate
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.drivers import explain, understood_max
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.readback import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from k8s_rdma.core.kernel import PfState
    from k8s_rdma.core.step import SetRates
    from k8s_rdma.linux.discovery.queries import VfInfo


def set_rates(
    step: SetRates,
    pf: PfState,
    *,
    write: Callable[[Sequence[VfRate]], None],
    read: Callable[[], Iterable[VfInfo]],
    seen: Mapping[int, VfRate],
) -> dict[int, VfRate]:
    """Program rates on VFs of a PF; returns those of all its VFs, read back.

    seen: the rates of all its VFs when last looked at. write: as `vf_config.set_rates` for its netdev.
    read: as `vf_infos`, which holds the kernel's RTNL lock 1-2 ms a VF; once when they still are as seen.
    KernelError, and nothing is written, when one of them cannot be; when the driver refuses one or reads
    back another, those before it are written.
    """
    check(step, pf, seen)
    now = written(
        seen,
        differing=partial(differing, step),
        write=partial(write_to, pf, write),
        read=lambda: rates_of(pf, read()),
    )
    require(step, now)
    return dict(now)


def check(step: SetRates, pf: PfState, seen: Mapping[int, VfRate]) -> None:
    """KernelError for what cannot be programmed."""
    for rate in step.rates:
        if rate.index not in seen:
            msg = f"VF {rate.index} of PF {step.pf}: unknown: {pf.name} has {len(seen)} VFs"
            raise KernelError(msg)
    check_rates(step, ability=pf.rates, link_mbps=pf.link_mbps, before=seen)


def require(step: SetRates, now: Mapping[int, VfRate]) -> None:
    """KernelError for what was read back and is not what was set."""
    for wrong in differing(step, now):
        msg = f"VF {wrong.index} of PF {step.pf}: read back {now.get(wrong.index)}, set {wrong}"
        raise KernelError(msg)


def present_rates(pf: PfState) -> dict[int, VfRate]:
    """Those of a PF's VFs as last looked at."""
    return {vf.index: VfRate(vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in pf.vfs}


def with_rates(pf: PfState, rates: Mapping[int, VfRate]) -> PfState:
    """The PF with these rates of its VFs."""
    vfs = (
        replace(
            vf,
            min_tx_rate_mbps=rates[vf.index].min_tx_rate_mbps,
            max_tx_rate_mbps=rates[vf.index].max_tx_rate_mbps,
        )
        for vf in pf.vfs
        if vf.index in rates
    )
    return replace(pf, vfs=tuple(vfs))


def rates_of(pf: PfState, infos: Iterable[VfInfo]) -> dict[int, VfRate]:
    """The rates that a query told, by VF."""
    return {
        info.index: VfRate(
            info.index,
            info.min_tx_rate_mbps,
            understood_max(pf.driver, info.max_tx_rate_mbps, pf.link_mbps),
        )
        for info in infos
    }


def write_to(pf: PfState, write: Callable[[Sequence[VfRate]], None], rates: Sequence[VfRate]) -> None:
    """Write them; KernelError with what the driver means by its refusal."""
    try:
        write(rates)
    except NetlinkError as error:
        raise KernelError(str(error), details=explain(pf.driver, error.errno)) from error


def differing(step: SetRates, seen: Mapping[int, VfRate]) -> list[VfRate]:
    """Those that are others, lowered minima first: a driver that checks the sum checks it at each VF."""

    def raised_mbps(rate: VfRate) -> int:
        return rate.min_tx_rate_mbps - seen.get(rate.index, VfRate(rate.index)).min_tx_rate_mbps

    return sorted((rate for rate in step.rates if seen.get(rate.index) != rate), key=raised_mbps)
