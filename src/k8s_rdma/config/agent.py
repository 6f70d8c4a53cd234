"""The agent's configuration file."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.config.addresses import NAMESPACE
from k8s_rdma.config.devices import DevicePluginConfig, load_device_config
from k8s_rdma.config.field_types import AbsolutePath, NodeText
from k8s_rdma.config.hardware import HardwareConfig, VfSource
from k8s_rdma.config.memlock import MemlockText, memlock_bytes
from k8s_rdma.core.node_paths import CDI_DIR, CNI_BIN_DIR, RUN_DIR, STATE_DIR
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cdi import ResourceText, require_resource_name


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: the objects that the agent publishes in the API server.

    rdma_node: an `RdmaNode` with hardware and allocations, and a Lease that confirms it.
    vf_resource: the extended resource of the Node object that counts the VFs which pods can have; none by
        default. lease_namespace: the namespace of the Lease, which has the node's name. renew_s: the time
        between two renewals; the Lease is of three, and a node whose Lease has ended is refused.
    """

    rdma_node: bool = False
    vf_resource: ResourceText | None = None
    lease_namespace: Annotated[str, msgspec.Meta(min_length=1)] = NAMESPACE
    renew_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0

    def __post_init__(self) -> None:
        """Refuse an invalid resource name, or one of Kubernetes' own, which kubelet alone publishes."""
        if self.vf_resource is not None:
            require_resource_name("vfResource", self.vf_resource)

    def anything(self) -> bool:
        """Report whether there is anything to be published."""
        return self.rdma_node or self.vf_resource is not None


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    node: the node's name in Kubernetes.
    kernel: the source of VFs: `linux`, the node's network cards, or `virtual`, SR-IOV made of
        ordinary Linux parts.
    hardware: the network cards that the agent manages, with `linux`.
    run_dir: `cni.sock`, `state.sock` and `attachments/`; on a tmpfs that a reboot empties.
    state_group: the ID of the group that reads `state.sock` beside the agent's user; by default the agent's.
    state_dir: the ledger; on a disk that a reboot keeps.
    host_root: where the node's root file system is mounted, for namespaces and IPAM plugins.
    placement_key_file: keys, as in `config.placement_keys`; without them a placement is a hint only.
    policy_file: the operator's policies, see `config.namespace_policies`; the same as in the extender.
    strict: whether unknown keys in a pod's annotation refuse it; the same as in the extender.
    allow_unplaced: whether a pod that the extender did not place gets interfaces of the free capacity by this
        node's ledger; by default if placements are not signed. It may get capacity that the extender has
        promised to a pod that has not started yet.
    ipam_timeout_s: the longest time for a call of an IPAM plugin.
    reconcile_s: the interval of checks for vanished sandboxes, and for caps of software that a pod removed.
    kubeconfig, in_cluster: the credentials for the API server: a file, or the pod's service account; one of
        them or none. Without, pods' annotations come from the runtime alone, and refusals cause no events.
    publish: the objects that the agent publishes in the API server; needs credentials.
    stuck_after_s: the time after which a pod is evicted whose refusals will not end on this node; by default
        never.
    cdi_dir: the node's directory in which container runtimes read specifications of devices.
    device_plugin: the device plugin's file, if there is one: it assigns VFs to resources.
    pod_resources_timeout_s: how long an ADD waits for kubelet's answer about the devices of a pod.
    memlock: the memory that a container with a slot may lock, unless its pod says (`k8s-rdma.io/memlock`): an
        amount such as `64Gi`, or `unlimited`; `0` leaves the runtime's limit.
    cni_cache_dirs, cni_path: directories of the node: those in which libcni keeps attachments for a runtime
        and for Multus, and those of plugins. The latter are for our executable as the hook of `memlock`, and
        both for `--rebuild-ledger`, because only a call of the runtime names them.
    """

    node: NodeText
    kernel: VfSource = "linux"
    hardware: HardwareConfig = HardwareConfig()
    run_dir: AbsolutePath = RUN_DIR
    state_group: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_294)] | None = None
    state_dir: AbsolutePath = STATE_DIR
    host_root: AbsolutePath = "/"
    placement_key_file: str | None = None
    policy_file: AbsolutePath | None = None
    strict: bool = True
    allow_unplaced: bool | None = None
    ipam_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    reconcile_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    kubeconfig: AbsolutePath | None = None
    in_cluster: bool = False
    publish: PublishConfig = PublishConfig()
    stuck_after_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cdi_dir: AbsolutePath = CDI_DIR
    device_plugin: AbsolutePath | None = None
    pod_resources_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    memlock: MemlockText = "unlimited"
    cni_cache_dirs: tuple[AbsolutePath, ...] = ("/var/lib/cni/results", "/var/lib/cni/multus/results")
    cni_path: str = f"{CNI_BIN_DIR}:/usr/lib/cni:/usr/libexec/cni"

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, and amounts that a pattern does not tell."""
        self.memlock_bytes()
        if self.kubeconfig is not None and self.in_cluster:
            msg = "kubeconfig and inCluster: both are set, and one of them says it all"
            raise ValueError(msg)
        if self.publish.anything() and not self.has_credentials():
            msg = "publish: needs credentials for the API server: set kubeconfig or inCluster"
            raise ValueError(msg)

    def memlock_bytes(self) -> int:
        """The bytes of `memlock`."""
        return memlock_bytes("memlock", self.memlock)

    def has_credentials(self) -> bool:
        """Report whether credentials for the API server are configured."""
        return self.kubeconfig is not None or self.in_cluster


def load_device_plugin(config: AgentConfig) -> DevicePluginConfig | None:
    """Load the device plugin's configuration, if any. MalformedError names the keys of both files."""
    if config.device_plugin is None:
        return None
    try:
        return load_device_config(config.device_plugin, {}).config
    except MalformedError as error:
        msg = f"devicePlugin: {error}"
        raise MalformedError(msg) from error
