"""The fields that a pod that requests interfaces needs in addition to its annotation.

`deploy/policies/inject.yaml` has the same rules in CEL; `tests/injection_cases.py` checks both with one
table.

The API server sends admission reviews to a mutating webhook. Source: k8s.io/api/admission/v1. Only the fields
of the pod on which injection depends are read.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import (
    ANNOTATION,
    ANNOTATION_ALIAS,
    CONTAINERS_ANNOTATION,
    DEFAULT_CONTAINER_ANNOTATION,
    NCCL_ANNOTATION,
)
from k8s_rdma.wire.annotation_values import require_own_network
from k8s_rdma.wire.json import Buffer, decode
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.objects.meta import WholeMeta
from k8s_rdma.wire.objects.pod import KubePod, WholePodSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.config.webhook import WebhookConfig
    from k8s_rdma.wire.objects.pod import Container


API_VERSION = "admission.k8s.io/v1"

_NO_INTERFACES = re.compile(r"[ \t\n\r]*(?:\[[ \t\n\r]*\][ \t\n\r]*)?")
_NCCL_VALUES = ("", "required")
_NCCL_NET = {"name": "NCCL_NET", "value": "IB"}
_MAX_CONTAINERS = 256
"""Containers of a pod with interfaces. Each may have three operations in the patch, at ten times its size."""
_DEFAULT_SCHEDULER = "default-scheduler"
"""The name that the API server writes if a pod names no scheduler."""


class CreatedPod(KubePod, frozen=True, kw_only=True):
    """A pod that is being created; it has no name yet if the API server is to generate one."""

    metadata: WholeMeta = WholeMeta()
    spec: WholePodSpec


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An `AdmissionRequest` of admission.k8s.io/v1."""

    uid: str
    namespace: str = ""
    object: CreatedPod


class Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An `AdmissionReview` with its request."""

    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: AdmissionRequest


class Operation(msgspec.Struct, frozen=True):
    """An operation `add` of a JSON patch (RFC 6902, section 4.1)."""

    path: str
    value: Any
    op: Literal["add"] = "add"


_reviews = msgspec.json.Decoder(Review)


def decode_review(body: Buffer) -> AdmissionRequest:
    """Return the request of a review; MalformedError names the field."""
    return decode(body, _reviews, "AdmissionReview").request


def encode_patch(uid: str, patch: list[Operation], warnings: Sequence[str] = ()) -> bytes:
    """Return the review that admits the object with a patch, with warnings for its author."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if warnings:
        response["warnings"] = list(warnings)
    if patch:
        text = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": text}
    return _encode(response)


def encode_refusal(uid: str, message: str) -> bytes:
    """Return the review that refuses the object, with status 422."""
    return _encode({"uid": uid, "allowed": False, "status": {"code": 422, "message": message}})


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def pointer(*parts: str | int) -> str:
    """Return a JSON pointer (RFC 6901, section 3)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The fields to add to pods that request interfaces.

    scheduler_name: for pods that name no scheduler; empty to leave them to the cluster's.
    slot: the resource by which a container gets device nodes; empty for no such resource.
    device_resources: all such resources.
    """

    scheduler_name: str
    slot: str
    device_resources: tuple[str, ...]

    @classmethod
    def configured(cls, config: WebhookConfig) -> Injection:
        """Read the fields to add from the webhook's configuration."""
        return cls(
            scheduler_name=config.scheduler_name or "",
            slot=config.slot or "",
            device_resources=config.device_resources,
        )

    def patch(self, pod: CreatedPod) -> list[Operation]:
        """Build a pod's patch; MalformedError (`MALFORMED_ANNOTATION`) names the annotation at fault."""
        annotations = pod.metadata.annotations or {}
        if not _requests_interfaces(annotations) or pod.spec.node_name:
            return []
        _require_few(pod.spec)
        require_own_network(pod.spec.host_network)
        patch = []
        if self.scheduler_name and (pod.spec.scheduler_name or _DEFAULT_SCHEDULER) == _DEFAULT_SCHEDULER:
            patch.append(Operation("/spec/schedulerName", self.scheduler_name))
        slots = self._slot_containers(pod)
        nccl = _requires_nccl(annotations)
        for path, container in _containers(pod):
            if container.name in slots:
                patch += _slot(path, container, self.slot)
            has_devices = container.name in slots or self._has_devices(container)
            if nccl and has_devices and not _is_init(path):
                patch += _nccl(path, container)
        return patch

    def _slot_containers(self, pod: CreatedPod) -> set[str]:
        named = _named(pod)
        if not self.slot:
            return set()
        with_devices = {container.name for _, container in _containers(pod) if self._has_devices(container)}
        if named is None:
            return set() if with_devices else _program(pod)
        return named - with_devices

    def _has_devices(self, container: Container) -> bool:
        """Report whether a container requests device nodes itself."""
        resources = container.resources
        if resources is None:
            return False
        requested = (resources.limits or {}).keys() | (resources.requests or {}).keys()
        return not requested.isdisjoint({self.slot, *self.device_resources})


def _require_few(spec: WholePodSpec) -> None:
    number = len(spec.containers or ()) + len(spec.init_containers or ())
    if number > _MAX_CONTAINERS:
        _refuse(
            f"spec.containers: {number} with the initContainers; "
            f"a pod with interfaces has at most {_MAX_CONTAINERS}"
        )


def _requests_interfaces(annotations: Mapping[str, str]) -> bool:
    """Report whether the pod asks for any; a malformed annotation does, because the extender refuses it."""
    return not _NO_INTERFACES.fullmatch(annotations.get(ANNOTATION, annotations.get(ANNOTATION_ALIAS, "")))


def _named(pod: CreatedPod) -> set[str] | None:
    """Return the containers that the annotation names, if it is there; MalformedError for another name."""
    text = (pod.metadata.annotations or {}).get(CONTAINERS_ANNOTATION)
    if text is None:
        return None
    named = {name.strip() for name in text.split(",")} if text.strip() else set()
    existing = _running(pod)
    for name in sorted(named.difference(existing)):
        _refuse(
            f"{CONTAINERS_ANNOTATION}: {shown(name)} is no container or sidecar of this pod; it has "
            f"{', '.join(existing)}"
        )
    return named


def _program(pod: CreatedPod) -> set[str]:
    """Return the container that the pod names for kubectl, without such a name the first."""
    running = _running(pod)
    name = (pod.metadata.annotations or {}).get(DEFAULT_CONTAINER_ANNOTATION)
    return {name} if name in running else set(running[:1])


def _running(pod: CreatedPod) -> list[str]:
    """Return the names of regular containers, then those of sidecars."""
    return [
        container.name
        for path, container in _containers(pod)
        if not _is_init(path) or container.restart_policy == "Always"
    ]


def _requires_nccl(annotations: Mapping[str, str]) -> bool:
    value = annotations.get(NCCL_ANNOTATION, "").strip()
    if value not in _NCCL_VALUES:
        _refuse(f"{NCCL_ANNOTATION}: {shown(value)} is no value; known is required")
    return bool(value)


def _refuse(msg: str) -> None:
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def _containers(pod: CreatedPod) -> Iterator[tuple[tuple[str | int, ...], Container]]:
    """Yield regular containers and init containers, with their paths in the pod."""
    for key, containers in (
        ("containers", pod.spec.containers),
        ("initContainers", pod.spec.init_containers),
    ):
        for index, container in enumerate(containers or ()):
            yield ("spec", key, index), container


def _is_init(path: tuple[str | int, ...]) -> bool:
    return path[1] == "initContainers"


def _slot(path: tuple[str | int, ...], container: Container, slot: str) -> Iterator[Operation]:
    """Add one slot to limits and requests, which are equal for an extended resource."""
    resources = container.resources
    if resources is None:
        yield Operation(pointer(*path, "resources"), {"limits": {slot: "1"}, "requests": {slot: "1"}})
        return
    for key, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts is None:
            yield Operation(pointer(*path, "resources", key), {slot: "1"})
        else:
            yield Operation(pointer(*path, "resources", key, slot), "1")


def _nccl(path: tuple[str | int, ...], container: Container) -> Iterator[Operation]:
    variables: list[Any] = list(container.env or ())
    if any(variable.name == _NCCL_NET["name"] for variable in variables):
        return
    if variables:
        yield Operation(pointer(*path, "env", "-"), _NCCL_NET)
    else:
        yield Operation(pointer(*path, "env"), [_NCCL_NET])
