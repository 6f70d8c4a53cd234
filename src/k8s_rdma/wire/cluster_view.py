"""`GET /v1/cluster`: the cluster at a glance, of bounded length whatever its size.

Rates in Mb/s, times in seconds ago. Readers tolerate fields that they do not know (a newer extender).
"""

from __future__ import annotations

from enum import StrEnum, unique

import msgspec

from k8s_rdma.wire.explain import ExtenderState
from k8s_rdma.wire.json import decode

PATH = "/v1/cluster"
MAX_ROWS = 10_000


@unique
class Sort(StrEnum):
    """The order of nodes.

    RESERVED, VFS: those with the largest share of their bandwidth or VFs taken. PODS: with most pods. AGE:
    not heard from for longest. PROBLEMS: with problems, then as RESERVED. NAME: by name.
    """

    RESERVED = "reserved"
    VFS = "vfs"
    PODS = "pods"
    AGE = "age"
    PROBLEMS = "problems"
    NAME = "name"


class PfRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PF; link_mbps: null when unknown.

    devices: VFs of exclusive resources, which are not among `vfs`. held_devices: those that pods are reported
        to hold, or others.
    """

    name: str
    link_mbps: int | None
    reserved_mbps: int
    vfs: int
    free_vfs: int
    devices: int = 0
    held_devices: int = 0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A node. pods: that hold something there. heard_s: since it was last heard from; null: never.

    unreadable: the node cannot be read now: PFs and pods are those that it told of last, and what was
        promised there; no PFs where it never told of any.
    """

    name: str
    pods: int = 0
    heard_s: float | None = None
    problems: tuple[str, ...] = ()
    pfs: tuple[PfRow, ...] = ()
    unreadable: bool = False


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over all nodes; PFs of readable ones. pods: placements, each node's counted."""

    nodes: int
    unreadable: int
    with_problems: int
    pfs: int
    link_mbps: int
    reserved_mbps: int
    vfs: int
    free_vfs: int
    pods: int


class PendingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was refused last. waits_s: since it was first. why: as in `explain`."""

    pod: str
    interfaces: int
    reserved_mbps: int
    ago_s: float
    waits_s: float
    why: str


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The document: the first nodes by `Sort` and the pods that wait longest; the totals count all."""

    extender: ExtenderState
    totals: Totals
    nodes: tuple[NodeRow, ...]
    pending: tuple[PendingRow, ...]
    pending_total: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ClusterView)


def encode_view(view: ClusterView) -> bytes:
    """The document's bytes."""
    return _encoder.encode(view)


def decode_view(data: bytes) -> ClusterView:
    """Parse the document; MalformedError names the field."""
    return decode(data, _decoder, "cluster view")
