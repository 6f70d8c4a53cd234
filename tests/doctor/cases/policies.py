"""Facts of `policies`: in order, and for each kind of finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.policies import PolicyFacts, check_policies

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


WANTED = frozenset({"k8s-rdma-annotation", "k8s-rdma-own-node"})


def policies(api: str, bound: frozenset[str] = frozenset()) -> list[Finding]:
    return list(check_policies(PolicyFacts(api=api, bound=bound, expected=WANTED)))


IN_ORDER = policies("v1.36.2", WANTED)

CASES = {
    "policies-missing": policies("v1.30.0", frozenset({"k8s-rdma-own-node"})),
    "policies-too-old": policies("v1.29.1"),
}
