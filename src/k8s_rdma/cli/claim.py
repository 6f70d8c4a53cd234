"""`k8s-rdma claim`: ResourceClaimTemplates for the interfaces of an annotation, and pods that use them."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.cli.formats import CommandAnswer, Format, Output
from k8s_rdma.cli.yaml_output import write_yaml
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.config.manifests import annotations_of, documents, read_text
from k8s_rdma.config.pod_templates import PodTemplate, object_name, pod_templates
from k8s_rdma.config.workload_kinds import Path as FieldPath
from k8s_rdma.config.workload_kinds import dotted
from k8s_rdma.errors import MalformedError, visible
from k8s_rdma.wire.annotation import ANNOTATION, NCCL_ANNOTATION, POLICY_ANNOTATION, read_pod
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.annotation_values import require_schedulable
from k8s_rdma.wire.claim_template import ClaimTemplates, TemplateNames, claim_templates, with_claims

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_DEFAULT_NAME = "rdma"
_EXTENDERS_SCHEDULER = "rdma-scheduler"
"""The chart's name of the scheduler that asks the extender. Claims do not need it. All claims need the same
scheduler, because two give a PF's bandwidth away twice."""
_NO_NAME = re.compile(r"[^a-z0-9]+")
"""Characters that names of objects cannot have (RFC 1123)."""


def print_templates(
    annotation: str | None, manifest: Path | None, policy: str | None, names: TemplateNames, output: Output
) -> None:
    """Print the templates of an annotation, which is a text, or in a file or manifest; by default on stdin.

    MalformedError names the keys that a claim cannot have.
    """
    text = annotation if annotation is not None else read_text(manifest)
    if annotation is not None or text.lstrip().startswith("["):
        annotations = {ANNOTATION: text} | ({POLICY_ANNOTATION: policy} if policy else {})
        found = _converted(annotations, replace(names, name=names.name or _DEFAULT_NAME))
        templates = [template.document for template in found.templates]
    else:
        templates = [
            template.document
            for document in documents(text)
            for _, found in _converted_pods(document, policy, names)
            for template in found.templates
        ]
    _print(_distinct(templates), output)


def print_manifests(manifest: Path | None, policy: str | None, names: TemplateNames, output: Output) -> None:
    """Print templates, and manifests whose pods use them; objects without a request stay as they are."""
    templates: list[dict[str, Any]] = []
    manifests = []
    for document in documents(read_text(manifest)):
        changed = document
        for pod, found in _converted_pods(document, policy, names):
            templates += [template.document for template in found.templates]
            changed = _with_claims(changed, pod, found)
        manifests.append(changed)
    _print([*_distinct(templates), *manifests], output)


def _converted_pods(
    document: dict[str, Any], policy: str | None, names: TemplateNames
) -> Iterator[tuple[PodTemplate, ClaimTemplates]]:
    """Yield the templates in an object whose pods ask for interfaces, with those of their claims."""
    found = pod_templates(document)
    for warning in found.warnings:
        _warn(warning)
    several = len(found.templates) > 1
    for pod in found.templates:
        for sentence in unknown_keys(annotations_of(pod.pod)):
            _warn(f"{object_name(document)}: {sentence}")
        chosen = _named(document, names, pod.part if several else "")
        converted = _converted(_annotations(pod.pod, policy), chosen)
        if converted.templates:
            spec = pod.pod["spec"]
            require_schedulable(spec.get("hostNetwork"), spec.get("nodeName"))
            yield pod, converted


def _with_claims(document: dict[str, Any], pod: PodTemplate, found: ClaimTemplates) -> dict[str, Any]:
    if not pod.is_whole:
        raise MalformedError(
            f"manifest: {object_name(document)}: {dotted(pod.path)}: is no pod template that claims could be "
            "added to; leave --pod out, and add them as its operator takes them"
        )
    changed = with_claims(pod.pod, found.templates, SLOT_RESOURCE)
    scheduler = changed["spec"].get("schedulerName")
    if scheduler == _EXTENDERS_SCHEDULER:
        del changed["spec"]["schedulerName"]
    elif scheduler not in (None, "default-scheduler"):
        _warn(f"schedulerName {scheduler}: all pods with claims of the same PFs need the same scheduler")
    if NCCL_ANNOTATION in ((pod.pod.get("metadata") or {}).get("annotations") or {}):
        _warn(f"{NCCL_ANNOTATION} is not read of pods with claims; set NCCL_NET=IB in the container's env")
    replaced: dict[str, Any] = _replaced(document, pod.path, changed)
    return replaced


def _replaced(value: Any, path: FieldPath, pod: dict[str, Any]) -> Any:
    if not path:
        return pod
    entry = _replaced(value[path[0]], path[1:], pod)
    if isinstance(value, list):
        return [entry if index == path[0] else element for index, element in enumerate(value)]
    return {**value, path[0]: entry}


def _converted(annotations: Mapping[str, str], names: TemplateNames) -> ClaimTemplates:
    found = claim_templates(read_pod(annotations, strict=True).request, names)
    for warning in found.warnings:
        _warn(warning)
    return found


def _annotations(pod: Mapping[str, Any], policy: str | None) -> dict[str, str]:
    return annotations_of(pod) | ({POLICY_ANNOTATION: policy} if policy else {})


def _named(document: Mapping[str, Any], names: TemplateNames, part: str) -> TemplateNames:
    """Name templates after their object if no name is chosen. part: of the object, if it has several."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    of_part = _NO_NAME.sub("-", part.lower()).strip("-")
    chosen = [names.name, of_part] if names.name else [name, of_part, _DEFAULT_NAME]
    namespace = names.namespace or metadata.get("namespace", "")
    return replace(names, name="-".join(filter(None, chosen)), namespace=namespace)


def _distinct(templates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each template once. MalformedError without templates, or if two would have one name."""
    if not templates:
        raise MalformedError(f"no interfaces: nothing has an annotation {ANNOTATION} that asks for any")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for template in templates:
        metadata = template["metadata"]
        if found.setdefault((metadata.get("namespace", ""), metadata["name"]), template) != template:
            raise MalformedError(
                f"two different templates would be named {metadata['name']}: rename an object, or convert "
                "them one by one with --name"
            )
    return list(found.values())


def _print(documents: Sequence[Mapping[str, Any]], output: Output) -> None:
    """Print manifests as YAML documents; in JSON, several are one List, as with kubectl."""
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    whole = documents[0] if len(documents) == 1 else listed
    if output.format in (None, Format.WIDE, Format.YAML):
        write_yaml(documents, allow_unicode=True)
        return
    output.write(
        CommandAnswer(
            document=lambda: json.dumps(whole, indent=2).encode() + b"\n",
            names=map(_resource_name, documents),
            show=lambda _: None,
        )
    )


def _resource_name(document: Mapping[str, Any]) -> str:
    """Name an object as kubectl does: `deployment.apps/train`."""
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    kind = ".".join(filter(None, (str(document.get("kind", "")).lower(), group)))
    return f"{kind}/{(document.get('metadata') or {}).get('name', '')}"


def _warn(sentence: str) -> None:
    sys.stderr.write(f"k8s-rdma: warning: {visible(sentence)}\n")
