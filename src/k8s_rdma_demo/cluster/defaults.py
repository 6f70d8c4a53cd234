"""Defaults that the API server fills in when it decodes an object; those of pods are in `pod_strategy`.

Source: `pkg/apis/rbac/v1/defaults.go`, `pkg/apis/scheduling/v1/defaults.go`,
`pkg/apis/apiextensions/v1/defaults.go` of apiextensions-apiserver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import spec_of
from k8s_rdma_demo.cluster.resource_claims import complete_claim_spec
from k8s_rdma_demo.cluster.workload_strategy import complete_deployment_spec, complete_replica_set_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma_demo.cluster.objects import JsonObject

_RBAC = "rbac.authorization.k8s.io"
_SUBJECT_GROUPS = {"ServiceAccount": "", "User": _RBAC, "Group": _RBAC}


def with_defaults(obj: JsonObject, kind: str) -> JsonObject:
    """Return an object of a built-in kind with defaults; ValueError for a malformed quantity of a claim."""
    match kind:
        case "RoleBinding" | "ClusterRoleBinding":
            return _role_binding(obj)
        case "PriorityClass":
            return {**obj, "preemptionPolicy": obj.get("preemptionPolicy") or "PreemptLowerPriority"}
    complete = _SPECS.get(kind)
    return {**obj, "spec": complete(spec_of(obj))} if complete else obj


def _role_binding(binding: JsonObject) -> JsonObject:
    complete = dict(binding)
    if role := binding.get("roleRef"):
        complete["roleRef"] = {**role, "apiGroup": role.get("apiGroup") or _RBAC}
    if subjects := binding.get("subjects"):
        complete["subjects"] = [_subject(subject) for subject in subjects]
    return complete


def _subject(subject: JsonObject) -> JsonObject:
    group = subject.get("apiGroup") or _SUBJECT_GROUPS.get(subject.get("kind", ""), "")
    return {**subject, "apiGroup": group} if group else subject


def _template_spec(template: JsonObject) -> JsonObject:
    return {**template, "spec": complete_claim_spec(spec_of(template))}


def _definition_spec(spec: JsonObject) -> JsonObject:
    names: JsonObject = spec.get("names") or {}
    kind = str(names.get("kind") or "")
    if not kind:
        return spec
    complete = {**names, "singular": names.get("singular") or kind.lower()}
    complete["listKind"] = names.get("listKind") or f"{kind}List"
    return {**spec, "names": complete, "conversion": spec.get("conversion") or {"strategy": "None"}}


_SPECS: Mapping[str, Callable[[JsonObject], JsonObject]] = {
    "CustomResourceDefinition": _definition_spec,
    "Deployment": complete_deployment_spec,
    "ReplicaSet": complete_replica_set_spec,
    "ResourceClaim": complete_claim_spec,
    "ResourceClaimTemplate": _template_spec,
}
"""The functions that fill in the specification of a kind."""
