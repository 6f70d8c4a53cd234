"""Promises of bound pods by their placement annotations, read alike by extender and agents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.namespace_policy import NamespacePolicies, satisfies
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import read_request, request_name, request_text
from k8s_rdma.wire.placement_annotation import (
    PLACEMENT_ANNOTATION,
    PlacementTerms,
    Promise,
    decode_own,
    decode_unverified,
)

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.placement_keys import PlacementKeys


_log = structlog.get_logger()


def promised_to(pod: PodView, keys: PlacementKeys | None, policies: NamespacePolicies) -> Promise | None:
    """Read a promise, if the pod has a valid one; an invalid one is logged."""
    try:
        return read_promise(pod, keys, policies)
    except MalformedError as error:
        _log.warning("placement_ignored", pod=f"{pod.namespace}/{pod.name}", error=error.message)
        return None


def read_promise(pod: PodView, keys: PlacementKeys | None, policies: NamespacePolicies) -> Promise | None:
    """Read the promise of a bound pod's placement annotation, if it has one and a network of its own.

    Without keys anyone may have written the annotation. So it counts only if it gives what the pod asks for,
    and at most what its namespace may have. Then it determines only the place. The request is read only then,
    because every change of a pod comes by here, and a long one takes 0.1 s.
    MalformedError if the annotation is invalid.
    """
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    if not text or pod.node is None or pod.host_network:
        return None
    promise = decode_own(text, uid=pod.uid, node=pod.node, keys=keys)
    if keys is not None:
        return promise
    placement = promise.placement
    _require_given(pod, placement)
    bounded = policies.policy_for(pod.namespace).bounded(placement.interfaces)
    return replace(promise, placement=replace(placement, interfaces=bounded))


def unverified_terms(pod: PodView) -> PlacementTerms | None:
    """Read the terms of a placement that may count before its verification; None if there are none."""
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    if not text or pod.node is None or pod.host_network:
        return None
    try:
        return decode_unverified(text, uid=pod.uid, node=pod.node)
    except MalformedError:
        return None  # `promised_to` says why


def unverified_promise(pod: PodView) -> Promise | None:
    """Read a promise as `read_promise`, without checking its signature: for readers without the keys."""
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    return (
        decode_own(text, uid=pod.uid, node=pod.node, keys=None)
        if text and pod.node and not pod.host_network
        else None
    )


def _require_given(pod: PodView, placement: Placement) -> None:
    """Refuse a placement that does not give the requested interfaces.

    Not strict: unknown keys do not concern rates, and the pod may have been bound while they were tolerated.
    """
    request = read_request(request_text(pod.annotations), strict=False).request
    if not satisfies(placement.request(), request):
        name = request_name(pod.annotations)
        msg = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {name}"
        raise MalformedError(msg)
