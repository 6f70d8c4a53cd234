"""VFs that programs in pods drive, on a node from end to end: containers find all that they need of them.

Needs the same as `test_node`, and an IOMMU and vfio-pci.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.processes import pod
from hardware.test_node import node, nodes
from hardware.test_node import pytestmark as needs_node
from k8s_rdma_demo.cluster.cni_runtime import remove_namespace_at

if TYPE_CHECKING:
    from hardware.sriov_node import SriovNode

__all__ = ["node", "nodes"]

CDI = Path("/var/run/cdi")
PROGRAM = {"driver": "vfio-pci"}

pytestmark = [
    *needs_node,
    pytest.mark.skipif(
        not Path("/sys/bus/pci/drivers/vfio-pci").exists() or not list(Path("/sys/class/iommu").glob("*")),
        reason="needs an IOMMU that is on, and vfio-pci",
    ),
]


def specifications() -> dict[str, list[Path]]:
    """The device nodes of each VF that has a CDI specification of ours."""
    found = {}
    for path in CDI.glob("k8s-rdma.io-vf_*.json"):
        [device] = json.loads(path.read_bytes())["devices"]
        found[device["name"]] = [Path(each["path"]) for each in device["containerEdits"]["deviceNodes"]]
    return found


def functions() -> list[str]:
    """The functions that vfio-pci has."""
    return sorted(path.name for path in Path("/sys/bus/pci/drivers/vfio-pci").glob("*:*"))


def test_function_of_a_pod_has_a_specification_whose_device_nodes_are_there(node: SriovNode) -> None:
    runtime = node.runtime(chained=False)
    sandbox = asyncio.run(runtime.add(pod("a", {}, PROGRAM)))
    [pci] = functions()
    group = Path(f"/sys/bus/pci/devices/{pci}/iommu_group").resolve().name
    device_nodes = [Path("/dev/vfio/vfio"), Path(f"/dev/vfio/{group}")]
    assert specifications() == {pci: device_nodes}
    assert all(each.is_char_device() for each in device_nodes)
    asyncio.run(runtime.delete(sandbox))
    assert specifications() == {}
    assert functions() == []


def test_specifications_of_ended_pods_are_removed_when_the_agent_starts(node: SriovNode) -> None:
    sandbox = asyncio.run(node.runtime(chained=False).add(pod("a", {}, PROGRAM)))
    [ours] = CDI.glob("k8s-rdma.io-vf_*.json")
    node.kill_agent()
    remove_namespace_at(Path(sandbox.netns))
    ours.with_name("k8s-rdma.io-vf_0000:99:00.0.json").write_bytes(ours.read_bytes())
    foreign = CDI / "vendor.com-gpu.json"
    foreign.write_text("{}")
    node.start_agent()
    assert list(CDI.iterdir()) == [foreign]
    foreign.unlink()
    assert functions() == []
