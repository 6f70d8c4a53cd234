"""How long a pod's annotations are, and may be: a Binding that makes them longer is carried out nevertheless.

The API server validates them at every write but a Binding (kube-apiserver, BindingREST). A pod that is bound
with too long ones can never be written to again: its status stays, and its finalizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PciAddress, PodUid
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.request import Request

MAX_ANNOTATION_BYTES = 256 * 1024
"""Of all keys and values (`TotalAnnotationSizeLimitB`, apimachinery, pkg/api/validation/objectmeta.go)."""

_OTHERS_BYTES = 1024
"""Left for what is written beside the placement, such as the fence."""

_INTERFACE_BYTES = 200
"""More than an interface takes in a placement, but for its options."""

_SIGNATURE_BYTES = 256
"""More than any signature takes in a placement, with the name of its key."""

_POOL_BYTES = 2048
"""Of an exclusive resource: its name, and the addresses of the PFs that have VFs in it."""

_LONGEST_NODE = NodeName("n" * 253)
_LONGEST_PF = PciAddress("ffffffff:ff:1f.7")
_LONGEST_UID = PodUid("u" * 36)


def annotation_bytes(annotations: Mapping[str, str]) -> int:
    """As the API server counts them."""
    return sum(_bytes(key) + _bytes(value) for key, value in annotations.items())


def require_room(length: int, request: Request) -> None:
    """MalformedError where a placement does not fit beside annotations that are so long."""
    roughly = _INTERFACE_BYTES * len(request.interfaces) + _POOL_BYTES * (len(request.devices) + 1)
    if 3 * length + roughly <= MAX_ANNOTATION_BYTES:  # options are told in hardly more text than asked for
        return
    room = placement_room(request)
    if length + room > MAX_ANNOTATION_BYTES:
        msg = (
            f"metadata.annotations: they are {length} bytes long, and the pod's placement takes {room} more; "
            f"the API server allows {MAX_ANNOTATION_BYTES}"
        )
        raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def placement_room(request: Request) -> int:
    """Bytes that suffice for the pod's placement, wherever it is placed, and for what is written beside."""
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
    return _bytes(PLACEMENT_ANNOTATION) + _bytes(text) + _SIGNATURE_BYTES + pools + _OTHERS_BYTES


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
