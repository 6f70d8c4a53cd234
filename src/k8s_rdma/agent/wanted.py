"""What a pod is to get, from its annotations.

The extender's placement, signed with the key that agents share, says it: a pod's owner may edit the
request after the pod was bound, but not that. Without a key anybody may have written the placement, so it
is a hint about where, never about how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.placement import Placement
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, parse_request
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import NodeName, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The interfaces, where they were promised, and why a placement that was there does not count.

    promised: None when nothing was, or nothing that counts.
    ignored: one sentence, empty when nothing was ignored.
    """

    request: Request
    promised: Placement | None = None
    ignored: str = ""


def wanted(annotations: Mapping[str, str], *, uid: PodUid, node: NodeName, key: bytes | None) -> Wanted:
    """Read a pod's annotations. MalformedError when its request says nothing that can be granted."""
    text = annotations.get(PLACEMENT_ANNOTATION)
    if not text:
        return Wanted(request=parse_request(annotations.get(ANNOTATION)))
    try:
        promised = decode(text, uid=uid, node=node, key=key)
    except MalformedError as error:
        return Wanted(request=parse_request(annotations.get(ANNOTATION)), ignored=str(error))
    if key is not None:
        return Wanted(request=_request_of(promised), promised=promised)
    request = parse_request(annotations.get(ANNOTATION))
    if request != _request_of(promised):
        why = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {ANNOTATION}"
        return Wanted(request=request, ignored=why)
    return Wanted(request=request, promised=promised)


def _request_of(placement: Placement) -> Request:
    return Request(
        tuple(
            InterfaceRequest(
                min_tx_rate_mbps=interface.min_tx_rate_mbps, max_tx_rate_mbps=interface.max_tx_rate_mbps
            )
            for interface in placement.interfaces
        )
    )
