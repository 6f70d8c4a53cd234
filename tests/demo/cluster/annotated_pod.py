"""A pod with the annotations of a request, and the directories of CNI plugins."""

from __future__ import annotations

import os

from k8s_rdma_demo.cluster.sandboxes import PodRef

ANNOTATIONS = {"kubernetes.io/config.source": "api", "rdma_interfaces_required": "[{}]"}
POD = PodRef(namespace="default", name="p1", uid="1-2-3", annotations=ANNOTATIONS)
CNI_PATH = (os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni").split(":")
