"""Facts of `versions`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from doctor.cases.scheduler import DEFAULTS
from k8s_rdma.doctor.cluster.versions import NodeVersions, VersionFacts, check_versions

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


VERSIONS = VersionFacts(
    api="v1.36.2",
    nodes=(
        NodeVersions(node="w1", kubelet="v1.36.2", runtime="containerd://2.2.1"),
        NodeVersions(node="w2", kubelet="v1.33.9", runtime="cri-o://1.33.2"),
    ),
    ours=(("k8s-rdma/a", "0.1.0"), ("k8s-rdma/b", "v0.1.0"), ("this program", "0.1.0")),
)


def versions(**more: Any) -> list[Finding]:
    return list(check_versions(replace(VERSIONS, **more)))


def one_node(**more: Any) -> list[Finding]:
    return versions(nodes=(replace(VERSIONS.nodes[0], **more),))


IN_ORDER = versions()

CASES = {
    "versions-not-compared": versions(api=None),
    "versions-no-node": versions(nodes=(), node="w1"),
    "versions-too-old": versions(api="v1.27.16"),
    "versions-unsupported": versions(api="v1.30.14"),
    "versions-untried": versions(api="v1.41.0", nodes=()),
    "versions-kubelet-skew": one_node(kubelet="v1.32.1"),
    "versions-runtime": one_node(runtime="containerd://1.5.9"),
    "versions-no-annotations": one_node(runtime="cri-o://1.28.11"),
    "versions-touch-by-label": versions(api="v1.29.3", requeue_by=DEFAULTS.requeue_by),
    "versions-ours-differ": versions(ours=(("k8s-rdma/a", "0.1.0"), ("this program", "0.2.0"))),
}
