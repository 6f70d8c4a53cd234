"""Facts of `workloads`: in order, and for each kind of finding."""

from __future__ import annotations

from k8s_rdma.doctor.cluster.workloads import AnnotatedWorkload, WorkloadFacts, check_workloads

IN_ORDER = list(check_workloads(WorkloadFacts(annotated=())))

CASES = {
    "workloads-annotated": list(
        check_workloads(
            WorkloadFacts(
                annotated=(
                    AnnotatedWorkload(
                        kind="Deployment",
                        name="default/trainer",
                        annotation="rdma_interfaces_required",
                        template="spec.template",
                    ),
                )
            )
        )
    ),
}
