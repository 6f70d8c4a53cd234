"""Facts of `nodes`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.nodes import PublishedNode, PublishedNodeFacts, check_nodes
from k8s_rdma.wire.node_lease import silence

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


NODE = PublishedNode(name="w1", ready="True")


def nodes(*published: PublishedNode, agents: frozenset[str] = frozenset()) -> list[Finding]:
    return list(
        check_nodes(PublishedNodeFacts(published=published, agents=agents, lease_namespace="k8s-rdma"))
    )


IN_ORDER = nodes(NODE, agents=frozenset({"w1"}))

CASES = {
    "nodes-by-http": list(
        check_nodes(
            PublishedNodeFacts(published=(), agents=frozenset(), lease_namespace="k8s-rdma", needed=False)
        )
    ),
    "nodes-every-device": list(
        check_nodes(
            PublishedNodeFacts(
                published=(NODE,),
                agents=frozenset({"w1"}),
                lease_namespace="k8s-rdma",
                mounts={"rdma-sriov/dev-infiniband-mount": ("w1", "w2", "w3")},
            )
        )
    ),
    "nodes-none": nodes(),
    "nodes-not-published": nodes(NODE, agents=frozenset({"w1", "w2"})),
    "nodes-no-lease": nodes(replace(NODE, has_lease=False, silence=silence(inf, 60.0, 0.0))),
    "nodes-stale": nodes(replace(NODE, silence=silence(61.0, 60.0, 0.0))),
    "nodes-clock-skew": nodes(replace(NODE, skew_s=-3600.0)),
    "nodes-not-ready": nodes(replace(NODE, ready="False", message="PF eth0 cannot be read")),
    "nodes-problem": nodes(replace(NODE, problems=("placementKeyFile /etc/k8s-rdma/key: is empty",))),
}
