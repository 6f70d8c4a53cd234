"""Manifests of Kubernetes objects: YAML as the API server takes it, and the pods in objects."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.files import yaml_words
from k8s_rdma.errors import K8sRdmaError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_TEMPLATE_PATHS: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""The place of the pod in an object; of other kinds it is `spec.template`."""


class ManifestLoader(yaml.SafeLoader):
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
    """The objects in a manifest. MalformedError tells the line of what is no YAML."""
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
    """The pod, or the pod in the template, of an object; None for one that makes no pods."""
    found: Any = document
    for key in template_path(document):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) and "spec" in found else None


def annotations_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a pod; MalformedError names one that is no text."""
    found = dict((pod.get("metadata") or {}).get("annotations") or {})
    for key, value in found.items():
        if not isinstance(value, str):
            raise MalformedError(f"metadata.annotations: {key} is no text; put it in quotes")
    return found
