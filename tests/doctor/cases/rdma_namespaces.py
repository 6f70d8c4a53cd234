"""Facts of `rdma-namespaces`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace

from doctor.cases.configuration import AGENT_FILE
from k8s_rdma.config.devices import DevicePluginConfig, ExactResource, ExclusiveResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.node.rdma_namespaces import RdmaFacts, check_rdma_namespaces

RDMA = RdmaFacts(
    mode=NetnsMode.EXCLUSIVE,
    persistent=NetnsMode.EXCLUSIVE,
    plugin=DevicePluginConfig(resources=(ExactResource(),)),
    source="/etc/k8s-rdma/device-plugin.yaml",
    agent_file=AGENT_FILE,
    signed=True,
)


IN_ORDER = list(check_rdma_namespaces(RDMA))

CASES = {
    "rdma-namespaces-no-rdma": list(check_rdma_namespaces(replace(RDMA, mode=None))),
    "rdma-namespaces-not-kept": list(check_rdma_namespaces(replace(RDMA, persistent=NetnsMode.SHARED))),
    "rdma-namespaces-without-cdi": list(
        check_rdma_namespaces(
            replace(RDMA, plugin=DevicePluginConfig(resources=(ExclusiveResource(cdi=False),)))
        )
    ),
}
