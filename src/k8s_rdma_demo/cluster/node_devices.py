"""Device plugins' devices on a node, and the configuration and services that the parts of its kubelet share.

A pod is admitted with its devices, its containers are created with them, and the node reports their number.

Source: `pkg/kubelet/cm/admission/errors.go`, `kubelet.go` (`rejectPod`), `kubelet_node_status.go`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.client import ApiClient, EventRecorder
from k8s_rdma_demo.cluster.containers import (
    ContainerCreator,
    ContainerDirectory,
    ContainerError,
    PodContainers,
    RecordedContainers,
)
from k8s_rdma_demo.cluster.dynamic_resources import ClaimError, ClaimManager, running_claim_manager
from k8s_rdma_demo.cluster.objects import (
    Clock,
    JsonObject,
    name_of,
    namespace_of,
    spec_of,
    system_clock,
    uid_of,
)
from k8s_rdma_demo.cluster.sandboxes import Runtime, SandboxDirectory
from k8s_rdma_demo.kubelet.device_manager import DeviceManager, DeviceManagerConfig, running_device_manager
from k8s_rdma_demo.kubelet.pods import (
    AdmissionError,
    Capacity,
    ContainerKind,
    DeviceContainer,
    DevicePod,
    PreparationError,
)

CDI_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
REJECTED = "UnexpectedAdmissionError"
_NONE = Capacity(capacity=0, allocatable=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesConfig:
    """The configuration of devices on a node.

    manager: kubelet's part. cdi_dirs: where the runtime looks for CDI specifications; the last counts most.
    host_root: where the host's device nodes are.
    registry: the directory where drivers of ResourceClaims register; unset: kubelet knows no drivers.
    """

    manager: DeviceManagerConfig
    cdi_dirs: tuple[Path, ...] = CDI_DIRS
    host_root: Path = Path("/")
    registry: Path | None = None


class RejectedError(Exception):
    """The pod cannot run here, now or later."""


@asynccontextmanager
async def running_node_devices(
    node: KubeletConfig, config: DevicesConfig, client: ApiClient, maker: ContainerCreator | None = None
) -> AsyncIterator[NodeDevices]:
    """Run until the block ends. maker: unset for records only."""
    async with AsyncExitStack() as stack:
        claims = None
        if config.registry is not None:
            running = running_claim_manager(client, node.node, config.registry)
            claims = await stack.enter_async_context(running)
        yield NodeDevices(
            manager=await stack.enter_async_context(running_device_manager(config.manager)),
            containers=ContainerDirectory(node.containers),
            creator=maker or RecordedContainers(cdi_dirs=config.cdi_dirs, host_root=config.host_root),
            claims=claims,
        )


@dataclass(slots=True, kw_only=True)
class NodeDevices:
    """Kubelet's device manager and the runtime's containers. claims: the manager of claims, if any."""

    manager: DeviceManager
    containers: ContainerDirectory
    creator: ContainerCreator
    claims: ClaimManager | None = None
    _reported: set[str] = field(default_factory=set, init=False)

    async def admit(self, pod: JsonObject) -> None:
        """Give a pod its devices before anything of it is started; RejectedError."""
        recorded = self.containers.get(uid_of(pod))
        running = frozenset(container.name for container in recorded.containers) if recorded else frozenset()
        try:
            await self.manager.admit(device_pod(pod), running=running)
        except AdmissionError as error:
            raise RejectedError(f"Allocate failed due to {error.message}, which is unexpected") from error

    async def create(self, pod: JsonObject, sandbox: str) -> None:
        """Make a pod's containers in its sandbox, unless they are there; ContainerError."""
        recorded = self.containers.get(uid_of(pod))
        if recorded is not None and recorded.sandbox == sandbox:
            return
        containers = []
        requesting_pod = device_pod(pod)
        for container in requesting_pod.containers:
            try:
                response = await self.manager.prepare(requesting_pod, container.name)
            except PreparationError as error:
                raise ContainerError(error.message) from error
            if self.claims is not None:
                claimed = self.claims.cdi_devices(pod, container.name)
                response = replace(response, cdi_devices=(*response.cdi_devices, *claimed))
            containers.append(await self.creator.create(pod, sandbox, container.name, response))
        self.containers.save(
            PodContainers(
                namespace=requesting_pod.namespace,
                name=requesting_pod.name,
                uid=requesting_pod.uid,
                sandbox=sandbox,
                containers=tuple(containers),
            )
        )

    async def prepare_claims(self, pod: JsonObject) -> None:
        """Have drivers prepare the pod's claims; ContainerError."""
        if self.claims is not None:
            try:
                await self.claims.prepare(pod)
            except ClaimError as error:
                raise ContainerError(error.message) from error

    async def unprepare_claims(self, uid: str) -> None:
        """Have drivers unprepare the claims that no pod has any more; ContainerError."""
        if self.claims is not None:
            try:
                await self.claims.unprepare(uid)
            except ClaimError as error:
                raise ContainerError(error.message) from error

    async def release(self, uid: str) -> None:
        """Free the devices of a pod that is over for kubelet, even if parts of it are left."""
        await self.manager.release(uid)

    def status(self) -> tuple[dict[str, str], dict[str, str]]:
        """Capacity and allocatable of plugins' resources; 0 for those that no longer exist."""
        capacity = self.manager.capacity()
        self._reported |= capacity.keys()
        every = {name: capacity.get(name, _NONE) for name in sorted(self._reported)}
        return (
            {name: str(amounts.capacity) for name, amounts in every.items()},
            {name: str(amounts.allocatable) for name, amounts in every.items()},
        )


def device_pod(pod: JsonObject) -> DevicePod:
    """Convert a pod for the device manager."""
    spec = spec_of(pod)
    init = [
        _container(
            container,
            ContainerKind.SIDECAR if container.get("restartPolicy") == "Always" else ContainerKind.INIT,
        )
        for container in spec.get("initContainers") or []
    ]
    app = [_container(container, ContainerKind.APP) for container in spec.get("containers") or []]
    return DevicePod(
        namespace=namespace_of(pod), name=name_of(pod), uid=uid_of(pod), containers=(*init, *app)
    )


def _container(container: JsonObject, kind: ContainerKind) -> DeviceContainer:
    """Limits of resources with a domain: those are whole numbers, as the API server has seen to."""
    limits = (container.get("resources") or {}).get("limits") or {}
    whole = {name: int(quantity(str(amount))) for name, amount in limits.items() if "/" in name}
    return DeviceContainer(name=container["name"], limits=whole, kind=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """The configuration of the kubelet of one node.

    conflist, cni_path, netns_dir: of its own runtime.
    runtime_endpoint: the socket of a real runtime instead, which needs `state_dir` and `devices`.
    relist_s: how often that is asked whether the pods' sandboxes still run.
    state_dir: where sandboxes are recorded, one file each; default: `sandboxes` beside `netns_dir`.
    node_ip: the node's address; unset: the InternalIP of the Node object, or 127.0.0.1.
    register: create the Node object if it is missing.
    start_retry_s: the first pause after a sandbox that failed; doubles up to `max_start_retry_s`.
    stop_retry_s: the pause after a DEL that failed.
    late_delete_s: when the two DELs without a namespace follow a pod's end; unset: never.
    status_interval_s: how often the plugins are asked for their STATUS.
    devices: device plugins and containers' shares of them; unset: this kubelet knows no plugins.
    lease_s: the duration of the node's Lease, which is renewed four times as often; unset: no Lease.
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
    lease_s: float | None = None
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

    devices: unset if the kubelet knows no device plugins.
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
