"""Pods in Kubernetes objects: templates anywhere in an object, and annotations in places that make no pods.

Each annotation that asks for interfaces is of a template that is found here, or is refused by its place. So a
reader of manifests never judges a part of them as if it were all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from k8s_rdma.config.workload_kinds import Path, PodSource, dotted, sources_of, value_at
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation_values import ANNOTATION, ANNOTATION_ALIAS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ASKING = (ANNOTATION, ANNOTATION_ALIAS)
_ASKING_TEXT = re.compile(rf"(?:{'|'.join(map(re.escape, _ASKING))})[\"']?\s*:")
"""An annotation in a manifest that is a text within another object."""
_ABOUT_OBJECTS = ("admissionregistration.k8s.io", "apiextensions.k8s.io")
"""API groups whose objects describe annotations, and request no interfaces."""
_WRITTEN_BY_OTHERS = ("status", "managedFields", "kubectl.kubernetes.io/last-applied-configuration")
_OWN_ANNOTATIONS = ("metadata", "annotations")
_WRAPPERS = ("AppWrapper",)
"""Kinds that make each object within them once. Source: workload.codeflare.dev/v1beta2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """A template of pods in an object.

    path: of the template; if `is_whole` is False, of the part of the object that stands for one.
    pod: the pods' metadata and specification.
    part: distinguishes it from other templates of the object.
    count: of its pods at a time; None for the reason `why`.
    gang, gang_size: as of `PodSource`.
    """

    path: Path
    pod: dict[str, Any]
    part: str
    count: int | None
    why: str
    is_whole: bool
    gang: str | None = None
    gang_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplates:
    """The templates in an object, and a sentence for each annotation without effect."""

    templates: tuple[PodTemplate, ...]
    warnings: tuple[str, ...]


def pod_templates(document: dict[str, Any]) -> PodTemplates:
    """Find the templates in an object, which may be a pod itself.

    MalformedError names a field that has another type than Kubernetes', and an annotation that asks for
    interfaces in a place that no known pods come from.
    """
    _require_type(document, (), _Object, document)
    sources = list(_sources(document, ()))
    found = tuple(template for source in sources if (template := _template(document, source)))
    warnings = () if _group(document) in _ABOUT_OBJECTS else _unread(document, sources, found)
    return PodTemplates(templates=found, warnings=tuple(warnings))


def object_name(document: Mapping[str, Any]) -> str:
    """Return an object's kind and name, as messages have it."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-")
    return f"{document['kind']} {name}" if name else str(document["kind"])


def _sources(document: dict[str, Any], root: Path) -> Iterator[PodSource]:
    """Yield the places of pods in an object at a path: by its kind, and others that look like a template."""
    sources = [_moved(source, root) for source in sources_of(document)]
    yield from sources
    places = [source.path for source in sources]
    kind = document["kind"]
    for path, found in _mappings(document, root):
        if any(_is_in(path, place) for place in places):
            continue
        if path != root and isinstance(found.get("kind"), str) and isinstance(found.get("apiVersion"), str):
            places.append(path)
            part = (
                found.get("metadata", {}).get("name", "") if isinstance(found.get("metadata"), dict) else ""
            )
            for source in _sources(found, path):
                named = replace(source, part="/".join(filter(None, (part, source.part))))
                yield named if kind in _WRAPPERS else _uncounted(named, kind)
        elif path != root and _is_template(path, found):
            places.append(path)
            yield _uncounted(PodSource(path=path, count=None, part=dotted(path[len(root) :])), kind)


def _moved(source: PodSource, root: Path) -> PodSource:
    annotations = tuple((*root, *path) for path in source.annotations)
    return replace(source, path=(*root, *source.path), annotations=annotations)


def _uncounted(source: PodSource, kind: str) -> PodSource:
    return replace(source, count=None, why=f"the number of pods that a {kind} makes of it is not known here")


def _is_template(path: Path, found: Mapping[str, Any]) -> bool:
    """Report whether an object at a path is a template of pods, and not of objects with such templates."""
    if _has_containers(found):
        return True
    spec = found.get("spec")
    return (
        path == ("spec", "template")
        and isinstance(spec, dict)
        and not any(_has_containers(part) for _, part in _mappings(spec, ()))
    )


def _has_containers(found: Mapping[str, Any]) -> bool:
    spec = found.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def _is_in(path: Path, place: Path) -> bool:
    return path[: len(place)] == place


def _mappings(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the objects in a value that its author wrote, outer ones first."""
    if isinstance(value, dict):
        yield path, value
        for key, entry in value.items():
            if key not in _WRITTEN_BY_OTHERS:
                yield from _mappings(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _mappings(entry, (*path, index))


def _template(document: dict[str, Any], source: PodSource) -> PodTemplate | None:
    """Return the template at a place, if there is one."""
    pod = value_at(document, source.path) if source.pod is None else source.pod
    if not isinstance(pod, dict) or pod.get("spec") is None:
        return None
    _require_type(pod, source.path, _Pod, document)
    return PodTemplate(
        path=source.path,
        pod=pod,
        part=source.part,
        count=source.count,
        why=source.why,
        is_whole=source.pod is None,
        gang=source.gang,
        gang_size=source.gang_size,
    )


# Annotations that no template has


def _unread(
    document: dict[str, Any], sources: Sequence[PodSource], templates: Sequence[PodTemplate]
) -> Iterator[str]:
    """Yield a sentence for each annotation without effect. MalformedError names one that may mean pods."""
    read = {
        path for source in sources for path in (source.annotations or ((*source.path, *_OWN_ANNOTATIONS),))
    }
    specs = [(*source.path, "spec") for source in sources if source.pod is None]
    for path, found in _mappings(document, ()):
        if path in read or any(_is_in(path, spec) for spec in specs):
            continue
        for key, value in found.items():
            if key in _ASKING and path == _OWN_ANNOTATIONS:
                yield _on_the_object(document, key, templates)
            elif key in _ASKING:
                _refuse(document, path, f"{key} asks for interfaces, and no pods are known to come from here")
            elif isinstance(value, str) and key not in _WRITTEN_BY_OTHERS and _ASKING_TEXT.search(value):
                _refuse(
                    document,
                    (*path, key),
                    "is a text that asks for interfaces; put the manifest in it into a file of its own",
                )


def _on_the_object(document: dict[str, Any], key: str, templates: Sequence[PodTemplate]) -> str:
    """Describe an annotation on the object itself. MalformedError if its template's pods may be meant."""
    is_requested = any(
        key in ((template.pod.get("metadata") or {}).get("annotations") or {}) for template in templates
    )
    if templates and not is_requested:
        places = " or ".join(f"{dotted(template.path)}.metadata.annotations" for template in templates[:3])
        _refuse(document, _OWN_ANNOTATIONS, f"{key} is on the {document['kind']}; its pods have {places}")
    group = _group(document)
    if not templates and "." in group and not group.endswith(".k8s.io"):
        _refuse(
            document, _OWN_ANNOTATIONS, f"{key} asks for interfaces, and the pods of its kind are unknown"
        )
    return f"{object_name(document)}: metadata.annotations: {key} has no effect; it counts on pods alone"


def _refuse(document: Mapping[str, Any], path: Path, why: str) -> NoReturn:
    raise MalformedError(f"manifest: {object_name(document)}: {dotted(path)}: {why}")


def _group(document: Mapping[str, Any]) -> str:
    api = document.get("apiVersion")
    return api.rpartition("/")[0] if isinstance(api, str) else ""


# Types of fields


def _require_type(value: Any, path: Path, model: type, document: Mapping[str, Any]) -> None:
    try:
        msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        place = f"{dotted(path)}." if path else ""
        message = str(error).replace("`$.", f"`{place}")
        raise MalformedError(f"manifest: {document['kind']}: {message}") from error


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
