"""What a bound pod was promised, by its placement annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.namespace_policy import gives
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, read_request
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_own

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.placement_annotation import Promise
    from k8s_rdma.wire.placement_keys import PlacementKeys

_log = structlog.get_logger()


def promised_to(pod: PodView, keys: PlacementKeys | None) -> Promise | None:
    """What a bound pod's placement annotation promises it; None when it has none that counts.

    Without keys anybody may have written it, so it counts only if it gives what the pod asks for: then
    it says no more than where. Agents judge placements by the same rule.
    """
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    if text is None or pod.node is None:
        return None
    try:
        promise = decode_own(text, uid=pod.uid, node=pod.node, keys=keys)
        if keys is None:
            _check_rates(pod, promise.placement)
    except MalformedError as error:
        _log.warning("placement_ignored", pod=f"{pod.namespace}/{pod.name}", error=error.message)
        return None
    return promise


def _check_rates(pod: PodView, placement: Placement) -> None:
    """Refuse a placement that does not give what the pod asks for.

    Not strict: unknown keys say nothing of rates, and it may have been bound where they are tolerated.
    """
    asked = read_request(pod.annotations.get(ANNOTATION), strict=False).request
    if not gives(placement.request(), asked):
        msg = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {ANNOTATION}"
        raise MalformedError(msg)
