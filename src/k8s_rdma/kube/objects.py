"""The few fields of Kubernetes objects that are read and written, as lightkube resources.

lightkube's own models hold every field of an object. Decoding only these takes a tenth of the time and of the
memory, which counts when all pods of a cluster are listed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from sys import intern
from typing import TYPE_CHECKING

import msgspec
from lightkube.core.resource import (
    ApiInfo,
    GlobalResource,
    NamespacedResource,
    NamespacedResourceG,
    NamespacedSubResource,
    ResourceDef,
)

from k8s_rdma.core.pod_constraints import LABEL_OPERATORS, meets
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import visible
from k8s_rdma.kube.api import BudgetView, NodeView, ObjectEvent, PodBinding, PodView
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma.wire.annotation import ANNOTATION, annotation_bytes
from k8s_rdma.wire.objects.lease import LeaseSpec
from k8s_rdma.wire.objects.meta import ObjectIdentity, ObjectMeta, OwnerReference, WholeMeta
from k8s_rdma.wire.objects.node import NodeAddresses
from k8s_rdma.wire.objects.pod import KubePod, PodSpecDemand, PodStatus
from k8s_rdma.wire.pod_spec import demand_of, devices_of, gang_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ledger import Pod

_POD = ResourceDef("", "v1", "Pod")
_OWN_PREFIX = "k8s-rdma.io/"
_FINISHED = ("Succeeded", "Failed")
_MAX_LABELS = 64
_MAX_TERMS = 128
"""Terms of a budget: its owner may write 100,000. One with more selects no pod, see `_labels`."""


class PodObject(KubePod, NamespacedResourceG, frozen=True, kw_only=True):
    """A Pod object."""

    _api_info = ApiInfo(
        resource=_POD,
        plural="pods",
        verbs=["get", "list", "watch", "global_list", "global_watch", "patch"],
    )
    metadata: ObjectMeta

    def view(self) -> PodView:
        """Return the object as a value."""
        annotations = self.metadata.annotations or {}
        own = [key for key in annotations if key.startswith(_OWN_PREFIX) or key == ANNOTATION]
        if len(own) < len(annotations):
            annotations = {key: annotations[key] for key in own}
        return self._view(annotations)

    def whole(self) -> PodView:
        """Return the object as a value, with all annotations."""
        return self._view(self.metadata.annotations or {})

    def _view(self, annotations: dict[str, str]) -> PodView:
        meta, spec, status = self.metadata, self.spec, self.status
        bound, namespace, labels = bool(spec.node_name), intern(meta.namespace or ""), meta.labels
        return PodView(
            namespace=namespace,
            name=meta.name,
            uid=PodUid(meta.uid),
            node=NodeName(intern(spec.node_name)) if spec.node_name else None,
            finished=status.phase in _FINISHED,
            annotations=annotations,
            version=meta.resource_version,
            priority=spec.priority or 0,
            terminating=meta.deletion_timestamp is not None,
            labels=_labels(labels) if bound and annotations and labels else {},
            nominated=NodeName(status.nominated_node_name) if status.nominated_node_name else None,
            started=status.start_time or "",
            demand=demand_of(spec) if annotations else None,
            devices=_devices(spec),
            annotation_bytes=annotation_bytes(meta.annotations or {}) if annotations and not bound else 0,
            gang=gang_of(namespace, spec.scheduling_group, labels or {}),
            claims=_claims(spec, status),
            host_network=spec.host_network is True,
            gates=tuple([gate.name for gate in spec.scheduling_gates]) if spec.scheduling_gates else (),
        )


def _labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels, or an empty mapping if they are more than are kept: a pod may have 100,000 (10 MB).

    No budget then selects such a pod, which costs only its owner. If all budgets did, others' pods would be
    evicted.
    """
    return labels if len(labels) <= _MAX_LABELS else {}


def _devices(spec: PodSpecDemand) -> tuple[tuple[str, int], ...]:
    try:
        return devices_of(spec)
    except ValueError:  # no API server has such a pod, or no node
        return ()


def _claims(spec: PodSpecDemand, status: PodStatus) -> tuple[str, ...]:
    extended = status.extended_resource_claim_status
    if not (spec.resource_claims or status.resource_claim_statuses or extended):
        return ()
    entries = (*(spec.resource_claims or ()), *(status.resource_claim_statuses or ()))
    names = {entry.resource_claim_name for entry in (*entries, *([extended] if extended else []))}
    return tuple(sorted(name for name in names if name))


class NodeObject(msgspec.Struct, GlobalResource):
    """A Node object."""

    _api_info = ApiInfo(
        resource=ResourceDef("", "v1", "Node"), plural="nodes", verbs=["get", "list", "watch", "patch"]
    )
    metadata: ObjectIdentity
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    status: NodeAddresses = NodeAddresses()

    def view(self) -> NodeView:
        """Return the object as a value."""
        return NodeView(NodeName(self.metadata.name), self.status.internal())


class _Target(msgspec.Struct):
    name: str
    apiVersion: str = "v1"  # noqa: N815  the API's name
    kind: str = "Node"


class BindingObject(msgspec.Struct, frozen=True):
    """`v1.Binding`, as it is written."""

    metadata: ObjectMeta
    target: _Target

    @classmethod
    def from_binding(cls, binding: PodBinding) -> BindingObject:
        """Make the object to post."""
        return cls(
            metadata=ObjectMeta(
                name=binding.name,
                namespace=binding.namespace,
                uid=binding.uid,
                resource_version=binding.version,
                annotations=dict(binding.annotations) or None,
            ),
            target=_Target(name=binding.node),
        )


class _Preconditions(msgspec.Struct, frozen=True):
    uid: str


class _DeleteOptions(msgspec.Struct, frozen=True):
    preconditions: _Preconditions


class EvictionObject(msgspec.Struct, NamespacedSubResource):
    """`policy/v1` Eviction; answered with a `Status`, as a Binding."""

    _api_info = ApiInfo(
        resource=ResourceDef("policy", "v1", "Eviction"),
        parent=_POD,
        plural="pods",
        verbs=["post"],
        action="eviction",
    )
    metadata: ObjectMeta | None = None
    deleteOptions: _DeleteOptions | None = None  # noqa: N815  the API's name
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None

    @classmethod
    def from_pod(cls, pod: Pod) -> EvictionObject:
        """Make the object to post."""
        return cls(
            metadata=ObjectMeta(name=pod.name, namespace=pod.namespace),
            deleteOptions=_DeleteOptions(_Preconditions(pod.uid)),
        )


class _Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    kind: str = ""
    apiVersion: str = ""  # noqa: N815  the API's name


class _Source(msgspec.Struct, frozen=True):
    component: str = ""
    host: str = ""


class EventObject(msgspec.Struct, NamespacedResource):
    """A `v1` Event object."""

    _api_info = ApiInfo(resource=ResourceDef("", "v1", "Event"), plural="events", verbs=["post", "patch"])
    metadata: ObjectMeta
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    involvedObject: _Reference = _Reference()  # noqa: N815  the API's name
    reason: str = ""
    message: str = ""
    source: _Source = _Source()
    firstTimestamp: str | None = None  # noqa: N815  the API's name
    lastTimestamp: str | None = None  # noqa: N815  the API's name
    count: int = 0
    type: str = ""
    reportingComponent: str = ""  # noqa: N815  the API's name
    reportingInstance: str = ""  # noqa: N815  the API's name

    @classmethod
    def from_event(cls, event: ObjectEvent) -> EventObject:
        """Make the object to post."""
        about = event.about
        return cls(
            metadata=ObjectMeta(name=event.name, namespace=about.namespace),
            involvedObject=_Reference(
                name=about.name,
                namespace="" if about.kind == "Node" else about.namespace,
                uid=about.uid,
                kind=about.kind,
                apiVersion="v1",
            ),
            reason=event.reason,
            message=visible(event.message),
            source=_Source(component=event.component, host=event.host),
            firstTimestamp=_time(event.first),
            lastTimestamp=_time(event.last),
            count=event.count,
            type="Warning" if event.warning else "Normal",
            reportingComponent=event.component,
            reportingInstance=event.host,
        )

    @staticmethod
    def repetition(event: ObjectEvent) -> dict[str, object]:
        """Return the merge patch that repeats an Event."""
        return {"message": visible(event.message), "count": event.count, "lastTimestamp": _time(event.last)}


def _time(moment: datetime) -> str:
    """`metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _LeaseSpec(LeaseSpec, frozen=True, kw_only=True):
    renew_time: str | None = None


class LeaseObject(msgspec.Struct, NamespacedResource):
    """A `coordination.k8s.io/v1` Lease object."""

    _api_info = ApiInfo(
        resource=ResourceDef("coordination.k8s.io", "v1", "Lease"),
        plural="leases",
        verbs=["get", "list", "watch", "post", "patch", "delete"],
    )
    metadata: ObjectMeta
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: _LeaseSpec = _LeaseSpec()

    @classmethod
    def from_view(cls, lease: LeaseView) -> LeaseObject:
        """Return the object to write, renewed now."""
        owner = OwnerReference.of_node(lease.owner_name or lease.name, lease.owner)
        return cls(
            metadata=WholeMeta(
                name=lease.name,
                namespace=lease.namespace,
                resource_version=lease.version,
                owner_references=(owner,) if lease.owner else None,
            ),
            spec=_LeaseSpec(
                holder_identity=lease.holder,
                lease_duration_seconds=lease.duration_s,
                renew_time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            ),
        )

    def view(self) -> LeaseView:
        """Return the object as a value."""
        meta, spec = self.metadata, self.spec
        return LeaseView(
            namespace=meta.namespace or "",
            name=meta.name,
            holder=spec.holder_identity or "",
            duration_s=spec.lease_duration_seconds or 0,
            version=meta.resource_version,
        )


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(msgspec.Struct, frozen=True):
    """A `metav1.LabelSelector`."""

    matchLabels: dict[str, str] | None = None  # noqa: N815  the API's name
    matchExpressions: list[_Expression] | None = None  # noqa: N815  the API's name

    @property
    def terms(self) -> int:
        """The number of labels, expressions and values that there are to be compared."""
        expressions = self.matchExpressions or ()
        values = sum(len(expression.values or ()) for expression in expressions)
        return len(self.matchLabels or ()) + len(expressions) + values


class _Spec(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _Something(msgspec.Struct, frozen=True):
    pass


class _Status(msgspec.Struct, frozen=True):
    disruptionsAllowed: int = 0  # noqa: N815  the API's name
    disruptedPods: dict[str, str | _Something | None] | None = None  # noqa: N815  the API's name


class BudgetObject(msgspec.Struct, NamespacedResourceG):
    """A PodDisruptionBudget object."""

    _api_info = ApiInfo(
        resource=ResourceDef("policy", "v1", "PodDisruptionBudget"),
        plural="poddisruptionbudgets",
        verbs=["list", "watch", "global_list", "global_watch"],
    )
    metadata: ObjectMeta
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def view(self) -> BudgetView:
        """Return the object as a value."""
        selector = self.spec.selector or LabelSelector()
        return BudgetView(
            namespace=self.metadata.namespace or "",
            name=self.metadata.name,
            selector=partial(_selects, selector if selector.terms <= _MAX_TERMS else LabelSelector()),
            allowed=self.status.disruptionsAllowed,
            disrupted=frozenset(self.status.disruptedPods or ()),
        )


def _selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    required, expressions = selector.matchLabels or {}, selector.matchExpressions or []
    if not required and not expressions:
        return False
    return required.items() <= labels.items() and all(
        _meets(labels, expression) for expression in expressions
    )


def _meets(labels: Mapping[str, str], expression: _Expression) -> bool:
    """Report whether labels meet an expression; an operator that Kubernetes does not know selects no pods."""
    operator, value = expression.operator, labels.get(expression.key)
    return operator in LABEL_OPERATORS and meets(value, operator, expression.values or ())
