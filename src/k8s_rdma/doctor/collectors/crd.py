"""Facts of the definition of RdmaNode."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.doctor.cluster.crd import CRD_NAME, CrdFacts
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.wire.rdma_node import GROUP, KIND, VERSION, RdmaNodeStatus

if TYPE_CHECKING:
    from k8s_rdma.kube.documents import Documents

_OBJECT = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
_SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"


def crd_facts(api: Documents, *, needed: bool | None) -> CrdFacts:
    """Read the CRD object; without access to it, the API server's schemas, which everyone may read."""
    expected = frozenset(field.encode_name for field in msgspec.structs.fields(RdmaNodeStatus))
    try:
        found = api.get(_OBJECT)
    except ApiRefusedError as refused:
        if refused.status != HTTPStatus.FORBIDDEN:
            raise
        found = _as_object(api.get(_SCHEMAS))
    return CrdFacts(found=found, expected=expected, needed=needed)


def _as_object(schemas: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of the definition that the schemas of the served version show."""
    for schema in ((schemas or {}).get("components") or {}).get("schemas", {}).values():
        if any(entry.get("kind") == KIND for entry in schema.get(_GROUP_VERSION_KIND) or ()):
            version = {"name": VERSION, "served": True, "schema": {"openAPIV3Schema": schema}}
            return {"spec": {"versions": [version]}}
    return None
