"""Requests of pods, cached from filter to bind, as bind's body carries no annotations; and their promises."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from fractions import Fraction
from time import thread_time
from typing import TYPE_CHECKING, Protocol

import structlog

from k8s_rdma.core.ids import Gang, PodUid
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.core.request import Request
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import ANNOTATION, read_pod, request_texts
from k8s_rdma.wire.placement_annotation import annotation_bytes, require_room
from k8s_rdma.wire.pod_spec import requested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.extender import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """Who asks, with what priority (the higher may take from the lower), what for, and in which gang."""

    uid: PodUid
    namespace: str
    name: str
    priority: int
    request: Request
    gang: Gang | None = None

    @property
    def pod(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @classmethod
    def from_pod(cls, pod: Pod, request: Request) -> PendingPod:
        """The pod of a scheduler's question."""
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
        """The pod as the API server has it."""
        return cls(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            priority=pod.priority,
            request=request,
            gang=pod.gang,
        )


_log = structlog.get_logger()
_MAX_PODS = 10_000

MAX_CHARACTERS = 16 * 1024**2
"""Of all annotations that are remembered. What a request takes is ten times its text at worst, and pods'
owners decide how long that is; bind reads from the API server what was forgotten."""


class _Named(Protocol):
    """A pod, as a scheduler or the API server has it."""

    @property
    def uid(self) -> str:
        """Its UID."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace."""
        ...


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """A pod and its request; the annotations and policies that say it, and when it was last filtered."""

    pod: PendingPod
    texts: tuple[str | None, ...]
    policies: NamespacePolicies
    filtered_at: float

    @property
    def request(self) -> Request:
        """What the pod asks for."""
        return self.pod.request

    @property
    def characters(self) -> int:
        """How long the annotations are."""
        return sum(len(text or "") for text in self.texts)

    def matches(self, annotations: Mapping[str, str]) -> bool:
        """Whether this is what a pod with these annotations asks for."""
        return self.texts == request_texts(annotations)


class PodRequestCache:
    """Requests by pod; bounded, the pods filtered longest ago are forgotten.

    strict: whether an unknown key refuses an annotation, or is logged. vf_resource: the extended resource
    that VFs are counted by, None where they are not. policies: those of now, which say what is allowed.
    binds: whether a placement is written to pods. bill: told what reading a namespace's annotations took, s.
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
        self._pods: OrderedDict[PodUid, CachedRequest] = OrderedDict()
        self._characters = 0

    def read(self, pod: PodView) -> Request:
        """What a pod asks for; MalformedError names field and reason, `NOT_ALLOWED` where a policy refuses.

        It is read once while it stays the same: a long one takes 0.05 s, and comes with every try.
        """
        return self._read(pod, pod.annotations, lambda: pod.devices)

    def read_unbound(self, pod: PodView) -> Request:
        """As `read`, of a pod that is to be bound; MalformedError also when its placement has no room."""
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
        known, policies = self._pods.get(PodUid(pod.uid)), self.policies()
        if known is not None and known.policies is policies and known.matches(annotations):
            request = known.request
            # a UID may be said to be another pod's: namespace and devices are judged as they are said now
            if not request or (pod.namespace == known.pod.namespace and request.devices == devices()):
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
        return policies.permit(pod.namespace, replace(found.request, devices=devices()))

    def parse(self, pod: Pod) -> PendingPod:
        """The pod of a scheduler's question; MalformedError as `read`, and when its numbers contradict."""
        request = self._read(pod.metadata, pod.annotations, lambda: _devices(pod))
        self._require_room(annotation_bytes(pod.annotations), request)
        if self._vf_resource is not None:
            _check_count(request, _counted(pod, self._vf_resource), self._vf_resource)
        return PendingPod.from_pod(pod, request)

    def parse_view(self, view: PodView) -> Request:
        """As `ask`, of a pod as the API server has it.

        Its numbers are compared unless it may take of its node what nobody here adds up (`PodView.demand`).
        """
        request = self.read_unbound(view) if view.node is None else self.read(view)
        if self._vf_resource is not None and view.demand is not None:
            counted = dict(view.demand).get(self._vf_resource, Fraction(0))
            _check_count(request, counted, self._vf_resource)
        return request

    def put(self, pod: Pod, now: float) -> PendingPod:
        """As `ask`, and kept for bind; nothing is kept of a pod whose annotation is malformed now."""
        uid = PodUid(pod.metadata.uid)
        try:
            asked = self.parse(pod)
        finally:
            self.on_delete(uid)
        remembered = CachedRequest(asked, request_texts(pod.annotations), self.policies(), now)
        self._pods[uid] = remembered
        self._characters += remembered.characters
        while len(self._pods) > _MAX_PODS or self._characters > MAX_CHARACTERS:
            self.on_delete(next(iter(self._pods)))
        return asked

    def get(self, uid: PodUid) -> CachedRequest | None:
        """What the pod asked for when it was filtered."""
        return self._pods.get(uid)

    def invalidate_if_changed(self, uid: PodUid, annotations: Mapping[str, str]) -> None:
        """Forget what was remembered if the pod does not say so now: its owner may have edited it."""
        known = self._pods.get(uid)
        if known is not None and not known.matches(annotations):
            self.on_delete(uid)

    def on_delete(self, uid: PodUid) -> None:
        """The pod is gone."""
        known = self._pods.pop(uid, None)
        if known is not None:
            self._characters -= known.characters


def _counted(pod: Pod, resource: str) -> Fraction:
    """How many VFs the scheduler counts for a pod; MalformedError when its resources cannot be read."""
    try:
        return requested(pod.spec, resource)
    except ValueError as error:
        msg = f"resources.requests of a container: {error}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION) from error


def _devices(pod: Pod) -> tuple[tuple[str, int], ...]:
    """What the pod's containers are given; MalformedError when their limits cannot be read."""
    try:
        return pod.devices
    except ValueError as error:
        msg = f"resources.limits of a container: {error}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION) from error


def _check_count(request: Request, counted: Fraction, resource: str) -> None:
    """Refuse a pod that the scheduler would count as another number of VFs than it is given.

    One that asks for interfaces and not for the resource is let through: it is only not counted.
    """
    interfaces = len(request.interfaces)
    if counted and counted != interfaces:
        msg = (
            f"{ANNOTATION}: asks for {interfaces} interfaces, but the pod's containers request {counted} of "
            f"{resource}; the two numbers must be equal"
        )
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
