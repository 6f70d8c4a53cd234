"""Admission reviews of pods (`admission.k8s.io/v1`), as the API server sends them to a mutating webhook.

Source: k8s.io/api/admission/v1. Of the pod only what injection depends on is read.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from k8s_rdma.wire.json import decode

API_VERSION = "admission.k8s.io/v1"


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a container."""

    name: str


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a container; quantities as written, which may be numbers."""

    limits: dict[str, str | float] | None = None
    requests: dict[str, str | float] | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container of a pod."""

    name: str
    restart_policy: str | None = None
    resources: Resources | None = None
    env: list[Variable] | None = None


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod's specification."""

    scheduler_name: str | None = None
    node_name: str | None = None
    host_network: bool | None = None
    containers: list[Container]
    init_containers: list[Container] | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod's metadata; the name is absent while the API server is to generate it."""

    name: str = ""
    generate_name: str = ""
    annotations: dict[str, str] | None = None


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is being created."""

    metadata: Metadata = Metadata()
    spec: PodSpec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`AdmissionRequest`."""

    uid: str
    namespace: str = ""
    object: Pod


class Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`AdmissionReview` with its request."""

    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: Request


class Operation(msgspec.Struct, frozen=True):
    """An operation `add` of a JSON patch (RFC 6902, section 4.1)."""

    path: str
    value: Any
    op: Literal["add"] = "add"


_reviews = msgspec.json.Decoder(Review)


def decode_review(body: bytes | bytearray) -> Request:
    """The request of a review; MalformedError names the field."""
    return decode(body, _reviews, "AdmissionReview").request


def encode_patch(uid: str, patch: list[Operation]) -> bytes:
    """The review that admits the object with a patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        text = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": text}
    return _encode(response)


def encode_refusal(uid: str, message: str) -> bytes:
    """The review that refuses the object, with status 422."""
    return _encode({"uid": uid, "allowed": False, "status": {"code": 422, "message": message}})


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901, section 3)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)
