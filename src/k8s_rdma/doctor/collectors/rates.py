"""Facts of running pods' rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.rates import RatesFact
from k8s_rdma.doctor.collectors.objects import age_of_write_s, full_name
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import request_name, request_text
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_promise, generation_in
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, decode_rates_status, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.request import InterfaceRequest, Request
    from k8s_rdma.kube.documents import Documents


def rates_fact(
    api: Documents, pod: dict[str, Any], request: Request | None, reported: Mapping[str, Mapping[str, int]]
) -> RatesFact | None:
    """Collect the facts of a running pod's rates, if it runs and has a placement.

    request: its request, unless its annotation is malformed.
    reported: the generations that nodes report, by UID.
    """
    annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
    placement, node = annotations.get(PLACEMENT_ANNOTATION), str(pod["spec"].get("nodeName") or "")
    if placement is None or not node or pod.get("status", {}).get("phase") != "Running":
        return None
    try:
        status = decode_rates_status(annotations.get(RATES_STATUS_ANNOTATION, ""))
    except MalformedError:
        status = None
    generation = generation_in(placement)
    programmed = reported.get(node, {}).get(str(pod["metadata"]["uid"]))
    if programmed is None:
        is_programmed = status is None or status.state not in ("admitted", "waiting")
    else:
        is_programmed = programmed >= generation
    if status is None:
        is_decided = _has_rates(placement, request)
    else:
        is_decided = status.request == _request_digest(annotations)
    written = PLACEMENT_ANNOTATION if is_decided or not is_programmed else request_name(annotations)
    return RatesFact(
        pod=full_name(pod),
        node=node,
        generation=generation,
        is_programmed=is_programmed,
        is_decided=is_decided,
        refusal=status.message if status and is_decided and status.state == "refused" else "",
        age_s=age_of_write_s(api, pod["metadata"], written),
    )


def _request_digest(annotations: Mapping[str, str]) -> str:
    """Return the digest as the extender makes it: empty if the two annotations differ."""
    try:
        return digest(request_text(annotations) or "")
    except MalformedError:
        return ""


def _has_rates(placement: str, request: Request | None) -> bool:
    """Report whether a placement has the request's rates, each at least once; unverified."""
    try:
        placed = decode_promise(placement, keys=None).placement.interfaces
    except MalformedError:
        return True  # which the agent refuses
    return request is not None and _rates(placed) == _rates(request.interfaces)


def _rates(interfaces: Iterable[PlacedInterface | InterfaceRequest]) -> set[tuple[int, int]]:
    return {(interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in interfaces}
