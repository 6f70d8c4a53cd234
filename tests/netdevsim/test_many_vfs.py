"""As many VFs as cards have: one message programs them, one answer lists them."""

from __future__ import annotations

import errno

import pytest

from k8s_rdma.core.kernel import present_config
from k8s_rdma.core.step import ConfigureVfs, ProgramVfs, SetRates, VfConfig, VfRate, Vlan
from k8s_rdma.core.types import LinkState
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import vf_infos
from netdevsim.device import device

MOST = 256
"""Of one PCI function with a bus of its own (PCI Express base specification, SR-IOV: the First VF Offset)."""


def config(index):
    return VfConfig(
        index=index,
        mac=f"02:00:00:00:{index >> 8:02x}:{index & 0xFF:02x}",
        vlan=Vlan(1 + index, index % 8),
        trust=bool(index % 2),
        spoof_check=not index % 2,
        link_state=LinkState.ENABLE,
    )


@pytest.mark.timeout(600)
def test_rates_and_settings_of_256_vfs_are_programmed_by_one_step_and_taken_back(make_lab):
    lab = make_lab(vfs=MOST, netdevs=False)
    pf = lab.pcis[0]
    queries = lab.queries()
    kernel = lab.another_kernel(queries)
    before = kernel.observe()
    rates = tuple(VfRate(index, index, 1000 + index) for index in range(MOST))
    configs = tuple(config(index) for index in range(MOST))
    vfs = before.pfs[0].vfs
    step = ProgramVfs(
        rates=SetRates(pf=pf, rates=rates, previous=tuple(map(VfRate, range(MOST)))),
        settings=ConfigureVfs(
            pf=pf,
            configs=configs,
            previous=tuple(present_config(vf, each) for vf, each in zip(vfs, configs, strict=True)),
        ),
    )
    queries.asked = 0
    kernel.apply(step)
    assert queries.asked == 1
    found = kernel.observe().pfs[0].vfs
    assert [VfRate(vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in found] == list(rates)
    assert [present_config(vf, each) for vf, each in zip(found, configs, strict=True)] == list(configs)
    assert lab.another_kernel().observe() == kernel.observe() != before
    kernel.apply(step.inverse)
    assert kernel.observe() == before


def test_vfs_of_which_the_kernel_cannot_tell_all_are_an_error_and_not_fewer():
    """Their list is longer than the 64 KiB that netlink's attributes can be (nla_nest_end)."""
    with Rtnl() as rtnl, device(2 * MOST) as made, pytest.raises(NetlinkError) as caught:
        vf_infos(rtnl, made.link(rtnl).index)
    assert caught.value.errno in (errno.EPROTO, errno.EMSGSIZE)
