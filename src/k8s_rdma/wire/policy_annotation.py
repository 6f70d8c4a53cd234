"""The pod annotation `k8s-rdma.io/policy`: how the pod's interfaces are to be spread over PFs."""

from __future__ import annotations

from k8s_rdma.core.request import PfPolicy
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import nearest, shown

POLICY_ANNOTATION = "k8s-rdma.io/policy"

_KNOWN = {policy.value: policy for policy in PfPolicy}


def read_policy(text: str | None) -> PfPolicy:
    """The policy; `ANY` for no text, or none but white space.

    MalformedError (`MALFORMED_ANNOTATION`) names the annotation, and the policies that there are.
    """
    found = (text or "").strip()
    if not found:
        return PfPolicy.ANY
    policy = _KNOWN.get(found)
    if policy is None:
        near = nearest(found, _KNOWN)
        hint = f"; did you mean {near}?" if near else ""
        msg = f"{POLICY_ANNOTATION}: {shown(found)} is no policy; known are {', '.join(_KNOWN)}{hint}"
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
    return policy
