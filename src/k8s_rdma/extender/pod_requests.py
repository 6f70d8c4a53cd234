"""Requests of pods: read from their annotations, and cached from filter to bind.

The body of bind carries no annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from time import thread_time
from typing import TYPE_CHECKING, Protocol

import structlog

from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import Gang, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import (
    annotation_bytes,
    read_pod,
    request_name,
    request_texts,
    with_gpus,
)
from k8s_rdma.wire.annotation_values import require_own_network
from k8s_rdma.wire.annotations_size import require_room
from k8s_rdma.wire.pod_spec import requested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.extender import PodToSchedule

_log = structlog.get_logger()

MAX_CHARACTERS = 16 * 1024**2
"""The limit for the annotations of all cached requests."""

_MAX_PODS = 10_000
"""The limit for cached requests. At worst a request takes ten times the memory of its text, and pods' owners
decide its length. bind reads a forgotten request from the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """A pod that asks for interfaces, its priority (higher preempts lower), request and gang."""

    uid: PodUid
    namespace: str
    name: str
    priority: int
    request: Request
    gang: Gang | None = None

    @property
    def pod(self) -> str:
        """The pod as `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @classmethod
    def from_pod(cls, pod: PodToSchedule, request: Request) -> PendingPod:
        """Return the pod of a scheduler's question."""
        return cls(
            uid=PodUid(pod.metadata.uid),
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            priority=pod.priority,
            request=request,
            gang=pod.gang,
        )

    @classmethod
    def of_view(cls, pod: PodView, request: Request) -> PendingPod:
        """Return the pod as the API server has it."""
        return cls(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            priority=pod.priority,
            request=request,
            gang=pod.gang,
        )


class _Named(Protocol):
    """A pod, as a scheduler or the API server has it."""

    @property
    def uid(self) -> str:
        """The pod's UID."""
        ...

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        ...


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """A pod and its request, with the request's annotations and policies and the time of its last filter."""

    pod: PendingPod
    texts: tuple[str | None, ...]
    policies: NamespacePolicies
    filtered_at: float

    @property
    def request(self) -> Request:
        """The interfaces that the pod asks for."""
        return self.pod.request

    @property
    def characters(self) -> int:
        """The length of the annotations."""
        return sum(len(text or "") for text in self.texts)

    def matches(self, annotations: Mapping[str, str]) -> bool:
        """Report whether a pod with these annotations has this request."""
        return self.texts == request_texts(annotations)


class PodRequestCache:
    """Requests by pod; bounded.

    If the cache is full, it forgets pods of the namespace that takes most of it. The pods that were filtered
    longest ago go first.

    strict: whether an unknown key refuses an annotation; otherwise it is logged.
    vf_resource: the extended resource that VFs are counted by; None if they are not counted.
    policies: returns the current policies, which limit requests.
    binds: whether a placement is written to pods.
    bill: called with the time that reading a namespace's annotations took, s.
    processor: processor time of this thread, s.
    """

    def __init__(  # noqa: PLR0913  each is of its own
        self,
        *,
        strict: bool = True,
        vf_resource: str | None = None,
        policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES,
        binds: bool = True,
        bill: Callable[[str, float], None] = lambda _namespace, _used_s: None,
        processor: Callable[[], float] = thread_time,
    ) -> None:
        self._strict = strict
        self.policies = policies
        self._binds = binds
        self._bill = bill
        self._processor = processor
        self._vf_resource = vf_resource
        self._pods: PodTable[CachedRequest] = PodTable(
            PodLimits(pods=_MAX_PODS, weight=MAX_CHARACTERS),
            weigh=lambda cached: cached.characters,
            owner=lambda cached: cached.pod.namespace,
        )

    def read(self, pod: PodView) -> Request:
        """Read a pod's request; MalformedError names field and reason, `NOT_ALLOWED` if a policy refuses.

        An unchanged request is read only once, because a long one takes 0.05 s and comes with every attempt.
        """
        request = self._read(pod, pod.annotations, lambda: pod.devices)
        require_own_network(pod.host_network and bool(request))
        return request

    def read_unbound(self, pod: PodView) -> Request:
        """Read the request of a pod to be bound; MalformedError also if its placement has no room."""
        request = self.read(pod)
        self._require_room(pod.annotation_bytes, request)
        return request

    def _require_room(self, length: int, request: Request) -> None:
        if self._binds and request:
            require_room(length, request)

    def _read(
        self,
        pod: _Named,
        annotations: Mapping[str, str],
        devices: Callable[[], tuple[tuple[str, int], ...]],
    ) -> Request:
        cached, policies = self._pods.by_uid.get(PodUid(pod.uid)), self.policies()
        if cached is not None and cached.policies is policies and cached.matches(annotations):
            request = cached.request
            # A caller may give another pod's UID. So the namespace and devices of this call must match.
            if not request or (pod.namespace == cached.pod.namespace and request.devices == devices()):
                return request
        began_s = self._processor()
        try:
            found = read_pod(annotations, strict=self._strict)
        finally:
            self._bill(pod.namespace, self._processor() - began_s)
        if found.warnings:
            _log.warning("annotation_warnings", uid=pod.uid, warnings=found.warnings)
        if not found.request:
            return found.request
        request = with_gpus(replace(found.request, devices=devices()), request_name(annotations))
        return policies.permit(pod.namespace, request)

    def parse(self, pod: PodToSchedule) -> PendingPod:
        """Return the pod of a scheduler's question.

        MalformedError: as `read`, and if the pod's numbers of VFs contradict each other.
        """
        request = self._read(pod.metadata, pod.annotations, lambda: _devices(pod))
        require_own_network(pod.spec.host_network and bool(request))
        self._require_room(annotation_bytes(pod.annotations), request)
        if self._vf_resource is not None:
            _check_count(request, pod.annotations, _counted(pod, self._vf_resource), self._vf_resource)
        return PendingPod.from_pod(pod, request)

    def parse_view(self, view: PodView) -> Request:
        """Read the request of a pod as the API server has it; errors as `parse`.

        Its numbers of VFs are compared, unless the pod may take resources of its node that this process does
        not count (`PodView.demand`).
        """
        request = self.read_unbound(view) if view.node is None else self.read(view)
        if self._vf_resource is not None and view.demand is not None:
            counted = dict(view.demand).get(self._vf_resource, Fraction(0))
            _check_count(request, view.annotations, counted, self._vf_resource)
        return request

    def put(self, pod: PodToSchedule, now: float) -> PendingPod:
        """Read a pod's request as `parse`, and keep it for bind unless it is malformed."""
        uid = PodUid(pod.metadata.uid)
        try:
            pending = self.parse(pod)
        finally:
            self.on_delete(uid)
        self._pods.put(uid, CachedRequest(pending, request_texts(pod.annotations), self.policies(), now))
        self._pods.trim()
        return pending

    def get(self, uid: PodUid) -> CachedRequest | None:
        """Return the pod's request when it was last filtered."""
        return self._pods.by_uid.get(uid)

    def invalidate_if_changed(self, uid: PodUid, annotations: Mapping[str, str]) -> None:
        """Forget the cached request if the pod's annotations differ, because its owner may edit them."""
        cached = self._pods.by_uid.get(uid)
        if cached is not None and not cached.matches(annotations):
            self.on_delete(uid)

    def on_delete(self, uid: PodUid) -> None:
        """Forget the deleted pod."""
        self._pods.pop(uid)


def _counted(pod: PodToSchedule, resource: str) -> Fraction:
    """Read the number of VFs that the scheduler counts for a pod; MalformedError if this fails."""
    try:
        return requested(pod.spec, resource)
    except ValueError as error:
        msg = f"resources.requests of a container: {error}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION) from error


def _devices(pod: PodToSchedule) -> tuple[tuple[str, int], ...]:
    """Read the devices in the limits of the pod's containers; MalformedError if this fails."""
    try:
        return pod.devices
    except ValueError as error:
        msg = f"resources.limits of a container: {error}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION) from error


def _check_count(request: Request, annotations: Mapping[str, str], counted: Fraction, resource: str) -> None:
    """Refuse a pod if the scheduler would count another number of VFs for it than it is given.

    A pod that asks for interfaces and not for the resource is allowed. The scheduler only does not count it.
    """
    interfaces = len(request.interfaces)
    if counted and counted != interfaces:
        msg = (
            f"{request_name(annotations)}: asks for {interfaces} interfaces, but the pod's containers "
            f"request {counted} of {resource}; the two numbers must be equal"
        )
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
