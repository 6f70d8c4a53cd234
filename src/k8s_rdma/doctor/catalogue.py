"""Every kind of finding that there is, for documents and tests."""

from __future__ import annotations

from k8s_rdma.doctor.cluster import components, nodes, objects, pods, scheduler, versions
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Kind, Subject
from k8s_rdma.doctor.node import cni, hardware, kernel, lossless, processes, rdma_namespaces, runtime

NODE = (hardware, kernel, rdma_namespaces, lossless, runtime, cni, processes)
CLUSTER = (components, versions, scheduler, objects, nodes, pods)

KINDS: tuple[Kind, ...] = (
    NOT_LOOKED_AT,
    *(kind for module in (*NODE, *CLUSTER) for kind in vars(module).values() if isinstance(kind, Kind)),
)

SUBJECTS: dict[str, str] = {
    subject.name: subject.title
    for module in (*NODE, *CLUSTER)
    for subject in vars(module).values()
    if isinstance(subject, Subject)
}
"""Titles by name."""
