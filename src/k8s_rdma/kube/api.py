"""The Kubernetes API as this system uses it: values and Protocols.

`kube.client` is the implementation that talks to an API server; this module imports no client library.
`AbsentApi` stands for one if a process runs without an API server. Published nodes have a Protocol for
readers (the extender) and one for writers (agents).

An informer lists and watches objects of the API server, again whenever a watch is lost. Time is an object.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

import msgspec
import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.preemption import ResourceDemand
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.pod_group import PodGroup


T = TypeVar("T")

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror pod with the UID that kubelet and runtime know."""

TOO_LARGE = 413
"""The status of a refusal since the object would be longer than etcd takes (1.5 MiB), or the request than the
API server does."""


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


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of the objects there are, while a list is under way; `Listed` ends it and names the rest.

    is_anew: whether the list began again, so that objects on pages before this one may be gone.
    """

    items: tuple[T, ...]
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The complete list, with the pages before it; objects that are not on it are gone.

    is_anew: as of `Page`.
    """

    items: tuple[T, ...]
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object that is new or different."""

    item: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object that was deleted, or does not belong to the followed objects any more; in its last state."""

    item: T


Event = Page[T] | Listed[T] | Changed[T] | Deleted[T]


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
class LeaseView:
    """A Lease of `coordination.k8s.io/v1`.

    holder: `holderIdentity`, empty if it was released.
    duration_s: `leaseDurationSeconds`, whole seconds for which a renewal counts.
    version: `resourceVersion`, another one with every write; empty while the object does not exist.
    owner: the UID of a Node object with which it is to be deleted; used when it is created.
    owner_name: of that Node, if the Lease does not have its name.
    """

    namespace: str
    name: str
    holder: str
    duration_s: int
    version: str = ""
    owner: str = ""
    owner_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object of core/v1 that an Event is about, and the namespace of the Event."""

    kind: str
    namespace: str
    name: str
    uid: str


def about_pod(pod: Pod) -> Subject:
    """Return a pod as the subject of an event."""
    return Subject(kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def about_node(node: NodeName) -> Subject:
    """Return a node as in kubelet's own Events: its UID is its name, by which kubectl finds them."""
    return Subject(kind="Node", namespace="default", name=node, uid=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An Event of core/v1, which `kubectl describe` shows with the object that it is about.

    name: of the Event object; the same event again increases its count.
    reason: one word in CamelCase.
    warning: else it is `Normal`.
    count: how often it happened from `first` to `last` (with a time zone).
    component, host: the component that reports it, and its node.
    """

    about: Subject
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNodeView:
    """An `RdmaNode`. version: `resourceVersion`. status: its bytes, empty without a status."""

    node: NodeName
    version: str
    status: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeView:
    """The Node object of the node that publishes. capacity: of its status, quantities as written there."""

    uid: str
    capacity: Mapping[str, str]


class ApiRefusedError(K8sRdmaError):
    """The API server refuses the call (HTTP 4xx); `status` is the code, and no object was written.

    `TOO_LARGE` also if it answers 409 or 500 for that reason.

    retry_after_s: the time to wait that it demands; 0 if it demands no wait.
    """

    reason = Reason.API_FAILURE

    def __init__(self, message: str, *, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class PodGroupVersionError(ApiRefusedError):
    """The API server serves PodGroups in no version that is known here. served: those that it has."""

    def __init__(self, *, served: tuple[str, ...], readable: tuple[str, ...]) -> None:
        if served:
            why = f"this API server has PodGroups as scheduling.k8s.io/{', '.join(served)} only"
            advice = f"this k8s-rdma knows {', '.join(readable)}: install one that knows it"
        else:
            why = "this API server has no PodGroups of scheduling.k8s.io"
            advice = f"turn its feature gate GenericWorkload on, with one of {', '.join(readable)}"
        super().__init__(f"{why}; {advice}", status=404)
        self.served = served


class ApiUnreachableError(K8sRdmaError):
    """No connection to the API server could be made; no object was written."""

    reason = Reason.API_FAILURE


class ApiUncertainError(K8sRdmaError):
    """No usable answer (timeout, connection lost, HTTP 5xx); a write may have happened, or happen yet."""

    reason = Reason.API_FAILURE


API_ERRORS = (ApiRefusedError, ApiUnreachableError, ApiUncertainError)


class ClusterApi(Protocol):
    """The calls. Each raises one of the three errors of this module, and no other error except defects."""

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


class LeaseApi(Protocol):
    """The calls for a Lease; errors as in `ClusterApi`."""

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Return the present state of the Lease, if it exists."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Take, renew or release: set holder and duration, with the present time; return the result.

        It creates the object if `version` is empty.
        ApiRefusedError with 409 if it exists already, or has another version: somebody else has written it.
        """
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


class PublishedApi(Protocol):
    """The calls of who reads."""

    def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch as `ClusterApi.follow_pods`, the list in pages."""
        ...

    def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        """Follow the Leases of a namespace, as `ClusterApi.follow_pods`."""
        ...

    async def leases_version(self, namespace: str) -> int:
        """Return the version of the API server's Leases at some moment between the call and its answer.

        A Lease of a larger `resourceVersion` was written after that moment. Both are of one kind of objects,
        so their versions may be compared ("Resource versions" in Kubernetes' API concepts).
        """
        ...


class PublishingApi(Protocol):
    """The calls of a writer; a write with an older `version` is refused (409)."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """Follow the Node object, if it exists, as `ClusterApi.follow_pods`."""
        ...

    async def get_rdma_node(self, node: NodeName) -> RdmaNodeView | None:
        """Return the present state of the `RdmaNode`, if it exists."""
        ...

    async def create_rdma_node(self, node: NodeName, uid: str) -> RdmaNodeView:
        """Make it, without a status; it is deleted with the Node object of that UID."""
        ...

    async def write_status(self, written: RdmaNodeView) -> RdmaNodeView:
        """Replace its status; return the result."""
        ...

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Implement `LeaseApi.get_lease`."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Implement `LeaseApi.write_lease`."""
        ...

    async def set_capacity(self, node: NodeName, resource: str, count: int) -> None:
        """Set one resource of the capacity in the Node object's status."""
        ...


class AddressesApi(Protocol):
    """The calls by which an agent holds addresses for its pods; errors as in `ClusterApi`."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """Implement `PublishingApi.follow_node`."""
        ...

    async def find_rdma_node(self, matches: Callable[[RdmaNodeView], bool]) -> RdmaNodeView | None:
        """Return the first `RdmaNode` that matches, if one does."""
        ...

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Implement `LeaseApi.get_lease`."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Implement `LeaseApi.write_lease`."""
        ...

    async def delete_lease(self, lease: LeaseView) -> None:
        """Delete that version of a Lease: 409 if somebody has written it since, 404 if it is gone."""
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


_log = structlog.get_logger()
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0

STEADY_S = 60.0
"""A watch that lasted for so long was a good one: that the API server ends it is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """monotonic: in seconds, as `time.monotonic`. now: with a time zone. pause: as `asyncio.sleep`."""

    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    pause: Callable[[float], Awaitable[None]]


REAL_TIME = Time(monotonic=time.monotonic, now=lambda: datetime.now(UTC), pause=asyncio.sleep)


async def follow(
    subject: str,
    stream: Callable[[], AsyncIterator[Event[Any]]],
    on_event: Callable[[Event[Any]], None],
    *,
    time: Time = REAL_TIME,
    first_retry_s: float = FIRST_RETRY_S,
) -> NoReturn:
    """List and watch: hand over every event of a stream, and of a new one when it is lost, until cancelled.

    The delay before a new stream doubles to 30 s. It is reset after a stream that lasted for `STEADY_S` or
    brought changes since its list. A change that makes `on_event` fail is left out.

    subject: the followed objects, for the log.
    """
    backoff = Backoff(first_retry_s, LAST_RETRY_S)
    while True:
        started, error = time.monotonic(), None
        try:
            async with aclosing(cast("Any", stream())) as events:
                async for event in events:
                    if isinstance(event, Page | Listed):
                        on_event(event)
                    else:
                        handle_item(subject, on_event, event)
                        backoff.reset()
        except API_ERRORS as failure:
            error = failure.message
        if time.monotonic() - started >= STEADY_S:
            backoff.reset()
        ended_again, delay_s = backoff.failing, backoff.fail()
        if error or ended_again:
            _log.warning("watch_lost", what=subject, error=error or "the watch ended", again_in_s=delay_s)
        await time.pause(delay_s)


def handle_item(subject: str, handle: Callable[[T], None], item: T) -> None:
    """Hand over one object, or one change of it.

    The content of one object must not end the process, nor keep it from learning of all others. So an object
    that makes `handle` fail, which is a defect, is logged and left out.
    """
    try:
        handle(item)
    except Exception:
        _log.exception("object_failed", what=subject)
