"""Manifests of Kubernetes objects: YAML as the API server takes it."""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.bounded_files import read_named_text, read_stream_text
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.yaml import Bounded, yaml_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_MAX_BYTES = 256 << 20
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[0-7]+|0x[0-9a-fA-F]+)$")


class ManifestLoader(Bounded, yaml.SafeLoader):
    """Reads texts of Kubernetes as text: times, and numbers with colons as in `12:30`."""


ManifestLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
ManifestLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))


def read_text(manifest: Path | None) -> str:
    """Read a manifest, by default standard input; K8sRdmaError when that fails."""
    is_input = manifest is None or str(manifest) == "-"
    origin = "standard input" if is_input else str(manifest)
    try:
        if manifest is None or is_input:
            return read_stream_text(sys.stdin.buffer, origin, _MAX_BYTES)
        return read_named_text(manifest, _MAX_BYTES)
    except OSError as error:
        refused = MalformedError if error.errno == errno.EILSEQ else K8sRdmaError
        raise refused(f"{origin}: {error.strerror}") from error


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Read the objects in a manifest, and those in a List. MalformedError names the line of a fault."""
    try:
        found = list(yaml.load_all(text, Loader=ManifestLoader))
    except yaml.YAMLError as error:
        raise MalformedError(f"manifest: {yaml_words(error)}") from error
    for document in filter(None, found):
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            msg = "manifest: wanted Kubernetes objects, or an annotation's list that begins with ["
            raise MalformedError(msg)
        yield from _unpacked(document, document["kind"])


def _unpacked(document: dict[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """Yield an object, or those in a List; place: of it, for messages.

    In a List of one kind, such as PodList, items need not name it.
    """
    kind, items = document["kind"], document.get("items")
    if not kind.endswith("List") or "spec" in document:
        yield document
        return
    if not isinstance(items, list):
        raise MalformedError(f"manifest: {place}.items: wanted a list of objects")
    shared = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
    for index, item in enumerate(items):
        entry = {**(shared if shared["kind"] else {}), **item} if isinstance(item, dict) else {}
        if not isinstance(entry.get("kind"), str):
            raise MalformedError(f"manifest: {place}.items[{index}]: wanted a Kubernetes object")
        yield from _unpacked(entry, f"{place}.items[{index}]")


def annotations_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of a pod; MalformedError names one that is no text."""
    found = dict((pod.get("metadata") or {}).get("annotations") or {})
    for key, value in found.items():
        if not isinstance(value, str):
            raise MalformedError(f"metadata.annotations: {key} is no text; put it in quotes")
    return found
