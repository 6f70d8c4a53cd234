"""The length of a pod's annotations: their limit, and the part of it that a placement takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.gpu_demand import MAX_PLACES
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import utf8_bytes
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from k8s_rdma.core.request import Request

MAX_ANNOTATION_BYTES = 256 * 1024
"""The limit of all keys and values (`TotalAnnotationSizeLimitB`, apimachinery,
pkg/api/validation/objectmeta.go)."""

_OTHERS_BYTES = 1024
"""Left for the texts that are written beside the placement, such as the fence."""

_INTERFACE_BYTES = 200
"""More than an interface takes in a placement, without its options."""

_SIGNATURE_BYTES = 256
"""More than any signature takes in a placement, with the name of its key."""

_POOL_BYTES = 2048
"""The size of an exclusive resource: its name, and the addresses of the PFs that have VFs in it."""

_LONGEST_NODE = NodeName("n" * 253)
_LONGEST_PF = PciAddress("ffffffff:ff:1f.7")
_LONGEST_UID = PodUid("u" * 36)


def require_room(length: int, request: Request) -> None:
    """MalformedError if a placement does not fit beside annotations that are so long."""
    places = len(request.interfaces) + (MAX_PLACES if request.shape.near_gpus else 0)
    roughly = _INTERFACE_BYTES * places + _POOL_BYTES * (len(request.devices) + 1)
    if 3 * length + roughly <= MAX_ANNOTATION_BYTES:  # options take hardly more text here than in the request
        return
    room = placement_room(request)
    if length + room > MAX_ANNOTATION_BYTES:
        msg = (
            f"metadata.annotations: they are {length} bytes long, and the pod's placement takes {room} more; "
            f"the API server allows {MAX_ANNOTATION_BYTES}"
        )
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def placement_room(request: Request) -> int:
    """Return the bytes that suffice for the pod's placement on any node, and for the texts beside it."""
    longest = Placement(
        node=_LONGEST_NODE,
        interfaces=tuple(
            PlacedInterface(
                pf=_LONGEST_PF,
                min_tx_rate_mbps=interface.min_tx_rate_mbps,
                max_tx_rate_mbps=interface.max_tx_rate_mbps,
                enforce=interface.enforce,
                options=interface.options,
            )
            for interface in request.interfaces
        ),
        policy=request.policy,
    )
    text = encode(longest, _LONGEST_UID, None)
    pools = len(request.devices) * _POOL_BYTES
    if request.shape.near_gpus:
        pools += MAX_PLACES * _INTERFACE_BYTES
    return utf8_bytes(PLACEMENT_ANNOTATION) + utf8_bytes(text) + _SIGNATURE_BYTES + pools + _OTHERS_BYTES
