"""The extender's views: `/v1/explain?pod=NAMESPACE/NAME`, `/v1/cluster`, `/v1/holders`, `/v1/namespace`.

The first explains for every node why a pod is, or is not, placed there. The second is the cluster at a
glance. The others list the interfaces held on a node and in a namespace. All are of bounded length.

Rates in Mb/s, times in seconds ago. Readers tolerate fields that they do not know (a newer extender).
"""

from __future__ import annotations

from enum import StrEnum, unique
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from k8s_rdma.core.types import Enforcer
from k8s_rdma.wire.json import decode_large
from k8s_rdma.wire.report import MentionedPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

EXPLAIN_PATH = "/v1/explain"

_encoder = msgspec.json.Encoder()

CLUSTER_PATH = "/v1/cluster"
HOLDERS_PATH = "/v1/holders"
NAMESPACE_PATH = "/v1/namespace"
MAX_ROWS = 10_000

Use: TypeAlias = Literal["annotation", "claims"]

_CAUSES = {
    "unreadable_node": "not known to the extender now",
    "no_rdma": "no PF for annotations",
    "insufficient": "not enough free for the pod",
    "exceeds_capacity": "too small for the pod, even when empty",
    "no_such_pf": "no PF as the pod asks for",
    "driver_refuses": "drivers do not take what the pod asks for",
    "undecided": "not decided yet",
    "namespace_limit": "beyond the limit of the pod's namespace",
    "not_allowed": "not allowed to the pod's namespace",
    "address_in_use": "its address is in use",
    "gang_incomplete": "no room for all of its group",
    "composite_group": "its group is part of a composite pod group",
    "devices_differ": "its devices and its annotation differ",
    "malformed_annotation": "its annotation is malformed",
    "fit": "takes the pod",
}
"""The extender's codes of refusals in words, as docs/extender-refusals.md explains them."""


class ExtenderState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the extender that answers.

    role: `active`; `standby`, which answers from its own caches; `starting`; or `absent`, in a view that
        `top` makes of the API server alone.
    missing: the data that it waits for.
    """

    role: Literal["active", "standby", "starting", "absent"]
    missing: tuple[str, ...] = ()


class RequestedInterface(msgspec.Struct, frozen=True, kw_only=True):
    """A number of equal interfaces, in the annotation's words."""

    count: int
    interface: dict[str, Any]


class Placed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pod's interfaces on one PF; name: null if the node's report has no such PF.

    at_most: whether kubelet may have chosen less of the PF's devices, which the node has not reported yet.
    """

    pci: str
    name: str | None = None
    interfaces: int
    reserved_mbps: int
    at_most: bool = False


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node on which a reservation is held for the pod.

    since_s: how long this extender has known it.
    placement: PF by PF, by the account of this extender.
    signature: of the placement annotation: `valid`; `unsigned` if there is no key; else its fault; null if
        the pod could not be read or has no placement.
    reported: the report of the node's agent about the pod; null if the node cannot be read.
    generation, programmed: of the placement, and of the rates that its agent reports as programmed.
    rates: the outcome of the last change of rates; empty without one.
    """

    node: str
    since_s: float | None = None
    placement: tuple[Placed, ...] = ()
    signature: str | None = None
    reported: tuple[Placed, ...] | None = None
    generation: int = 0
    programmed: int = 0
    rates: str = ""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The last refusal.

    verb: of the extender.
    text: the error, or how many nodes there are of each cause.
    causes: as in `PendingRow`.
    """

    verb: str
    ago_s: float
    text: str
    causes: dict[str, int] = {}


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the namespace's limit; null without one."""

    used_mbps: int
    limit_mbps: int | None
    used_vfs: int
    limit_vfs: int | None


class PfExplanation(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A PF as the pod meets it.

    unreserved_mbps, free_vfs: without the pod's own reservation.
    placed, placed_mbps: interfaces that would go here, and their reservations.
    room_for: how many of the pod's interfaces would fit here if no other PF had any.
    objections: its obstacles to the others, in clauses.
    short_mbps: the bandwidth that is missing for the smallest of those that it would take.
    min_by, max_by: the enforcers of minimum and maximum rates of the interfaces placed here, unless that is
        the hardware for all of them: `hardware`, `software`, `accounted`.
    devices: if the pod holds exclusive devices, how many VFs of the PF are such devices; placed and
        placed_mbps are then the most that may come here. Null if it asks by annotation.
    """

    name: str
    pci: str
    link_mbps: int | None
    unreserved_mbps: int
    vfs: int
    free_vfs: int
    numa_node: int | None = None
    placed: int = 0
    placed_mbps: int = 0
    room_for: int = 0
    objections: tuple[str, ...] = ()
    short_mbps: int = 0
    devices: int | None = None
    min_by: tuple[str, ...] = ()
    max_by: tuple[str, ...] = ()


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The verdict on one node.

    verdict: `unreadable`: the node's state is unknown; `unknown`: it was not searched in the time of this
        answer.
    score: in thousandths.
    why: the reason that the scheduler gets; empty if it fits.
    evictable: whether evicting pods might help.
    """

    node: str
    verdict: Literal["fits", "refused", "unreadable", "unknown"]
    score: int | None = None
    why: str = ""
    evictable: bool = True
    pfs: tuple[PfExplanation, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes with the same reason. why: without the numbers of a single node. examples: some of them."""

    verdict: Literal["fits", "refused", "unreadable", "unknown"]
    count: int
    why: str = ""
    examples: tuple[NodeExplanation, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document.

    state: `bound`, `binding` (a Binding is under way), `finished`, `nominated`, `refused`, `waiting` (not yet
        tried) or `no-rdma` for a pod without interfaces.
    policy: how its interfaces are to be spread over PFs.
    malformed: the fault of its annotations.
    not_allowed: whether the fault is that the policy for its namespace refuses them.
    places: the nodes on which a reservation is held for it.
    nominated: the node on which preemption makes room for it, by its status.
    limit_refusal: how it would exceed the limit of its namespace.
    groups: all nodes, unless single ones were requested, which are in `nodes`.
    obstacles: the obstacles on every node besides RDMA that the extender knows: scheduling gates.
    notes: the gaps of this answer, one sentence each.
    """

    namespace: str
    name: str
    uid: str
    extender: ExtenderState
    state: Literal["bound", "binding", "finished", "nominated", "refused", "waiting", "no-rdma"]
    priority: int = 0
    interfaces: tuple[RequestedInterface, ...] = ()
    reserved_mbps: int = 0
    policy: str = "any"
    malformed: str = ""
    not_allowed: bool = False
    places: tuple[Place, ...] = ()
    nominated: str = ""
    refused: Refused | None = None
    limit: Limit | None = None
    limit_refusal: str = ""
    obstacles: tuple[str, ...] = ()
    nodes_known: int = 0
    groups: tuple[Group, ...] = ()
    nodes: tuple[NodeExplanation, ...] = ()
    notes: tuple[str, ...] = ()


class AllocatedPf(msgspec.Struct, frozen=True, kw_only=True):
    """The interfaces of an allocated claim on one PF."""

    name: str
    interfaces: int
    reserved_mbps: int


class AllocatedClaimView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim that is allocated. other_pods: that it is reserved for, besides the one it is listed for."""

    nodes: tuple[str, ...]
    pfs: tuple[AllocatedPf, ...] = ()
    other_pods: tuple[str, ...] = ()


class ClaimsExplanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's ResourceClaims of our driver, by the API server: `claims` of the document of `explain`.

    node: that the pod is bound to.
    interfaces, reserved_mbps: of claims that are not allocated yet, with the preferred alternatives.
    allocated: the others, by the pod's names.
    caps: the outcome of the last change of caps; empty without one.
    obstacles: the obstacles to its start on any node.
    Other fields are those of `Explanation`.
    """

    namespace: str
    name: str
    uid: str
    state: Literal["waiting", "bound", "finished"] = "waiting"
    node: str = ""
    interfaces: int = 0
    reserved_mbps: int = 0
    allocated: dict[str, AllocatedClaimView] = {}
    caps: str = ""
    obstacles: tuple[str, ...] = ()
    malformed: str = ""
    nodes_known: int = 0
    groups: tuple[Group, ...] = ()
    nodes: tuple[NodeExplanation, ...] = ()
    notes: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(Explanation)


def encode_explanation(explanation: Explanation) -> bytes:
    """Encode the document."""
    return _encoder.encode(explanation)


def decode_explanation(data: bytes) -> Explanation:
    """Parse the document; MalformedError names the field."""
    return decode_large(data, _decoder, "explanation")


@unique
class Sort(StrEnum):
    """The order of nodes.

    RESERVED, VFS: those with the largest share of their bandwidth or VFs taken.
    PODS: with most pods.
    AGE: not heard from for longest.
    PROBLEMS: with problems, then as RESERVED.
    NAME: by name.
    """

    RESERVED = "reserved"
    VFS = "vfs"
    PODS = "pods"
    AGE = "age"
    PROBLEMS = "problems"
    NAME = "name"


class PfRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PF in one of its uses, with its part of the link; null if unknown.

    devices: VFs of exclusive resources, which are not among `vfs`.
    held_devices: those that pods or others are reported to hold.
    min_by: the enforcer of reservations: `hardware`, `software`, or `accounted` if they are not enforced;
        null if not known.
    use: by annotation, or by ResourceClaims. For the latter, an extender knows the VFs that pods have.
    """

    name: str
    link_mbps: int | None
    reserved_mbps: int | None
    vfs: int
    free_vfs: int
    devices: int = 0
    held_devices: int = 0
    min_by: Enforcer | None = None
    use: Use = "annotation"


class PfTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over PFs of readable nodes; of bandwidth, over those for which it is known."""

    pfs: int = 0
    link_mbps: int = 0
    reserved_mbps: int = 0
    vfs: int = 0
    free_vfs: int = 0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A node. pods: that hold interfaces there. heard_s: since it was last heard from; null: never.

    unreadable: the node cannot be read now: PFs and pods are those of its last report, and the promises
        there; no PFs if it has never reported any.
    mentions: the pods that problems name.
    addresses: of its server, best first, by the Node object.
    """

    name: str
    pods: int = 0
    heard_s: float | None = None
    problems: tuple[str, ...] = ()
    pfs: tuple[PfRow, ...] = ()
    unreadable: bool = False
    mentions: tuple[MentionedPod, ...] = ()
    addresses: tuple[str, ...] = ()


class TakenShares(NamedTuple):
    """The shares of a node's bandwidth and VFs that are taken."""

    reserved: float = 0.0
    vfs: float = 0.0

    @classmethod
    def from_rows(cls, rows: Sequence[PfRow]) -> TakenShares:
        """Compute the shares of a node's PFs; of bandwidth, those of the PFs for which it is known."""
        return cls(
            _share(sum(pf.reserved_mbps or 0 for pf in rows), sum(pf.link_mbps or 0 for pf in rows)),
            _share(sum(pf.vfs - pf.free_vfs for pf in rows), sum(pf.vfs for pf in rows)),
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


NODE_ORDERS: dict[Sort, Callable[[NodeRow, TakenShares], tuple[object, ...]]] = {
    Sort.RESERVED: lambda row, shares: (-shares.reserved, row.name),
    Sort.VFS: lambda row, shares: (-shares.vfs, row.name),
    Sort.PODS: lambda row, _: (-row.pods, row.name),
    Sort.AGE: lambda row, _: (-(inf if row.heard_s is None else row.heard_s), row.name),
    Sort.PROBLEMS: lambda row, shares: (not row.problems, -shares.reserved, row.name),
    Sort.NAME: lambda row, _: (row.name,),
}
"""The keys by which nodes are sorted. The extender keeps each node's shares; `sort_nodes` computes them."""


def sort_nodes(nodes: Iterable[NodeRow], sort: Sort) -> list[NodeRow]:
    """Sort the nodes of a view."""
    order = NODE_ORDERS[sort]
    return sorted(nodes, key=lambda row: order(row, TakenShares.from_rows(row.pfs)))


class Totals(PfTotals, frozen=True, kw_only=True):
    """The sums over all nodes, PFs for claims apart. pods: placements, each node's counted."""

    nodes: int = 0
    unreadable: int = 0
    with_problems: int = 0
    pods: int = 0


class PendingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was refused last. waits_s: since it was first. why: as in `explain`.

    causes: how many nodes refused it, by the reason's code; empty if the pod itself is refused.
    """

    pod: str
    interfaces: int
    reserved_mbps: int
    ago_s: float
    waits_s: float
    why: str
    causes: dict[str, int] = {}


def causes_text(causes: Mapping[str, int]) -> str:
    """Say how many nodes refuse a pod for each cause: `2 nodes: too small for the pod, even when empty`."""
    counts = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(
        f"{count} {'node' if count == 1 else 'nodes'}: {_CAUSES.get(code, code.replace('_', ' '))}"
        for code, count in counts
    )


class HolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An interface that a pod holds; rates in Mb/s. Null: not known.

    pf, pci: name and address of its PF.
    interface: its name in the pod.
    reserved_mbps: the minimum rate that counts.
    cap_mbps: 0 for no cap.
    min_by, max_by: as `wire.report.Enforced`; `none` if there is no such rate.
    sent_mbps, received_mbps: by the pod, between two samples of the VF's counters.
    generation: of the pod's rates that are programmed.
    admitted: the generation of its placement annotation.
    pool: the exclusive resource, or that of claims, whose VF it is; empty for those by annotation.
    """

    node: str
    pf: str
    pci: str
    vf: int | None = None
    namespace: str
    pod: str
    uid: str
    interface: str | None = None
    reserved_mbps: int
    cap_mbps: int
    min_by: str | None = None
    max_by: str | None = None
    sent_mbps: float | None = None
    received_mbps: float | None = None
    generation: int = 0
    admitted: int | None = None
    pool: str = ""


def enforcers_text(row: HolderRow) -> str | None:
    """Name the enforcers of the rates of an interface: empty without rates, None if that is not known."""
    if row.min_by is None or row.max_by is None:
        return None
    names = {
        rate: "accounted only" if enforcer == "accounted" else enforcer
        for rate, enforcer in (("reservation", row.min_by), ("cap", row.max_by))
        if enforcer != "none"
    }
    if len(set(names.values())) < 2:
        return next(iter(names.values()), "")
    return ", ".join(f"{rate}: {name}" for rate, name in names.items())


@unique
class HolderSort(StrEnum):
    """The column by which holders are ordered: rates from the largest, others by name or number."""

    NODE = "node"
    PF = "pf"
    VF = "vf"
    POD = "pod"
    INTERFACE = "interface"
    RESERVED = "reserved"
    CAP = "cap"
    ENFORCED = "enforced"
    SENT = "sent"
    RECEIVED = "received"
    RATES = "rates"


class HoldersView(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `who`: interfaces that pods hold, in order; notes: its gaps, one sentence each."""

    holders: tuple[HolderRow, ...]
    notes: tuple[str, ...] = ()


class NamespaceView(msgspec.Struct, frozen=True, kw_only=True):
    """The interfaces that a namespace's pods hold: the first of their interfaces, and the sums of all.

    limit: null without one.
    """

    namespace: str
    interfaces: int
    reserved_mbps: int
    holders: tuple[HolderRow, ...]
    limit: Limit | None = None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The document: the first nodes by `Sort` and the pods that wait longest; the totals count all.

    claims: the sums over PFs for claims.
    unread: claims that could not be counted, and why.
    notes: the gaps of the view, one sentence each.
    holders: by the API server, in a view that `top` makes of it; null if it was not asked.
    """

    extender: ExtenderState
    totals: Totals
    nodes: tuple[NodeRow, ...]
    pending: tuple[PendingRow, ...]
    pending_total: int
    claims: PfTotals = PfTotals()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    holders: tuple[HolderRow, ...] | None = None


_view_decoder = msgspec.json.Decoder(ClusterView)
_holders_decoder = msgspec.json.Decoder(HoldersView)
_namespace_decoder = msgspec.json.Decoder(NamespaceView)


def encode_view(view: ClusterView | HoldersView | NamespaceView) -> bytes:
    """Encode the document."""
    return _encoder.encode(view)


def decode_view(data: bytes) -> ClusterView:
    """Parse the document; MalformedError names the field."""
    return decode_large(data, _view_decoder, "cluster view")


def unreadable_nodes(view: ClusterView) -> dict[str, str] | None:
    """Return by node why the extender refuses it, empty if it does not; None if it does not know yet.

    The extender's verdict counts, because it saw when each Lease was renewed, and compares no clocks.
    """
    if view.extender.role not in {"active", "standby"}:
        return None
    return {node.name: "; ".join(node.problems) if node.unreadable else "" for node in view.nodes}


def decode_holders(data: bytes) -> HoldersView:
    """Parse the document; MalformedError names the field."""
    return decode_large(data, _holders_decoder, "view of holders")


def decode_namespace(data: bytes) -> NamespaceView:
    """Parse the document; MalformedError names the field."""
    return decode_large(data, _namespace_decoder, "view of a namespace")
