"""The definition of RdmaNode in the cluster (a CustomResourceDefinition)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

CRD = Subject("crd", "RdmaNode definition")
CRD_OK = CRD.ok()
CRD_MISSING = CRD.error("missing")
CRD_UNUSED = CRD.note("unused")
CRD_VERSION = CRD.error("version")
CRD_FIELDS = CRD.warning("fields")
CRD_NAME = f"{PLURAL}.{GROUP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdFacts:
    """The CustomResourceDefinition in the cluster.

    found: the object, if it exists.
    expected: the fields of status that agents write.
    needed: whether the extender reads RdmaNodes, or agents publish them, if that is known.
    """

    found: Mapping[str, Any] | None
    expected: frozenset[str]
    needed: bool | None


@CRD.check(CrdFacts)
def check_crd(facts: CrdFacts) -> Iterator[Finding]:
    """Check that the CRD accepts RdmaNodes as this version publishes them."""
    apply = "kubectl apply -f deploy/crds/rdmanodes.yaml"
    if facts.found is None:
        if facts.needed is False:
            yield CRD_UNUSED("not needed with source: http", about=CRD_NAME, source="API server")
        else:
            yield CRD_MISSING(
                "does not exist: no node can publish its state",
                about=CRD_NAME,
                source=f"customresourcedefinitions {CRD_NAME}",
                expected=f"{VERSION}, where agents publish or the extender has source: crd",
                fix=apply,
            )
        return
    versions = facts.found.get("spec", {}).get("versions", ())
    served = next(
        (version for version in versions if version.get("name") == VERSION and version.get("served")), None
    )
    if served is None:
        names = ", ".join(str(version.get("name")) for version in versions)
        yield CRD_VERSION(
            f"serves {names}", about=CRD_NAME, source="spec.versions", expected=f"{VERSION}", fix=apply
        )
        return
    schema = served.get("schema", {}).get("openAPIV3Schema", {}).get("properties", {})
    properties = schema.get("status", {}).get("properties", {})
    if missing := sorted(facts.expected - set(properties)):
        yield CRD_FIELDS(
            f"is older: drops {', '.join(missing)} from agents' reports",
            about=CRD_NAME,
            source="spec.versions[].schema",
            expected="the definition of this version",
            fix=apply,
        )
    else:
        yield CRD_OK(f"{VERSION} is served, with all fields", about=CRD_NAME, source="spec.versions")
