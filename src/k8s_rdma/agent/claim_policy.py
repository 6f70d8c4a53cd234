"""The judgement of a claim by the operator's policy, beside all else that its pod has.

A pod has its interfaces by annotation and by several claims, which kubelet prepares at the same time. So a
claim is judged on the worker's thread in the step that prepares it: if a limit admits only one of two claims,
the second one sees that the first is prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.agent.cni.grant import memlock_of_pod, read_grant
from k8s_rdma.core.claims import AllocatedClaim
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.request import Request
from k8s_rdma.wire.annotation import read_memlock
from k8s_rdma.wire.resource_claim import decode_prepare

if TYPE_CHECKING:
    from k8s_rdma.agent.cni.add import PodSources
    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.ledger import Ledger, Pod
    from k8s_rdma.wire.claims import Prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedClaim:
    """A claim before it is judged, with the annotations of its pod.

    annotated: the number of interfaces that these ask for.
    """

    claim: AllocatedClaim
    annotations: Mapping[str, str]
    annotated: int


class ClaimPolicy:
    """Judges claims by the policy of their namespace."""

    def __init__(self, node: Node, pods: PodSources) -> None:
        """Judge by the policy of these, and by the ledger of this node."""
        self._node = node
        self._pods = pods

    def read(self, question: Prepare) -> RequestedClaim:
        """Read a claim and its pod. MalformedError names the field of the claim, or of the annotation."""
        claim, annotations = decode_prepare(question, self._node.name)
        requested = read_grant(
            annotations,
            uid=claim.pod.uid,
            node=self._node.name,
            policy=self._pods.policy,
            must_be_placed=False,
        )
        return RequestedClaim(claim=claim, annotations=annotations, annotated=requested.annotated)

    def permit(self, requested: RequestedClaim) -> AllocatedClaim:
        """Return the claim on the PFs that its namespace may use; on the worker's thread.

        MalformedError (`NOT_ALLOWED`) names the key, the namespace and the policy.
        """
        claim, policies = requested.claim, self._pods.policy.policies()
        ledger = self._node.ledger.without_claim(claim.uid)
        by_other_claims = tuple(
            interface.placed.as_request() for interface in ledger.prepared_for(claim.pod.uid)
        )
        by_annotation = max(requested.annotated, _attached_by_annotation(ledger, claim.pod))
        number = len(claim.interfaces) + len(by_other_claims) + by_annotation
        policies.permit_number(claim.namespace, number)
        own = (entry.interface for entry in claim.interfaces)
        request = Request((*own, *by_other_claims), memlock=read_memlock(requested.annotations))
        permitted = policies.permit(claim.namespace, request).interfaces[: len(claim.interfaces)]
        policy = policies.policy_for(claim.namespace)
        memlock, required = memlock_of_pod(requested.annotations, policy, self._pods.policy.memlock)
        interfaces = tuple(
            replace(entry, interface=interface)
            for entry, interface in zip(claim.interfaces, permitted, strict=True)
        )
        return replace(claim, interfaces=interfaces, memlock=memlock, memlock_required=required)


def _attached_by_annotation(ledger: Ledger, pod: Pod) -> int:
    """The number of interfaces that the pod has by annotation: its owner may have shortened that since."""
    return sum(
        interface.pool != CLAIMS_POOL
        for receipt in ledger.of_pod(pod.uid)
        for interface in receipt.interfaces
    )
