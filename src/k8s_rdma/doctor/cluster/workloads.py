"""Workloads whose annotation requests interfaces that their pods do not get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

WORKLOADS = Subject(
    "workloads",
    "Workloads",
    "Deployments, StatefulSets, DaemonSets, Jobs and CronJobs that have the annotation of their pods "
    "themselves: the first 20.",
)
WORKLOADS_OK = WORKLOADS.ok()
ANNOTATED = WORKLOADS.warning("annotated")

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedWorkload:
    """A workload with an annotation that its pod template lacks.

    kind: as in its manifest.
    name: with its namespace.
    template: the path of its pod template.
    """

    kind: str
    name: str
    annotation: str
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """All workloads with an annotation that their pod templates lack."""

    annotated: tuple[AnnotatedWorkload, ...]


@WORKLOADS.check(WorkloadFacts)
def check_workloads(facts: WorkloadFacts) -> Iterator[Finding]:
    """Check workloads whose request of interfaces has no effect; report the first of many."""
    found = facts.annotated
    for workload in found[:_SHOWN]:
        yield ANNOTATED(
            f"{workload.annotation} is of the {workload.kind} itself, so its pods request no interfaces",
            about=f"{workload.kind} {workload.name}",
            source="workloads, metadata.annotations",
            expected="the annotation in the pod template",
            fix=f"move it to {workload.template}.metadata.annotations",
        )
    if len(found) > _SHOWN:
        yield ANNOTATED(
            f"{len(found) - _SHOWN} more have the annotation themselves",
            source="workloads, metadata.annotations",
            expected="the annotation in the pod template",
            fix="move it to the pod template",
        )
    if not found:
        yield WORKLOADS_OK(
            "no workload has an annotation that belongs into its pod template",
            source="workloads, metadata.annotations",
        )
