"""What everything on one node's kubelet shares, and how the kubelet is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k8s_rdma_demo.cluster.client import ApiClient
from k8s_rdma_demo.cluster.events import EventRecorder
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, NodeDevices
from k8s_rdma_demo.cluster.objects import Clock, system_clock
from k8s_rdma_demo.cluster.sandbox import Runtime, SandboxDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """How the kubelet of one node is run.

    conflist, cni_path, netns_dir: of its own runtime.
    runtime_endpoint: the socket of a real runtime instead, which needs `state_dir` and `devices`.
    relist_s: how often that is asked whether the pods' sandboxes still run.
    state_dir: where sandboxes are recorded, one file each; default: `sandboxes` beside `netns_dir`.
    node_ip: the node's address; None: the InternalIP of the Node object, or 127.0.0.1.
    register: create the Node object if there is none.
    start_retry_s: the first pause after a sandbox that failed; doubles up to `max_start_retry_s`.
    stop_retry_s: the pause after a DEL that failed.
    late_delete_s: when the two DELs without a namespace follow a pod's end; None: never.
    status_interval_s: how often the plugins are asked for their STATUS.
    devices: device plugins and what containers get of them; None: this kubelet knows none.
    """

    node: str
    conflist: Path | None = None
    cni_path: Sequence[Path] = ()
    netns_dir: Path | None = None
    runtime_endpoint: Path | None = None
    relist_s: float = 1.0
    state_dir: Path | None = None
    node_ip: str | None = None
    register: bool = True
    start_retry_s: float = 1.0
    max_start_retry_s: float = 10.0
    stop_retry_s: float = 1.5
    late_delete_s: float | None = 20.0
    status_interval_s: float = 5.0
    devices: DevicesConfig | None = None
    clock: Clock = system_clock

    @property
    def sandboxes(self) -> Path:
        """The directory of the sandboxes' records."""
        if self.state_dir is not None:
            return self.state_dir
        if self.netns_dir is None:
            raise ValueError("state_dir: needed, as there is no netns_dir")
        return self.netns_dir.parent / "sandboxes"

    @property
    def containers(self) -> Path:
        """The directory of the containers' records."""
        return self.sandboxes.parent / "containers"


@dataclass(slots=True, kw_only=True)
class NodeServices:
    """The services that pods' workers share.

    devices: None where the kubelet knows no device plugins.
    network_error: why the network is not ready; empty when it is.
    """

    config: KubeletConfig
    client: ApiClient
    runtime: Runtime
    recorder: EventRecorder
    sandboxes: SandboxDirectory
    devices: NodeDevices | None = None
    node_ip: str = "127.0.0.1"
    network_error: str = field(default="")
