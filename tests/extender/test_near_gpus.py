"""Interfaces near GPUs through filter, bind and the node's report: whatever kubelet chooses has its room."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, PF1, Held, pf, report
from extender.world import world
from k8s_rdma.wire.report import GpuReport

pytestmark = pytest.mark.anyio

GPU = "nvidia.com/gpu"
PATHS = {PF0: ("0000:00:01.0",), PF1: ("0000:00:02.0",)}


def with_gpus(name: str, *in_use: int, held: Held | None = None, generation: int = 1):
    """Two PFs, each below a switch with one GPU."""
    pfs = [replace(pf(pci), pcie_path=path) for pci, path in PATHS.items()]
    made = report(name, *pfs, held=held, generation=generation)
    gpus = tuple(
        GpuReport(resource=GPU, pci=f"0000:8{index}:00.0", pcie_path=path, in_use=index in in_use)
        for index, path in enumerate(PATHS.values())
    )
    return replace(made, gpus=gpus)


def near(mbps: int, key: str = "near") -> str:
    return json.dumps([{"min_tx_rate": mbps, key: "gpu"}])


async def test_room_is_kept_near_every_gpu_that_kubelet_may_choose():
    async with world("w1", "w2") as w:
        w.nodes["w1"].report = with_gpus("w1")
        link = w.nodes["w1"].report.pfs[0].link_mbps
        await w.create_pod("p", annotation=near(link), topology="same-pcie-switch", devices={GPU: 1})
        assert (await w.filter("p"))["NodeNames"] == ["w1"]
        assert await w.bind("p", "w1") == ""
        await w.create_pod("q", annotation=near(1), topology="same-pcie-switch", devices={GPU: 1})
        found = await w.filter("q")
        assert found["NodeNames"] == []
        assert "too little free" in found["FailedNodes"]["w1"]
        assert "is not known" in found["FailedAndUnresolvableNodes"]["w2"]


async def test_an_interface_per_gpu_needs_gpus():
    async with world("w1") as w:
        w.nodes["w1"].report = with_gpus("w1")
        await w.create_pod("p", annotation=near(1, "per"), devices={GPU: 2})
        assert (await w.filter("p"))["NodeNames"] == ["w1"]
        await w.create_pod("q", annotation=near(1, "per"))
        (why,) = (await w.filter("q"))["FailedAndUnresolvableNodes"].values()
        assert "has interfaces near GPUs, and the pod's containers request none" in why


async def test_gpus_in_use_are_no_choice():
    async with world("w1") as w:
        w.nodes["w1"].report = with_gpus("w1", 0)
        link = w.nodes["w1"].report.pfs[0].link_mbps
        await w.create_pod("other", annotation=json.dumps([{"min_tx_rate": link, "pf": PF0}]))
        await w.filter("other")
        assert await w.bind("other", "w1") == ""
        await w.create_pod("p", annotation=near(link), topology="same-pcie-switch", devices={GPU: 1})
        assert (await w.filter("p"))["NodeNames"] == ["w1"]
