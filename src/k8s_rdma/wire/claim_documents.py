"""The claims that a pod names, as documents: ResourceClaims, and templates if these are not generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from k8s_rdma.wire.cluster_claims import ClaimOfPod


class ClaimDocuments(NamedTuple):
    """Documents by the pod's own names of claims. missing: objects that do not exist; notes: on the way."""

    found: dict[str, Mapping[str, Any]]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def claim_documents(
    namespace: str,
    entries: Iterable[ClaimOfPod],
    *,
    claim_of: Callable[[str], Mapping[str, Any] | None],
    template_of: Callable[[str], Mapping[str, Any] | None],
) -> ClaimDocuments:
    """Find the documents of a pod's claims.

    claim_of, template_of: return a ResourceClaim, or the claim that a template makes, by its name in this
        namespace, if it exists.
    """
    found, missing, notes = {}, [], []
    for entry in entries:
        if entry.claim:
            kind, name, document = "resourceclaim", entry.claim, claim_of(entry.claim)
        elif entry.template:
            kind, name, document = "resourceclaimtemplate", entry.template, template_of(entry.template)
        else:
            notes.append(f"claim {entry.name} has no name yet")
            continue
        if document is None:
            missing.append(f"there is no {kind} {namespace}/{name}")
            continue
        found[entry.name] = document
        if not entry.claim:
            notes.append(
                f"claim {entry.name} is not generated yet of template {name} (kube-controller-manager)"
            )
    return ClaimDocuments(found, tuple(missing), tuple(notes))
