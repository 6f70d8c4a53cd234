"""The cluster that a capacity question is about."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.config.addresses import NAMESPACE
from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection

FROM_CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatifSource:
    """The source of a cluster: `cluster`, or the file of a snapshot.

    namespace: the chart's.
    extender: the URL of the extender that reports which nodes it refuses; without it, Leases show that.
    """

    origin: str = FROM_CLUSTER
    kubeconfig: KubeconfigSelection = USUAL_KUBECONFIG
    namespace: str = NAMESPACE
    extender: str | None = None
