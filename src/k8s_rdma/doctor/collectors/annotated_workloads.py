"""Collects workloads that request interfaces by an annotation of their own instead of their pods'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.config.workload_kinds import value_at
from k8s_rdma.doctor.cluster.workloads import AnnotatedWorkload
from k8s_rdma.doctor.collectors.objects import full_name
from k8s_rdma.wire.annotation_values import ANNOTATION, ANNOTATION_ALIAS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.kube.documents import Documents

_KINDS = (
    ("/apis/apps/v1/deployments", "Deployment", "spec.template"),
    ("/apis/apps/v1/statefulsets", "StatefulSet", "spec.template"),
    ("/apis/apps/v1/daemonsets", "DaemonSet", "spec.template"),
    ("/apis/batch/v1/jobs", "Job", "spec.template"),
    ("/apis/batch/v1/cronjobs", "CronJob", "spec.jobTemplate.spec.template"),
)
"""Path, kind and place of the pod template; a ReplicaSet has only its Deployment's annotations."""


def annotated_workloads(api: Documents) -> Iterator[AnnotatedWorkload]:
    """Yield the workloads of Kubernetes' own kinds."""
    for path, kind, template in _KINDS:
        for workload in api.items(path):
            of_pods = _annotations(value_at(workload, tuple(template.split("."))) or {})
            for annotation in (ANNOTATION, ANNOTATION_ALIAS):
                if annotation in _annotations(workload) and annotation not in of_pods:
                    yield AnnotatedWorkload(
                        kind=kind, name=full_name(workload), annotation=annotation, template=template
                    )


def _annotations(document: dict[str, Any]) -> dict[str, str]:
    return (document.get("metadata") or {}).get("annotations") or {}
