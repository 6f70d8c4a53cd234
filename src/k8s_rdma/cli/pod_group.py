"""The PodGroup of a pod, for `explain`: whether it is scheduled, and why the extender cannot read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.cli.pod_constraints import UNCONSTRAINED, PodConstraints
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.errors import API_ERRORS, PodGroupVersionError
from k8s_rdma.kube.pod_groups import pod_group_path, served_versions
from k8s_rdma.wire.objects.pod import SchedulingGroup
from k8s_rdma.wire.pod_group import VERSIONS, convert_pod_group, first_readable
from k8s_rdma.wire.pod_spec import gang_of

if TYPE_CHECKING:
    from k8s_rdma.core.types import Gang
    from k8s_rdma.kube.documents import Documents


def read_group_constraints(api: Documents, pod: dict[str, Any]) -> PodConstraints:
    """Say why the PodGroup of a pod that waits for a node keeps it waiting. MalformedError."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    gang = gang_of(str(meta.get("namespace")), _group_of(spec), {})
    if gang is None or spec.get("nodeName"):
        return UNCONSTRAINED
    try:
        return _of_gang(api, gang)
    except API_ERRORS as error:
        return PodConstraints(notes=(f"its PodGroup {gang.name} is not known: {error.message}",))


def _of_gang(api: Documents, gang: Gang) -> PodConstraints:
    served = served_versions(api)
    version = first_readable(served)
    if not version:
        unreadable = PodGroupVersionError(served=served, readable=VERSIONS)
        return PodConstraints((f"its PodGroup {gang.name} cannot be read: {unreadable.message}",))
    document = api.get(f"/{pod_group_path(gang, version)}")
    if document is None:
        return PodConstraints((f"its PodGroup {gang.name} does not exist: kube-scheduler waits for it",))
    return _of_group(gang, document)


def _group_of(spec: dict[str, Any]) -> SchedulingGroup | None:
    try:
        return msgspec.convert(spec.get("schedulingGroup"), SchedulingGroup | None)
    except msgspec.ValidationError as error:
        raise MalformedError(f"pod: spec.schedulingGroup: {error}") from error


def _of_group(gang: Gang, document: dict[str, Any]) -> PodConstraints:
    try:
        group, schedule = convert_pod_group(document)
    except msgspec.ValidationError as error:
        raise MalformedError(f"PodGroup {gang}: {error}") from error
    if group.parent:
        of_tree = f"its PodGroup {gang.name} is part of the composite pod group {group.parent}: not supported"
        return PodConstraints((of_tree,))
    size = f", which binds {group.min_count} pods together," if group.min_count else ""
    if schedule is None:
        return PodConstraints(notes=(f"its PodGroup {gang.name}{size} was not tried by kube-scheduler yet",))
    if schedule.status:
        return PodConstraints(notes=(f"its PodGroup {gang.name}{size} was scheduled; this pod came later",))
    why = f"{schedule.reason}: {schedule.message}" if schedule.message else schedule.reason
    return PodConstraints(notes=(f"its PodGroup {gang.name}{size} is not scheduled: {why}",))
