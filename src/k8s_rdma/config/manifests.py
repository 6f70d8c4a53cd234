"""Manifests of Kubernetes objects: YAML as the API server takes it, and the pods in objects."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.yaml import Bounded, yaml_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_TEMPLATE_PATHS: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""The place of the pod in an object; of other kinds it is `spec.template`."""


class ManifestLoader(Bounded, yaml.SafeLoader):
    """Reads what is text for Kubernetes as text: times, and numbers with colons as in `12:30`."""


ManifestLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[0-7]+|0x[0-9a-fA-F]+)$")
ManifestLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))


def read_text(manifest: Path | None) -> str:
    """Read a manifest, by default standard input; K8sRdmaError when that fails."""
    try:
        return sys.stdin.read() if manifest is None or str(manifest) == "-" else manifest.read_text()
    except OSError as error:
        raise K8sRdmaError(f"{manifest}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MalformedError(f"{manifest or 'standard input'}: not UTF-8") from error


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Read the objects in a manifest. MalformedError names the line of what is no YAML."""
    try:
        found = list(yaml.load_all(text, Loader=ManifestLoader))
    except yaml.YAMLError as error:
        raise MalformedError(f"manifest: {yaml_words(error)}") from error
    for document in filter(None, found):
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            msg = "manifest: wanted Kubernetes objects, or an annotation's list that begins with ["
            raise MalformedError(msg)
        yield document


def template_path(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that lead to the pod in an object."""
    return _TEMPLATE_PATHS.get(document["kind"], ("spec", "template"))


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """Find the pod, or the pod in the template, of an object; None for one that makes no pods.

    MalformedError names a field of it that has another type than Kubernetes'.
    """
    found: Any = document
    path = template_path(document)
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict) or found.get("spec") is None:
        return None
    for kind, part, place in ((_Object, document, ""), (_Pod, found, "".join(f"{key}." for key in path))):
        try:
            msgspec.convert(part, kind)
        except msgspec.ValidationError as error:
            message = str(error).replace("`$.", f"`{place}")
            raise MalformedError(f"manifest: {document['kind']}: {message}") from error
    return found


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    annotations: dict[str, Any] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata | None = None


class _Resources(msgspec.Struct):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    claims: list[Any] | None = None


class _Container(msgspec.Struct):
    name: str | None = None
    resources: _Resources | None = None


class _Claim(msgspec.Struct):
    name: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_Claim] | None = None


class _Pod(_Object):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


def annotations_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a pod; MalformedError names one that is no text."""
    found = dict((pod.get("metadata") or {}).get("annotations") or {})
    for key, value in found.items():
        if not isinstance(value, str):
            raise MalformedError(f"metadata.annotations: {key} is no text; put it in quotes")
    return found
