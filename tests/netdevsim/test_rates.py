"""Minimum and maximum rates on a kernel that takes both: which are programmed, in which order, and kept."""

from __future__ import annotations

from functools import partial

import pytest

from contract.lab import state_of
from contract.linux_lab import ip
from k8s_rdma.core.programming import programmed
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.step import SetRates, VfRate, VfRef
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.drivers import ANY_RATE
from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.netlink.sriov import vf_infos
from k8s_rdma.linux.vf.programming import present_rates, set_rates
from netdevsim.device import LARGEST_KEPT_MBPS


def step(lab, *rates):
    return SetRates(pf=lab.pcis[0], rates=rates, previous=tuple(VfRate(rate.index) for rate in rates))


def shown(lab):
    """The rates of the first PF's VFs, as ip(8) has them."""
    link = ip(None, "-details", "link", "show", lab.pf_names[0])[0]
    return [VfRate(vf["vf"], vf["rate"]["min_tx"], vf["rate"]["max_tx"]) for vf in link["vfinfo_list"]]


def pf_of(lab):
    return lab.kernel.observe().pfs[0]


def test_minima_and_maxima_are_programmed_and_read_back_by_one_query(make_lab):
    lab = make_lab()
    queries = lab.queries()
    kernel = lab.another_kernel(queries)
    kernel.observe()
    queries.asked = 0
    wanted = [VfRate(index, 100 * index, 1000 * index) for index in range(lab.vfs)]
    kernel.apply(step(lab, *wanted))
    assert queries.asked == 1
    assert shown(lab) == wanted
    assert list(present_rates(kernel.observe().pfs[0]).values()) == wanted
    assert queries.asked == 1


def test_minimum_is_lowered_before_another_is_raised(make_lab):
    """By a VF that is gone since it was looked at, the driver's refusal of which splits the two."""
    lab = make_lab()
    lab.kernel.apply(step(lab, VfRate(0, 600, 0)))
    gone = lab.vfs
    wanted = (VfRate(1, 600, 0), VfRate(gone, 0, 50), VfRate(0, 400, 0))
    with pytest.raises(KernelError, match=f"VF {gone}: min rate 0, max rate 50 Mb/s: EINVAL"):
        set_rates(
            step(lab, *wanted),
            pf_of(lab),
            write=partial(sriov.set_rates, lab.rtnl, lab.indexes[0], "rates"),
            read=partial(vf_infos, lab.rtnl, lab.indexes[0]),
            observed={rate.index: rate for rate in (*shown(lab), VfRate(gone))},
        )
    assert shown(lab)[:2] == [VfRate(0, 400, 0), VfRate(1)]


@pytest.mark.parametrize("rate", [LARGEST_KEPT_MBPS - 1, LARGEST_KEPT_MBPS])
def test_largest_rates_that_the_device_keeps_are_read_back(make_lab, rate):
    lab = make_lab()
    lab.kernel.apply(step(lab, VfRate(0, rate, LARGEST_KEPT_MBPS)))
    assert shown(lab)[0] == VfRate(0, rate, LARGEST_KEPT_MBPS)


@pytest.mark.parametrize(
    ("rate", "kept"), [(2**16, 0), (100_000, 34_464), (ANY_RATE.largest, LARGEST_KEPT_MBPS)]
)
def test_rate_of_which_the_device_keeps_another_is_an_error_with_both(make_lab, rate, kept):
    lab = make_lab()
    with pytest.raises(KernelError, match=f"read back .*max_tx_rate_mbps={kept}.*, set .*={rate}"):
        lab.kernel.apply(step(lab, VfRate(0, 0, rate)))
    assert state_of(lab, VfRef(lab.pcis[0], 0)).max_tx_rate_mbps == kept
    lab.kernel.apply(step(lab, VfRate(0, 0, rate)).inverse)
    assert shown(lab)[0] == VfRate(0)


@pytest.mark.parametrize(
    ("driver", "link_mbps", "wanted", "expected"),
    [
        ("mlx5_core", 25_000, (123, 4567), (123, 4567)),
        ("mlx5_core", 25_000, (123, 40_000), (123, 40_000)),
        ("mlx5_core", 25_000, (123, 2**32 - 1), (123, 0)),
        ("ice", 25_000, (123, 4567), (123, 4567)),
        ("ice", 25_000, (123, 40_000), (123, 0)),
        ("bnxt_en", 10_000, (9999, 10_000), (9999, 10_000)),
        ("i40e", 10_000, (123, 4567), (0, 4550)),
        ("i40e", 10_000, (0, 10_049), (0, 0)),
        ("ixgbe", 10_000, (0, 11), (0, 11)),
        ("ixgbe", 10_000, (0, 10), (0, 0)),
        ("qede", 10_000, (123, 4567), (0, 0)),
    ],
)
def test_rates_are_rounded_for_the_driver_and_read_back_so(make_lab, driver, link_mbps, wanted, expected):
    lab = make_lab(driver=driver, link_mbps=link_mbps)
    pf = lab.kernel.observe().inventory(NodeName("")).pfs[0]
    minimum, maximum = wanted
    request = InterfaceRequest(min_tx_rate_mbps=minimum, max_tx_rate_mbps=maximum)
    found = programmed(pf, request)
    lab.kernel.apply(step(lab, VfRate(2, found.min_tx_rate_mbps, found.max_tx_rate_mbps)))
    assert shown(lab)[2] == VfRate(2, *expected)


@pytest.mark.parametrize(
    ("driver", "rate", "why"),
    [
        ("i40e", VfRate(1, 0, 4567), "max rate 4567 Mb/s: the driver takes 50 to 10000 in steps of 50"),
        ("i40e", VfRate(1, 50, 0), "min rate 50 Mb/s: the driver takes no min rates"),
        ("ixgbe", VfRate(1, 0, 10), "max rate 10 Mb/s: the driver takes 11 to 10000"),
        ("bnxt_en", VfRate(1, 10_001, 0), "min rate 10001 Mb/s: the driver takes 1 to 10000"),
        ("qede", VfRate(1, 0, 100), "max rate 100 Mb/s: the driver takes no max rates"),
    ],
)
def test_rate_that_a_driver_would_not_take_is_not_written(make_lab, driver, rate, why):
    lab = make_lab(driver=driver, link_mbps=10_000)
    with pytest.raises(KernelError, match=f"VF 1 of PF {lab.pcis[0]}: {why}"):
        lab.kernel.apply(step(lab, VfRate(0, 0, 0), rate))
    assert shown(lab) == [VfRate(index) for index in range(lab.vfs)]
