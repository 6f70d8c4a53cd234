"""Facts of `isolation`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from doctor.cases.rdma_namespaces import RDMA
from k8s_rdma.config.devices import DevicePluginConfig, ExactResource, MountResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.node.rdma_namespaces import check_isolation

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def isolation(resource: object, mode: NetnsMode = NetnsMode.SHARED, **more: object) -> list[Finding]:
    plugin = DevicePluginConfig(resources=(resource,))
    return list(check_isolation(replace(RDMA, plugin=plugin, mode=mode, **more)))


IN_ORDER = list(check_isolation(RDMA))

CASES = {
    "isolation-own-namespace": isolation(MountResource(), NetnsMode.EXCLUSIVE),
    "isolation-matching-devices": isolation(SharedResource(name="rdma/shared", count=9)),
    "isolation-every-device": isolation(MountResource()),
    "isolation-no-plugin": list(check_isolation(replace(RDMA, plugin=None))),
    "isolation-unsigned-placements": isolation(ExactResource(), signed=False),
}
