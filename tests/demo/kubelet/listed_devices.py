"""Devices as plugins list them and as kubelet gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.kubelet.conftest import RESOURCE
from k8s_rdma.core.devices.pod_devices import AllocateResponse, DeviceSpec, PluginOptions
from k8s_rdma_demo.kubelet.pods import Capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL_CALLS = PluginOptions(pre_start_required=True, preferred_allocation=True)


async def listed(manager, healthy):
    await manager.wait_for(
        lambda: manager.capacity().get(RESOURCE) == Capacity(capacity=4, allocatable=healthy)
    )


def gives(ids: Sequence[str]) -> AllocateResponse:
    return AllocateResponse(
        envs={"LAB_RDMA_VFS": ",".join(ids)},
        annotations={"lab.local/devices": ",".join(ids)},
        devices=(DeviceSpec(path="/dev/infiniband/uverbs0", host_path="/dev/null"),),
        cdi_devices=tuple(f"lab.local/vf={each}" for each in ids),
    )
