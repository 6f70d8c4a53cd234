"""Refusals of the kernel, as errno, and their explanation for the driver at hand."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from contract.linux_lab import run
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.drivers import ANY_RATE
from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import vf_infos
from k8s_rdma.linux.vf.programming import write_rates_to
from k8s_rdma.linux.vf.sriov_links import GuidOf, KernelSriovLinks, VfGuid, VfLinkState, VfTrust

NOWHERE = 1 << 20


@pytest.fixture
def lab(make_lab):
    return make_lab(driver="ice")


def refused(lab, index, *rates):
    """The error of rates that are written without the check that comes before."""
    pf = lab.kernel.observe().pfs[0]

    def write(rates):
        sriov.set_rates(lab.rtnl, index, "rates", rates)

    with pytest.raises(KernelError) as caught:
        write_rates_to(pf, write, rates)
    return caught.value


def test_maximum_below_the_minimum_is_refused_by_the_kernel_for_any_driver(lab):
    error = refused(lab, lab.indexes[0], VfRate(0, 0, 20), VfRate(1, 100, 10), VfRate(2, 0, 20))
    assert str(error).startswith("rates: VF 1: min rate 100, max rate 10 Mb/s: EINVAL")
    assert "ice answers EINVAL: a rate is above the present link speed" in error.details
    assert [info.max_tx_rate_mbps for info in vf_infos(lab.rtnl, lab.indexes[0])][:3] == [20, 0, 0]


@pytest.mark.parametrize("rate", [ANY_RATE.largest + 1, 2**32 - 1])
def test_rate_of_more_than_31_bits_is_refused_by_the_kernel_and_taken_of_no_driver(make_lab, rate):
    lab = make_lab(driver="mlx5_core")
    assert "EINVAL" in str(refused(lab, lab.indexes[0], VfRate(0, 0, rate)))
    with pytest.raises(KernelError, match=f"max rate {rate} Mb/s: the driver takes 1 to {ANY_RATE.largest}"):
        lab.kernel.apply(SetRates(pf=lab.pcis[0], rates=(VfRate(0, 0, rate),), previous=(VfRate(0),)))


@pytest.mark.parametrize("vf", [4, 255, 256, 2**31 - 1])
def test_vf_that_is_not_there_is_refused_by_the_driver(lab, vf):
    error = refused(lab, lab.indexes[0], VfRate(vf, 0, 20))
    assert str(error).startswith(f"rates: VF {vf}: min rate 0, max rate 20 Mb/s: EINVAL")


def test_netdev_without_a_function_for_rates_is_reported_so(make_lab):
    lab = make_lab(driver="mlx4_core")
    error = refused(lab, lab.rtnl.link(lab.vf_name(0, 0)).index, VfRate(0, 0, 20))
    assert "EOPNOTSUPP" in str(error)
    assert error.details == "mlx4_core answers EOPNOTSUPP: it sets no rates on VFs of this card"


def test_netdev_that_is_gone_is_said_to_be(lab):
    error = refused(lab, NOWHERE, VfRate(0, 0, 20))
    assert "ENODEV" in str(error)
    assert error.details == "ice answers ENODEV: the PF no longer exists"


def test_setting_without_a_function_is_no_failure_of_init_and_one_with_it_is_made(lab):
    with KernelSriovLinks() as links:
        pf, dummy = links.link(lab.pf_names[0]), links.link(lab.vf_name(0, 0))
        assert not links.set_vf(dummy, 0, VfTrust(True))
        assert not links.set_vf(pf, 0, VfGuid(GuidOf.NODE, "00:11:22:33:44:55:66:77"))
        assert links.set_vf(pf, 1, VfTrust(True))
        assert links.set_vf(pf, 1, VfLinkState("enable"))
        with pytest.raises(NetlinkError) as caught:
            links.set_vf(pf, lab.vfs, VfTrust(True))
        assert caught.value.errno == errno.EINVAL
    told = vf_infos(lab.rtnl, lab.indexes[0])
    assert [(info.trust, info.link_state) for info in told[:2]] == [(False, "auto"), (True, "enable")]


WRITES = """
import sys
from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.drivers import explain
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import set_rates
try:
    set_rates(Rtnl(), int(sys.argv[1]), "rates", [VfRate(0, 0, 20)])
except NetlinkError as error:
    print(explain("ice", error.errno))
"""


def test_agent_without_cap_net_admin_reports_that(lab):
    without = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    said = subprocess.run(
        [*without, sys.executable, "-c", WRITES, str(lab.indexes[0])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.strip().startswith("ice answers EPERM: the agent lacks CAP_NET_ADMIN"), said.stderr
    assert vf_infos(lab.rtnl, lab.indexes[0])[0].max_tx_rate_mbps == 0


def test_pf_that_went_away_between_a_look_and_a_change_is_named(lab):
    lab.kernel.observe()
    run("ip", "link", "set", lab.pf_names[0], "down")
    run("ip", "link", "set", lab.pf_names[0], "name", "elsewhere")
    run("ip", "link", "set", "elsewhere", "up")
    with pytest.raises(KernelError, match=str(lab.pcis[0])):
        lab.kernel.apply(SetRates(pf=lab.pcis[0], rates=(VfRate(0, 0, 20),), previous=(VfRate(0),)))
