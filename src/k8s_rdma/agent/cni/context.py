"""The parts of the agent that every CNI verb uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from k8s_rdma.agent.cdi_specs import AttachmentSpecs
from k8s_rdma.agent.cluster.cluster import Cluster, NoCluster
from k8s_rdma.agent.cni.container_locks import ContainerLocks, PendingAdds
from k8s_rdma.agent.cni.exclusive_devices import PodDeviceLookup
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.plugins.delegate import Delegate
from k8s_rdma.agent.plugins.ipam import IpamPlugins
from k8s_rdma.agent.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """The node and its worker, the other plugins, the cluster, and whose turn it is on each container.

    devices: files that tell of the devices that pods have; used by the worker.
    holdings: what kubelet gave pods of the device plugin's resources.
    """

    node: Node
    worker: Worker
    ipam: IpamPlugins
    delegate: Delegate
    devices: AttachmentSpecs
    holdings: PodDeviceLookup = field(default_factory=PodDeviceLookup)
    cluster: Cluster = field(default_factory=NoCluster)
    turns: ContainerLocks = field(default_factory=ContainerLocks)
    pending_adds: PendingAdds = field(default_factory=PendingAdds)
