"""The Kubernetes API as this system uses it: values and Protocols.

`kube.client` is the implementation that talks to an API server; this module imports no client library.
`AbsentApi` stands for one if a process runs without an API server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec

from k8s_rdma.core.preemption import ResourceDemand
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.kube.errors import ApiUnreachableError

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.pod_group import PodGroup
    from k8s_rdma.kube.informer import Event


MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror pod with the UID that kubelet and runtime know."""


class PodView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod, with the fields that this system reads; a Struct, because lists of a hundred thousand are made.

    node: the node that it is bound to; None before.
    finished: its phase is Succeeded or Failed: its containers will not run again.
    annotations: those under this system's own keys only, unless all were requested.
    version: `resourceVersion`, another one with every write.
    priority: 0 if admission set no priority.
    terminating: its deletion was requested.
    labels: the labels by which disruption budgets select it; empty for a pod that is not bound, has no
        annotation of this system, or too many labels.
    nominated: `status.nominatedNodeName`, the node on which preemption made room for it.
    started: `status.startTime` as written, empty before.
    demand: the sum of its resource requests; None if it may take other resources of its node as well, or has
        no annotation of this system.
    devices: the number of devices of each extended resource that its containers get.
    annotation_bytes: of all annotations, including those of others; 0 for a bound pod, and without an
        annotation of this system.
    gang: the gang that it belongs to.
    claims: names of its ResourceClaims, including generated ones, as for extended resources.
    host_network: whether it is in its node's network, and so without interfaces.
    gates: names of its `schedulingGates`.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName | None
    finished: bool
    annotations: Mapping[str, str]
    version: str = ""
    priority: int = 0
    terminating: bool = False
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    nominated: NodeName | None = None
    started: str = ""
    demand: ResourceDemand | None = None
    devices: tuple[tuple[str, int], ...] = ()
    annotation_bytes: int = 0
    gang: Gang | None = None
    claims: tuple[str, ...] = ()
    host_network: bool = False
    gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and its addresses inside the cluster: `InternalIP` and `InternalDNS`, in the object's order."""

    name: NodeName
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBinding:
    """The write that sets a pod's node and, in the same transaction, adds annotations to the pod.

    uid: precondition; a pod of the same name that was created again is not bound.
    version: precondition as well; a pod that was written to since is not bound (409). Empty for no such
        condition.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    annotations: Mapping[str, str]
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSubject:
    """The object of core/v1 that an Event is about, and the namespace of the Event."""

    kind: str
    namespace: str
    name: str
    uid: str


def about_pod(pod: Pod) -> EventSubject:
    """Return a pod as the subject of an event."""
    return EventSubject(kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def about_node(node: NodeName) -> EventSubject:
    """Return a node as in kubelet's own Events: its UID is its name, by which kubectl finds them."""
    return EventSubject(kind="Node", namespace="default", name=node, uid=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An Event of core/v1, which `kubectl describe` shows with the object that it is about.

    name: of the Event object; the same event again increases its count.
    reason: one word in CamelCase.
    warning: else it is `Normal`.
    count: how often it happened from `first` to `last` (with a time zone).
    component, host: the component that reports it, and its node.
    """

    about: EventSubject
    name: str
    reason: str
    message: str
    warning: bool
    count: int
    first: datetime
    last: datetime
    component: str
    host: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """A PodDisruptionBudget of `policy/v1`.

    selector: reports whether it is for a pod with these labels in its namespace, as kube-scheduler reads it:
        an empty selector selects no pods.
    allowed: disruptions that it still allows.
    disrupted: pods that count as disrupted already (`status.disruptedPods`, by name).
    """

    namespace: str
    name: str
    selector: Callable[[Mapping[str, str]], bool]
    allowed: int
    disrupted: frozenset[str] = frozenset()


class ClusterApi(Protocol):
    """The calls. Each raises one of the three errors of `kube.errors`, and no other error except defects."""

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        """Return the present state of the pod, if it exists."""
        ...

    async def get_pod_group(self, gang: Gang) -> PodGroup:
        """Read the gang's PodGroup; if a label names one that does not exist, a group without a number.

        ApiRefusedError with 404 if a field of the pod names one that does not exist: kube-scheduler waits for
        it as well.
        PodGroupVersionError if no known version is served.
        """
        ...

    async def bind_pod(self, binding: PodBinding) -> None:
        """`POST /api/v1/namespaces/NS/pods/NAME/binding`; returns once the pod is bound."""
        ...

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:
        """Set one annotation of a pod of that UID; answers the pod as it is then.

        A Binding that was prepared of an earlier version of the pod is refused from then on.
        """
        ...

    async def annotate_version(self, pod: Pod, version: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of that version of a pod; 409 when anybody wrote to it since."""
        ...

    async def label_pod(self, pod: Pod, key: str, value: str) -> PodView:
        """Touch a pod as `touch_pod`, by a label."""
        ...

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:
        """Set one annotation of a node object."""
        ...

    async def label_node(self, node: NodeName, key: str, value: str) -> None:
        """Set one label of a node object."""
        ...

    def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        """Unfinished pods of all namespaces: pages of them and `Listed` first, then every change.

        Raises when the watch is lost; ask again then.
        """
        ...

    def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        """Follow nodes, as `follow_pods` does."""
        ...

    def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        """PodDisruptionBudgets of all namespaces: as `follow_pods`."""
        ...


class EventsApi(Protocol):
    """The calls for Events; errors as in `ClusterApi`."""

    async def create_event(self, event: ObjectEvent) -> None:
        """Make an Event object; 409 when there is one of that name."""
        ...

    async def repeat_event(self, event: ObjectEvent) -> None:
        """Tell of an Event made before that it happened again: its message, count and last time."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class NodePodsApi(EventsApi, Protocol):
    """The calls about the pods of one node; errors as in `ClusterApi`.

    A write to a pod is refused (`ApiRefusedError`: 404, 409 or 422) if the pod of that name has another UID.
    """

    def follow_pods_of(self, node: NodeName) -> AsyncIterator[Event[PodView]]:
        """Unfinished pods that are bound to a node: as `ClusterApi.follow_pods`."""
        ...

    async def get_whole_pod(self, namespace: str, name: str) -> PodView | None:
        """Return the present state of the pod with all of its annotations, if it exists."""
        ...

    async def annotate_pod(self, pod: Pod, key: str, value: str) -> None:
        """Set one annotation of a pod."""
        ...

    async def evict_pod(self, pod: Pod) -> None:
        """Have a pod go from its node; 429 while a disruption budget forbids it."""
        ...


class AbsentApi:
    """A `ClusterApi` without an API server: every call raises ApiUnreachableError."""

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        """Raise ApiUnreachableError."""
        _refuse(f"get pod {namespace}/{name}")

    async def get_pod_group(self, gang: Gang) -> PodGroup:
        """Raise ApiUnreachableError."""
        _refuse(f"get podgroup {gang}")

    async def bind_pod(self, binding: PodBinding) -> None:
        """Raise ApiUnreachableError."""
        _refuse(f"bind pod {binding.namespace}/{binding.name}")

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:  # noqa: ARG002 - the Protocol's
        """Raise ApiUnreachableError."""
        _refuse(f"annotate pod {pod.namespace}/{pod.name}")

    async def annotate_version(self, pod: Pod, version: str, annotations: Mapping[str, str]) -> None:  # noqa: ARG002 - the Protocol's
        """Raise ApiUnreachableError."""
        _refuse(f"annotate pod {pod.namespace}/{pod.name}")

    async def label_pod(self, pod: Pod, key: str, value: str) -> PodView:  # noqa: ARG002 - the Protocol's
        """Raise ApiUnreachableError."""
        _refuse(f"label pod {pod.namespace}/{pod.name}")

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:  # noqa: ARG002 - the Protocol's
        """Raise ApiUnreachableError."""
        _refuse(f"annotate node {node}")

    async def label_node(self, node: NodeName, key: str, value: str) -> None:  # noqa: ARG002 - the Protocol's
        """Raise ApiUnreachableError."""
        _refuse(f"label node {node}")

    def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        """Raise ApiUnreachableError."""
        _refuse("list pods")

    def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        """Raise ApiUnreachableError."""
        _refuse("list nodes")

    def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        """Raise ApiUnreachableError."""
        _refuse("list poddisruptionbudgets")


def _refuse(operation: str) -> NoReturn:
    msg = f"{operation}: this process is configured to run without an API server"
    raise ApiUnreachableError(msg)
