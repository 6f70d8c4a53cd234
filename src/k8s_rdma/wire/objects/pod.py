"""Pods (`core/v1`).

`PodSpecDemand` and `ContainerDemand` are the parts that are read of all pods of a cluster. `PodSpec` adds the
nodes that a pod may be on, `WholePodSpec` and `Container` the programs.

Source: k8s.io/api/core/v1, types.go (Kubernetes 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.wire.node_affinity import node_selection
from k8s_rdma.wire.objects.affinity import Affinity, NodeSelectorTerm
from k8s_rdma.wire.objects.meta import ObjectMeta, PassedOver
from k8s_rdma.wire.objects.node import ApiToleration, EndingToleration

if TYPE_CHECKING:
    from k8s_rdma.core.pod_constraints import NodeSelection


class PreemptionPolicy(StrEnum):
    """Kubernetes' preemption policies: whether a pod may have pods of lower priority evicted."""

    LOWER = "PreemptLowerPriority"
    NEVER = "Never"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """A container's resources; quantities as written (`"1"`, `"500m"`)."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class Port(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A port of a container."""

    host_port: int | None = None


class ContainerDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of a container that determines the resources that it takes of its node."""

    resources: Resources | None = None
    ports: tuple[Port, ...] | None = None
    restart_policy: str | None = None


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a container."""

    name: str


class VolumeMount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume in a container."""

    name: str
    mount_path: str
    sub_path: str = ""


class Container(ContainerDemand, frozen=True, kw_only=True):
    """A container of a pod."""

    name: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()


class HostPath(PassedOver, frozen=True, gc=False):
    """A path on the node, in a volume; empty for a volume of another kind."""

    path: str = ""


class PodClaim(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """An entry of a pod's `spec.resourceClaims`, or of its `status.resourceClaimStatuses`."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `spec.schedulingGroup` of a pod."""

    pod_group_name: str | None = None


class SchedulingGate(msgspec.Struct, frozen=True):
    """An entry of a pod's `spec.schedulingGates`."""

    name: str = ""


class PodSpecDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of the specification that determines the resources that a pod takes, and its scheduling."""

    node_name: str | None = None
    host_network: bool | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    containers: tuple[ContainerDemand, ...] | None = None
    init_containers: tuple[ContainerDemand, ...] | None = None
    overhead: dict[str, str] | None = None
    resources: PassedOver | None = None
    resource_claims: tuple[PodClaim, ...] | None = None
    volumes: tuple[Mapping[str, str | PassedOver | None], ...] | None = None
    affinity: PassedOver | None = None
    topology_spread_constraints: tuple[PassedOver, ...] | None = None

    @property
    def depends_on_neighbours(self) -> bool:
        """Report whether it may matter to the pod which other pods its node has."""
        return bool(self.affinity or self.topology_spread_constraints or self.resource_claims)


class PodSpec(PodSpecDemand, frozen=True, kw_only=True):
    """The specification, with the nodes that the pod may be on, and those that may be made room on."""

    scheduler_name: str | None = None
    priority_class_name: str | None = None
    preemption_policy: PreemptionPolicy | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[EndingToleration, ...] | None = None

    def node_affinity(self) -> tuple[NodeSelectorTerm, ...] | None:
        """Return the terms of the required node affinity, if the pod has any."""
        return None if self.affinity is None else self.affinity.terms()

    def selection(self) -> NodeSelection:
        """Return the nodes that the pod selects. MalformedError as of `node_selection`."""
        return node_selection(self.node_selector, self.node_affinity())

    def lasting_tolerations(self) -> tuple[ApiToleration, ...]:
        """Return the tolerations that do not end, unlike those that admission adds to every pod."""
        return tuple(
            ApiToleration(key=entry.key, operator=entry.operator, value=entry.value, effect=entry.effect)
            for entry in self.tolerations or ()
            if entry.toleration_seconds is None
        )


class WholePodSpec(PodSpec, frozen=True, kw_only=True):
    """The specification, with the programs of its containers."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    volumes: tuple[Mapping[str, str | HostPath | None], ...] | None = None


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod's status. nominated_node_name: the node on which preemption made room for it."""

    phase: str | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: tuple[PodClaim, ...] | None = None
    extended_resource_claim_status: PodClaim | None = None


class KubePod(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpecDemand = PodSpecDemand()
    status: PodStatus = PodStatus()
