"""`/getpfs` byte by byte as the published example has it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    VfReport,
    rates_of,
)

EXAMPLE = """[{"name":"enp4s0f0","used_tx_rate":0,"capacity_tx_rate":100000,"used_vfs":0,"capacity_vfs":120,
  "vfs":[{"vf":0,"mac":"7a:90:db:7b:30:ac","vlan":0,"qos":0,"vlan_proto":"N/A","spoof_check":"OFF","trust":"ON",
          "link_state":"Follow","min_tx_rate":0,"max_tx_rate":0,"vgt_plus":"OFF","rate_group":0,"allocated":false}]}]
"""
"""As the DaemonSet's documentation prints it: one of the 120 VFs, broken into lines."""


def vf(index: int = 0, *, rate: int = 0, allocated: bool = False) -> VfReport:
    return VfReport(
        vf=index,
        mac="7a:90:db:7b:30:ac",
        vlan=0,
        qos=0,
        vlan_proto="N/A",
        spoof_check="OFF",
        trust="ON",
        link_state="Follow",
        min_tx_rate=rate,
        max_tx_rate=2 * rate,
        vgt_plus="OFF",
        rate_group=0,
        allocated=allocated,
    )


def report(*vfs: VfReport, link_mbps: int | None = 100000, capacity_vfs: int = 120) -> NodeReport:
    pf = PfReport(
        name="enp4s0f0",
        pci="0000:04:00.0",
        driver="mlx5_core",
        capacity_vfs=capacity_vfs,
        link_mbps=link_mbps,
        rates=rates_of(EVERY_RATE),
        vfs=vfs,
    )
    return NodeReport(node="w1", generation="e.1", ledger="ok", pfs=(pf,))


def test_document_is_the_published_example() -> None:
    example = "".join(line.strip() for line in EXAMPLE.splitlines())
    assert encode_getpfs(report(vf())).decode() == example


def test_used_figures_are_sums_over_the_vfs() -> None:
    [pf] = json.loads(
        encode_getpfs(
            report(vf(0, rate=15000, allocated=True), vf(1, rate=5000), vf(2, allocated=True), capacity_vfs=3)
        )
    )
    assert pf["used_tx_rate"] == 20000
    assert pf["used_vfs"] == 2
    assert pf["capacity_vfs"] == 3
    assert [(found["vf"], found["allocated"]) for found in pf["vfs"]] == [(0, True), (1, False), (2, True)]


def test_foreign_vf_is_shown_as_taken_wherever_it_is() -> None:
    told = report(vf(0, rate=5000), vf(1), capacity_vfs=2)
    foreign = ForeignVf(vf=0, why="rates that are not ours", min_tx_rate=5000, max_tx_rate=0)
    [pf] = json.loads(encode_getpfs(replace(told, pfs=(replace(told.pfs[0], foreign=(foreign,)),))))
    assert [found["allocated"] for found in pf["vfs"]] == [True, False]
    assert (pf["used_vfs"], pf["used_tx_rate"]) == (1, 5000)


@pytest.mark.parametrize(("link_mbps", "capacity"), [(None, 0), (0, 0), (1000, 1000)])
def test_capacity_is_the_link_speed_and_zero_when_unknown(link_mbps: int | None, capacity: int) -> None:
    [pf] = json.loads(encode_getpfs(report(link_mbps=link_mbps)))
    assert pf["capacity_tx_rate"] == capacity


def test_document_is_an_empty_list_when_there_is_no_pf() -> None:
    assert encode_getpfs(NodeReport(node="w1", generation="e.1", ledger="ok", pfs=())) == b"[]"


CLAIMED = Interface(
    pf="0000:04:00.0",
    vf=1,
    ifname="rdma0",
    mac="7a:90:db:7b:30:ac",
    min_tx_rate=20_000,
    max_tx_rate=0,
    set_min_tx_rate=20_000,
    set_max_tx_rate=0,
    enforced=Enforced(min="hardware", max=None),
    pool=CLAIMS_POOL,
)


@pytest.mark.parametrize(
    ("claims_mbps", "used"), [(None, 25_000), (50_000, 55_000), (20_000, 25_000), (0, 25_000)]
)
def test_part_of_the_link_for_claims_counts_as_used_with_or_without_claims(
    claims_mbps: int | None, used: int
) -> None:
    told = report(vf(0, rate=5_000, allocated=True), vf(1, rate=20_000, allocated=True), capacity_vfs=1)
    allocation = Allocation(
        pod=ReportedPod(namespace="default", name="p", uid="u"),
        container_id="c",
        phase="attached",
        interfaces=(CLAIMED,),
    )
    split = replace(told.pfs[0], claims_mbps=claims_mbps, pools={CLAIMS_POOL: 1})
    [pf] = json.loads(encode_getpfs(replace(told, pfs=(split,), allocations=(allocation,))))
    assert (pf["used_tx_rate"], pf["used_vfs"], pf["capacity_vfs"]) == (used, 2, 2)


def test_capacity_is_all_vfs_whichever_pool_they_are_in() -> None:
    told = report(vf(), capacity_vfs=100)
    pooled = replace(told, pfs=(replace(told.pfs[0], pools={"tencent.com/rdma": 16, "example.com/fast": 4}),))
    [pf] = json.loads(encode_getpfs(pooled))
    assert pf["capacity_vfs"] == 120
