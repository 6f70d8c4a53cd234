"""Workloads of manifests: each template whose pods ask for interfaces, and the number of its pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.manifests import annotations_of, documents, read_text
from k8s_rdma.config.pod_templates import PodTemplate, object_name, pod_templates
from k8s_rdma.config.workload_kinds import dotted
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.planned_cluster import PriorityClasses, Workload, request_of, tolerations_of
from k8s_rdma.planning.snapshot import NodeDemand, PreemptionPolicy, PriorityClass
from k8s_rdma.wire.annotation import ANNOTATION, requests_interfaces
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.annotation_values import require_schedulable
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.node_affinity import require_accepted
from k8s_rdma.wire.pod_spec import PodSpecDemand, SchedulingGroup, devices_of, gang_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class _PodSpec(PodSpecDemand, frozen=True, kw_only=True, rename="camel"):
    node_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    scheduling_group: SchedulingGroup | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ManifestWorkloads:
    """The workloads of a manifest; and what in it is not judged, a sentence each."""

    workloads: tuple[Workload, ...]
    warnings: tuple[str, ...] = ()


def load_workloads(manifest: Path | None, count: int | None, classes: PriorityClasses) -> ManifestWorkloads:
    """Read workloads as `read_workloads`, of a file or of standard input; none without a manifest."""
    return ManifestWorkloads(()) if manifest is None else read_workloads(read_text(manifest), count, classes)


def read_workloads(text: str, count: int | None = None, classes: PriorityClasses = None) -> ManifestWorkloads:
    """Read the workloads of a manifest, or of an annotation's list, that ask for interfaces.

    Pods that another object of the manifest has made count with it. count: of pods of each, instead of the
    manifest's.
    MalformedError names what cannot be read or counted, and says if nothing asks for interfaces.
    """
    if text.lstrip().startswith("["):
        pod = {"kind": "Pod", "metadata": {"name": "pod", "annotations": {ANNOTATION: text}}, "spec": {}}
        objects = [pod]
    else:
        objects = list(documents(text))
    workloads: list[Workload] = []
    warnings: list[str] = []
    parsed = [(document, pod_templates(document)) for document in objects]
    owners = {_uid(document) for document in objects} - {""}
    for document, found in parsed:
        warnings += found.warnings
        if _owner(document) in owners:
            continue
        several = len(found.templates) > 1
        for template in found.templates:
            unknown = unknown_keys(annotations_of(template.pod))
            warnings += (f"{object_name(document)}: {sentence}" for sentence in unknown)
            if requests_interfaces(annotations_of(template.pod)):
                part = template.part if several else ""
                workloads.append(_workload(document, template, part, count, classes))
            elif isinstance(spec := template.pod["spec"], dict) and spec.get("resourceClaims"):
                warnings.append(f"{object_name(document)}: pods that ask by ResourceClaims are not placed")
    if not workloads:
        unread = f"; {warnings[0]}" if warnings else ""
        raise MalformedError(
            f"no interfaces: nothing has an annotation {ANNOTATION} that asks for any{unread}"
        )
    return ManifestWorkloads(tuple(workloads), tuple(dict.fromkeys(warnings)))


def _uid(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("uid") or "")


def _owner(document: Mapping[str, Any]) -> str:
    """Return the UID of the object that has made an object; empty for none."""
    references = (document.get("metadata") or {}).get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("controller") is True:
            return str(reference.get("uid") or "")
    return ""


def _workload(
    document: Mapping[str, Any],
    template: PodTemplate,
    part: str,
    count: int | None,
    classes: PriorityClasses,
) -> Workload:
    kind, pod = document["kind"], template.pod
    if count is None and template.count is None:
        place = f": {dotted(template.path)}" if template.path else ""
        raise MalformedError(f"manifest: {object_name(document)}{place}: {template.why}; say it by --count")
    try:
        meta = msgspec.convert(document.get("metadata") or {}, _Metadata)
        labels = msgspec.convert(pod.get("metadata") or {}, _Metadata).labels or {}
        spec = msgspec.convert(_with_text(pod.get("spec") or {}), _PodSpec)
        demand = msgspec.convert(pod.get("spec") or {}, NodeDemand)
        nodes = demand.selection()
        require_accepted(nodes)
        devices = devices_of(spec)
        priority_class = _priority_class(spec.priority_class_name, classes)
        require_schedulable(spec.host_network, spec.node_name)
    except (ValueError, MalformedError) as error:
        raise MalformedError(f"manifest: {kind}: {error}") from error
    namespace = meta.namespace or "default"
    gang = gang_of(namespace, spec.scheduling_group, labels)
    name = meta.name or meta.generate_name.rstrip("-") or kind.lower()
    return Workload(
        name="/".join(filter(None, (namespace, name, part))),
        namespace=namespace,
        request=request_of(annotations_of(pod), devices),
        count=(template.count or 0) if count is None else count,
        priority=priority_class.value if spec.priority is None else spec.priority,
        preempts=(demand.preemption_policy or priority_class.preemption_policy) is PreemptionPolicy.LOWER,
        depends_on_neighbours=spec.depends_on_neighbours,
        gang=f"{gang.namespace}/{gang.name}" if gang else "",
        nodes=nodes,
        tolerations=tolerations_of(demand.lasting_tolerations()),
    )


def _priority_class(name: str | None, classes: PriorityClasses) -> PriorityClass:
    """The class of that name; without a name the cluster's default. ValueError for an unknown name."""
    if not name:
        defaults = (found for found in classes or () if found.global_default)
        return min(defaults, key=lambda found: found.value, default=PriorityClass(name="", value=0))
    if classes is None:
        msg = f"priorityClassName: {shown(name)}: the PriorityClasses of the cluster are not known"
        raise ValueError(msg)
    found = next((found for found in classes if found.name == name), None)
    if found is None:
        names = ", ".join(sorted(found.name for found in classes))
        msg = f"priorityClassName: {shown(name)}: the cluster's PriorityClasses are {names or 'none'}"
        raise ValueError(msg)
    return found


def _with_text(spec: Any) -> Any:
    """The specification with quantities as text, as the API server has them."""
    match spec:
        case dict():
            return {
                key: {name: str(amount) for name, amount in value.items()}
                if key in ("limits", "requests") and isinstance(value, dict)
                else _with_text(value)
                for key, value in spec.items()
            }
        case list():
            return [_with_text(value) for value in spec]
    return spec
