"""Workloads of manifests: each template whose pods ask for interfaces, and the number of its pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.config.manifests import annotations_of, documents, read_text
from k8s_rdma.config.pod_templates import PodTemplate, object_name, pod_templates
from k8s_rdma.config.workload_kinds import dotted
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.planned_cluster import PriorityClasses, Workload, request_of, tolerations_of
from k8s_rdma.planning.snapshot import PriorityClass
from k8s_rdma.wire.annotation import ANNOTATION, requests_interfaces
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.annotation_values import require_schedulable
from k8s_rdma.wire.extended_resources import is_of_class, requested_resources
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.node_affinity import require_accepted
from k8s_rdma.wire.objects.meta import ObjectMeta, WholeMeta
from k8s_rdma.wire.objects.pod import PodSpec, PreemptionPolicy
from k8s_rdma.wire.pod_spec import devices_of, gang_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


_OWN = "k8s-rdma.io/"
"""The domain of extended resources that are VFs by a DeviceClass, or by a device plugin or Node of ours."""

_KUEUE_GROUP, _KUEUE_MAKES_GROUP = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/was-podgroup"
"""Kueue's label of a group of plain pods, and the annotation that has it make a PodGroup of that name."""


@dataclass(frozen=True, slots=True)
class ManifestWorkloads:
    """The workloads of a manifest; and its parts that are not judged, a sentence each."""

    workloads: tuple[Workload, ...]
    warnings: tuple[str, ...] = ()


def load_workloads(manifest: Path | None, count: int | None, classes: PriorityClasses) -> ManifestWorkloads:
    """Read workloads as `read_workloads`, of a file or of standard input; empty without a manifest."""
    return ManifestWorkloads(()) if manifest is None else read_workloads(read_text(manifest), count, classes)


def read_workloads(text: str, count: int | None = None, classes: PriorityClasses = None) -> ManifestWorkloads:
    """Read the workloads of a manifest, or of an annotation's list, that ask for interfaces.

    Pods that another object of the manifest has made count with it.
    MalformedError names the part that cannot be read or counted; it is raised also if no object asks for
    interfaces.

    count: of pods of each, instead of the manifest's.
    """
    if text.lstrip().startswith("["):
        pod = {"kind": "Pod", "metadata": {"name": "pod", "annotations": {ANNOTATION: text}}, "spec": {}}
        objects = [pod]
    else:
        objects = list(documents(text))
    workloads: list[Workload] = []
    warnings: list[str] = []
    parsed = [(document, pod_templates(document)) for document in objects]
    classes_of_devices = [document for document in objects if document["kind"] == "DeviceClass"]
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
            elif means := _claimed_by(template.pod, classes_of_devices):
                warnings.append(f"{object_name(document)}: pods that ask by {means} are not placed")
    if not workloads:
        unread = f"; {warnings[0]}" if warnings else ""
        raise MalformedError(
            f"no interfaces: nothing has an annotation {ANNOTATION} that asks for any{unread}"
        )
    return ManifestWorkloads(tuple(workloads), tuple(dict.fromkeys(warnings)))


def _claimed_by(pod: Mapping[str, Any], classes: Sequence[Mapping[str, Any]]) -> str:
    """Return the way in which a pod asks for devices that kube-scheduler alone allocates, if it does."""
    spec = pod["spec"]
    if not isinstance(spec, dict):
        return ""
    if spec.get("resourceClaims"):
        return "ResourceClaims"
    requested = requested_resources({"spec": _with_text(spec)}) - {SLOT_RESOURCE}
    resources = [name for name in sorted(requested) if name.startswith(_OWN) or is_of_class(name, classes)]
    return f"the extended resource {', '.join(resources)} alone" if resources else ""


def _uid(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("uid") or "")


def _owner(document: Mapping[str, Any]) -> str:
    """Return the UID of the object that has made an object; empty without one."""
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
        meta = msgspec.convert(document.get("metadata") or {}, WholeMeta)
        labels = msgspec.convert(pod.get("metadata") or {}, ObjectMeta).labels or {}
        spec = msgspec.convert(_with_text(pod.get("spec") or {}), PodSpec)
        nodes = spec.selection()
        require_accepted(nodes)
        devices = devices_of(spec)
        priority_class = _priority_class(spec.priority_class_name, classes)
        require_schedulable(spec.host_network, spec.node_name)
    except (ValueError, MalformedError) as error:
        raise MalformedError(f"manifest: {kind}: {error}") from error
    namespace = meta.namespace or "default"
    name = meta.name or meta.generate_name.rstrip("-") or kind.lower()
    named = _gang(namespace, spec, labels, annotations_of(pod))
    return Workload(
        name="/".join(filter(None, (namespace, name, part))),
        namespace=namespace,
        request=request_of(annotations_of(pod), devices),
        count=(template.count or 0) if count is None else count,
        priority=priority_class.value if spec.priority is None else spec.priority,
        preempts=(spec.preemption_policy or priority_class.preemption_policy) is PreemptionPolicy.LOWER,
        depends_on_neighbours=spec.depends_on_neighbours,
        gang=named or _gang_of_object(document, template),
        gang_size=0 if named else template.gang_size,
        nodes=nodes,
        tolerations=tolerations_of(spec.lasting_tolerations()),
    )


def _gang(namespace: str, spec: PodSpec, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the gang that the pods name, or that Kueue makes for them; empty without a gang."""
    gang = gang_of(namespace, spec.scheduling_group, labels)
    if gang is not None:
        return f"{gang.namespace}/{gang.name}"
    group = labels.get(_KUEUE_GROUP, "")
    return f"{namespace}/{group}" if group and annotations.get(_KUEUE_MAKES_GROUP) == "true" else ""


def _gang_of_object(document: Mapping[str, Any], template: PodTemplate) -> str:
    """Return the gang that the object's controller makes; no other gang has a name with a space."""
    if template.gang is None:
        return ""
    namespace = (document.get("metadata") or {}).get("namespace") or "default"
    return f"{namespace}/{object_name(document)} {template.gang}"


def _priority_class(name: str | None, classes: PriorityClasses) -> PriorityClass:
    """Return the class of that name; without a name the cluster's default. ValueError for an unknown name."""
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
    """Return the specification with quantities as text, as the API server has them."""
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
