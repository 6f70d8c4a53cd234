"""Reports of any node, for properties of documents made of them."""

from __future__ import annotations

from hypothesis import strategies as st

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.types import Setting
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    GpuReport,
    Interface,
    NodeReport,
    PfReport,
    Range,
    Rates,
    ReportedPod,
)

PCIS = ("0000:03:00.0", "0000:03:00.1", "0000:81:00.0")
mbps = st.sampled_from([0, 1, 50, 100, 400_000]) | st.integers(0, 2**32 - 1)
POOLS = ("tencent.com/rdma", "example.com/fast", CLAIMS_POOL)
pools = st.sampled_from(["", "", *POOLS])
texts = st.text(max_size=20)
ranges = st.none() | st.sampled_from(
    [Range(step=1, smallest=1, largest=100_000), Range(step=100, smallest=100, largest=10_000)]
)


@st.composite
def interfaces(draw: st.DrawFn, pci: str) -> Interface:
    return Interface(
        pf=pci,
        vf=draw(st.integers(0, 127)),
        ifname="rdma0",
        mac="0a:00:00:00:00:01",
        min_tx_rate=draw(mbps),
        max_tx_rate=draw(mbps),
        set_min_tx_rate=draw(mbps),
        set_max_tx_rate=draw(mbps),
        enforced=Enforced(min=None, max=draw(st.sampled_from([None, "hardware", "software", "accounted"]))),
        entry=draw(st.none() | st.integers(0, 60)),
        pool=draw(pools),
    )


paths = st.lists(st.sampled_from(["0000:00:01.0", "0000:02:00.0", "10000:e0:06.0"]), max_size=4).map(tuple)
gpus = st.builds(
    GpuReport,
    resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
    pci=st.sampled_from(["0000:1b:00.0", "0000:43:00.0", "10000:e1:00.0"]),
    pcie_path=paths,
    numa_node=st.none() | st.integers(0, 7),
    in_use=st.booleans(),
)


@st.composite
def pfs(draw: st.DrawFn, pci: str) -> PfReport:
    rates = Rates(
        min=draw(ranges),
        max=draw(ranges),
        sum_checked=draw(st.booleans()),
        needs_link=draw(st.booleans()),
        weights=draw(st.none() | st.integers(1, 100)),
    )
    foreign = draw(st.lists(mbps, max_size=4))
    return PfReport(
        name=draw(texts),
        pci=pci,
        driver=draw(texts),
        capacity_vfs=draw(st.integers(0, 128)),
        link_mbps=draw(st.none() | mbps),
        mtu=draw(st.integers(0, 9000)),
        link_type=draw(st.sampled_from(["ethernet", "infiniband"])),
        vendor=draw(texts),
        numa_node=draw(st.none() | st.integers(0, 7)),
        pcie_path=draw(paths),
        rates=rates,
        enforce=draw(st.sampled_from(["auto", "hardware", "software"])),
        takes=tuple(draw(st.sets(st.sampled_from([*Setting, "of a newer agent"])))),
        problems=tuple(draw(st.lists(texts, max_size=7))),
        foreign=tuple(
            ForeignVf(vf=i, why="x", min_tx_rate=rate, max_tx_rate=0, pool=draw(pools))
            for i, rate in enumerate(foreign)
        ),
        pools=draw(st.dictionaries(st.sampled_from(POOLS), st.integers(1, 64))),
        claims_mbps=draw(st.none() | mbps),
    )


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    uid = draw(st.sampled_from(["uid-a", "uid-b", "uid-c"]))
    held = st.sampled_from(PCIS).flatmap(interfaces)
    return Allocation(
        pod=ReportedPod(namespace="default", name=f"pod-{uid}", uid=uid),
        container_id=draw(texts),
        phase="attached",
        interfaces=tuple(draw(st.lists(held, max_size=5))),
    )


@st.composite
def reports(draw: st.DrawFn) -> NodeReport:
    """Of a node `w1`, mostly one that can be read."""
    found = draw(st.lists(st.sampled_from(PCIS), unique=True))
    return NodeReport(
        node="w1",
        generation=f"{draw(st.sampled_from(['4f', 'a0']))}.{draw(st.integers(0, 99))}",
        ledger=draw(st.sampled_from(["ok", "ok", "ok", "unavailable"])),
        pfs=tuple(draw(pfs(pci)) for pci in found),
        allocations=tuple(draw(st.lists(allocations(), max_size=5))),
        unreadable=tuple(draw(st.just([]) | st.lists(texts, max_size=2))),
        problems=tuple(draw(st.lists(texts, max_size=2))),
        gpus=tuple(draw(st.lists(gpus, max_size=4, unique_by=lambda gpu: (gpu.resource, gpu.pci)))),
    )
