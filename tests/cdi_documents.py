"""CDI specification files, as a container runtime reads them."""

from __future__ import annotations

import msgspec

from k8s_rdma.wire.cdi import CdiDevice


def decode_specification(data: bytes) -> tuple[str, tuple[CdiDevice, ...]]:
    """The kind and its devices."""
    document = msgspec.json.decode(data)
    return document["kind"], msgspec.convert(document["devices"], tuple[CdiDevice, ...])
