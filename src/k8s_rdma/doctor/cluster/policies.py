"""Admission policies of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.versions import minor_of
from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

POLICIES = Subject(
    "policies",
    "Admission policies",
    "The [policies](policies.md) `annotation` and `own-node`; `extender` if the account "
    "`k8s-rdma-extender` exists; `scheduler-name` if only a second scheduler asks the extender; "
    "`claims`, `claim-caps`, `one-pod` and `slices` if nodes publish PFs for [claims](dra.md).",
)
POLICIES_OK = POLICIES.ok()
POLICY_MISSING = POLICIES.warning("missing")
POLICIES_TOO_OLD = POLICIES.note("too-old")
_POLICIES_SINCE = 30
_OURS = "k8s-rdma"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """Admission policies of the cluster.

    api: the API server's version.
    bound: policies that exist and are bound.
    expected: the policies in deploy/policies.
    """

    api: str
    bound: frozenset[str]
    expected: frozenset[str]


@POLICIES.check(PolicyFacts)
def check_policies(facts: PolicyFacts) -> Iterator[Finding]:
    """Check that the policies are bound; Kubernetes has ValidatingAdmissionPolicies from 1.30 on."""
    minor = minor_of(facts.api)
    if minor is not None and minor < _POLICIES_SINCE:
        yield POLICIES_TOO_OLD(
            f"{facts.api} has none: agents may write other nodes' objects, the extender any pod; "
            "malformed annotations fail only at scheduling",
            source="/version",
        )
        return
    for name in sorted(facts.expected - facts.bound):
        yield POLICY_MISSING(
            "missing or not bound",
            about=name,
            source="validatingadmissionpolicies, validatingadmissionpolicybindings",
            expected="the policy and its binding",
            fix=f"kubectl apply -f deploy/policies/{name.removeprefix(f'{_OURS}-')}.yaml, or "
            "the chart's policies.enabled: true",
        )
    if facts.expected <= facts.bound:
        yield POLICIES_OK(f"{len(facts.expected)} are bound", source="validatingadmissionpolicybindings")
