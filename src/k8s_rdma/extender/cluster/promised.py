"""What a bound pod was promised, by its placement annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.namespace_policy import gives
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, read_request
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode

if TYPE_CHECKING:
    from k8s_rdma.core.placement import PlacedInterface, Placement
    from k8s_rdma.kube.api import PodView

_log = structlog.get_logger()


def promised_to(pod: PodView, key: bytes | None) -> tuple[PlacedInterface, ...] | None:
    """What a bound pod's placement annotation promises it; None when it has none that counts.

    Without a key anybody may have written it, so it counts only if it gives what the pod asks for: then
    it says no more than where. Agents judge placements by the same rule.
    """
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    if text is None or pod.node is None:
        return None
    try:
        placement = decode(text, uid=pod.uid, node=pod.node, key=key)
        if key is None:
            _check_rates(pod, placement)
    except MalformedError as error:
        _log.warning("placement_ignored", pod=f"{pod.namespace}/{pod.name}", error=error.message)
        return None
    return placement.interfaces


def _check_rates(pod: PodView, placement: Placement) -> None:
    """Refuse a placement that does not give what the pod asks for.

    Not strict: unknown keys say nothing of rates, and it may have been bound where they are tolerated.
    """
    asked = read_request(pod.annotations.get(ANNOTATION), strict=False).request
    if not gives(placement.request(), asked):
        msg = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {ANNOTATION}"
        raise MalformedError(msg)
