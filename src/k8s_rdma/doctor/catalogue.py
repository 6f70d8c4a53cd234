"""Every kind of finding that there is, for documents and tests."""

from __future__ import annotations

from k8s_rdma.doctor.cluster import components, keys, nodes, objects, pods, scheduler, versions
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Kind, Subject
from k8s_rdma.doctor.node import (
    cni,
    configuration,
    hardware,
    iommu,
    ledger,
    lossless,
    memlock,
    modules,
    processes,
    rdma_namespaces,
    runtime,
)

NODE = (
    configuration,
    hardware,
    modules,
    iommu,
    rdma_namespaces,
    lossless,
    memlock,
    runtime,
    cni,
    processes,
    ledger,
)
CLUSTER = (components, versions, scheduler, objects, nodes, keys, pods)

KINDS: tuple[Kind, ...] = (
    NOT_LOOKED_AT,
    *(each for module in (*NODE, *CLUSTER) for each in vars(module).values() if isinstance(each, Kind)),
)

SUBJECTS: dict[str, str] = {
    each.name: each.title
    for module in (*NODE, *CLUSTER)
    for each in vars(module).values()
    if isinstance(each, Subject)
}
"""Titles by name."""
