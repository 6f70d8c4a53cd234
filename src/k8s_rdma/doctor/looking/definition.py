"""The definition of RdmaNodes, as the API server has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.doctor.cluster.objects import CRD_NAME, CrdFacts
from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.wire.rdma_node import GROUP, KIND, VERSION, RdmaNodeStatus

if TYPE_CHECKING:
    from k8s_rdma.kube.documents import Documents

_OBJECT = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
_SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_OF = "x-kubernetes-group-version-kind"
_FORBIDDEN = 403


def crd_facts(api: Documents, *, needed: bool | None) -> CrdFacts:
    """Of the object itself; of the API server's schemas, which are open to everybody, where it is not."""
    wanted = frozenset(each.encode_name for each in msgspec.structs.fields(RdmaNodeStatus))
    try:
        found = api.get(_OBJECT)
    except ApiRefusedError as refused:
        if refused.status != _FORBIDDEN:
            raise
        found = _as_object(api.get(_SCHEMAS))
    return CrdFacts(found=found, wanted=wanted, needed=needed)


def _as_object(schemas: dict[str, Any] | None) -> dict[str, Any] | None:
    """As much of the definition as follows from the schemas of the version that it must serve."""
    for schema in ((schemas or {}).get("components") or {}).get("schemas", {}).values():
        if any(each.get("kind") == KIND for each in schema.get(_OF) or ()):
            version = {"name": VERSION, "served": True, "schema": {"openAPIV3Schema": schema}}
            return {"spec": {"versions": [version]}}
    return None
