"""ResourceClaims in `explain` and `top`, which do not need the extender for them.

They are read with the caller's credentials, because the extender does not know claims.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from k8s_rdma.cli.omissions import listed
from k8s_rdma.core.claim_fit import ClaimNode, ClaimPf, ClaimsRequest, judge
from k8s_rdma.core.placement import Placement, Rejection
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.wire.annotation_values import require_own_network
from k8s_rdma.wire.claim_caps import CapsRequest
from k8s_rdma.wire.claim_documents import ClaimDocuments, claim_documents
from k8s_rdma.wire.cluster_claims import (
    API,
    BUS_ID,
    SLICES_QUERY,
    ClaimOfPod,
    Claims,
    claim_nodes,
    class_names,
    consumption,
    our_classes,
    pod_claims,
    read_claims,
)
from k8s_rdma.wire.extended_resources import EXTENDED_RESOURCES, claim_spec, has_extended_resources
from k8s_rdma.wire.views import ClaimsExplanation, Group, NodeExplanation, PfExplanation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.devices.requests import DeviceRequest

    Verdict: TypeAlias = Literal["fits", "refused", "unreadable", "unknown"]

MAX_GROUPS = 20
_EXAMPLES = 3
_MOST_NOTES = 3
PF_ATTRIBUTE = "rdma.k8s-rdma.io/pf"
"""The netdev's name, if a device has another one."""

_NUMA_NODE, _OWN_NUMA_NODE = "resource.kubernetes.io/numaNode", "rdma.k8s-rdma.io/numaNode"
_VERDICTS: dict[Reason, Verdict] = {Reason.UNDECIDED: "unknown", Reason.UNREADABLE_NODE: "unreadable"}
_KUBE_SCHEDULER = "what else the pod needs of a node is not judged: kubectl describe pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClaims:
    """PFs for claims by node, and ResourceClaims that could not be counted."""

    nodes: tuple[ClaimNode, ...]
    unread: tuple[str, ...]


def read_cluster(api: Documents) -> ClusterClaims:
    """Read all ResourceSlices of our driver and all ResourceClaims. K8sRdmaError if that fails."""
    found = consumption(api.items(f"{API}/resourceclaims"))
    slices = api.items(f"{API}/resourceslices", SLICES_QUERY)
    return ClusterClaims(nodes=claim_nodes(slices, found), unread=found.unread)


def read_pod(api: Documents, namespace: str, name: str) -> dict[str, Any] | None:
    """Read a pod, if it exists. K8sRdmaError if the API server refuses or does not answer."""
    return api.get_object(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}")


def explain_claims(
    api: Documents, pod: dict[str, Any], *, nodes: Collection[str], every: bool
) -> ClaimsExplanation | None:
    """Explain a pod's claims of our driver, if it has any. K8sRdmaError as `read_pod`.

    nodes: nodes to show in detail.
    every: whether to show all in detail.
    """
    entries = pod_claims(pod)
    unclaimed = _extended_resources(api, pod, entries)
    if not entries and not unclaimed:
        return None
    meta, status = pod["metadata"], pod.get("status") or {}
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    finished = status.get("phase") in ("Succeeded", "Failed")
    head = ClaimsExplanation(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        state="finished" if finished else "bound" if node else "waiting",
        node=node,
    )
    if head.state == "bound":
        head = replace(head, caps=CapsRequest.read(meta.get("annotations") or {}).describe())
    documents, obstacles, notes = _claim_documents(api, head.namespace, entries)
    documents |= unclaimed
    head = replace(head, obstacles=() if finished else obstacles, notes=notes)
    try:
        names = class_names(documents.values())
        classes = {name: api.get_object(f"{API}/deviceclasses/{segment(name)}") for name in names}
        claims = read_claims(documents, our_classes(classes), head.uid)
    except MalformedError as error:
        return replace(head, malformed=error.message)
    if not (claims.request.requests or claims.allocated or obstacles or notes):
        return None
    head = _with_claims(head, claims, pod)
    return head if node or not claims.request.requests else _with_nodes(head, claims, api, nodes, every=every)


def _extended_resources(
    api: Documents, pod: dict[str, Any], entries: Iterable[ClaimOfPod]
) -> dict[str, dict[str, Any]]:
    """Make the claim for a pod's extended resources, by its name, if kube-scheduler has not made it."""
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    if (
        is_bound
        or any(entry.name == EXTENDED_RESOURCES for entry in entries)
        or not has_extended_resources(pod)
    ):
        return {}
    spec = claim_spec(pod, api.items(f"{API}/deviceclasses"))
    return {EXTENDED_RESOURCES: {"spec": spec}} if spec else {}


def _with_claims(head: ClaimsExplanation, claims: Claims, pod: Mapping[str, Any]) -> ClaimsExplanation:
    """Add the requests of the pod, its devices, and the reasons why it does not start."""
    units = [unit for preferred, *_ in claims.request.requests for unit in [preferred] * preferred.count]
    return replace(
        head,
        interfaces=len(units),
        reserved_mbps=sum(unit.mbps for unit in units),
        allocated=dict(claims.allocated),
        obstacles=(*head.obstacles, *(_obstacles(head, claims, pod) if head.state != "finished" else ())),
    )


def _obstacles(head: ClaimsExplanation, claims: Claims, pod: Mapping[str, Any]) -> Iterator[str]:
    try:
        require_own_network((pod.get("spec") or {}).get("hostNetwork"))
    except MalformedError as error:
        yield error.message
    for name, claim in claims.allocated.items():
        if claim.other_pods:
            pods = listed([f"{head.namespace}/{pod}" for pod in claim.other_pods])
            yield (
                f"claim {name} is reserved for pod {pods}, and an interface is of one pod: "
                "use resourceClaimTemplateName"
            )
    if head.node and claims.request.requests:
        yield (
            f"spec.nodeName {head.node} was set past kube-scheduler, which allocates claims: "
            "kubelet waits for them for ever"
        )


def _with_nodes(
    head: ClaimsExplanation, claims: Claims, api: Documents, nodes: Collection[str], *, every: bool
) -> ClaimsExplanation:
    """Add the verdicts on nodes."""
    cluster, request = read_cluster(api), claims.request
    judged = list(judge(request, [node for node in cluster.nodes if not nodes or node.node in nodes]))
    details = [_details(request, *pair) for pair in judged] if nodes or every else []
    return replace(
        head,
        nodes_known=len(cluster.nodes),
        groups=() if details else tuple(_groups(request, judged)),
        nodes=tuple(details),
        notes=(*head.notes, *_notes(claims, cluster, nodes)),
    )


def _claim_documents(api: Documents, namespace: str, entries: Iterable[ClaimOfPod]) -> ClaimDocuments:
    """Read a pod's claims, or the templates of those that are not generated."""
    in_namespace = f"{API}/namespaces/{segment(namespace)}"

    def template_of(name: str) -> Mapping[str, Any] | None:
        found = api.get_object(f"{in_namespace}/resourceclaimtemplates/{segment(name)}")
        return None if found is None else found.get("spec") or {}

    return claim_documents(
        namespace,
        entries,
        claim_of=lambda name: api.get_object(f"{in_namespace}/resourceclaims/{segment(name)}"),
        template_of=template_of,
    )


def _verdict(found: Placement | Rejection) -> Verdict:
    return "fits" if isinstance(found, Placement) else _VERDICTS.get(found.reason, "refused")


def _groups(
    request: ClaimsRequest, judged: Iterable[tuple[ClaimNode, Placement | Rejection]]
) -> Iterator[Group]:
    """Group nodes with equal verdicts; those that fit come first, the largest group first."""
    alike: dict[tuple[Verdict, str], list[tuple[ClaimNode, Placement | Rejection]]] = {}
    for node, found in judged:
        key = _verdict(found), "" if isinstance(found, Placement) else found.cause
        if key not in alike and len(alike) >= MAX_GROUPS:
            key = key[0], "for other reasons"
        alike.setdefault(key, []).append((node, found))
    for (verdict, cause), members in sorted(alike.items(), key=lambda item: (item[0][0], -len(item[1]))):
        examples = tuple(_details(request, *member) for member in members[:_EXAMPLES])
        texts = {found.message for _, found in members if isinstance(found, Rejection)}
        why = texts.pop() if len(texts) == 1 else cause
        yield Group(verdict=verdict, count=len(members), why=why, examples=examples)


def _details(request: ClaimsRequest, node: ClaimNode, found: Placement | Rejection) -> NodeExplanation:
    placed = found.interfaces if isinstance(found, Placement) else ()
    units = [unit for alternatives in request.requests for unit in alternatives[-1:] * alternatives[-1].count]
    reserved = {pf.name: Counter[int]() for pf in node.pfs}
    for interface in placed:
        reserved[interface.pf][interface.min_tx_rate_mbps] += 1
    return NodeExplanation(
        node=node.node,
        verdict=_verdict(found),
        why="" if isinstance(found, Placement) else found.message,
        pfs=tuple(_pf(pf, units, list(reserved[pf.name].elements())) for pf in node.pfs),
    )


def _pf(pf: ClaimPf, units: Sequence[DeviceRequest], placed: Sequence[int]) -> PfExplanation:
    room = pf.room
    accepted = [max(unit.mbps, pf.least_mbps) for unit in units if not pf.objection(unit)]
    return PfExplanation(
        name=pf.name,
        pci=str(pf.attributes.get(BUS_ID, "")),
        link_mbps=pf.mbps,
        unreserved_mbps=room.mbps,
        vfs=pf.vfs,
        free_vfs=room.vfs,
        numa_node=_own_node(pf),
        placed=len(placed),
        placed_mbps=sum(placed),
        room_for=_room_for(accepted, room.mbps, room.vfs),
        short_mbps=max(0, min(accepted, default=0) - room.mbps),
        objections=tuple(dict.fromkeys(filter(None, map(pf.objection, units))))[:_MOST_NOTES],
    )


def _own_node(pf: ClaimPf) -> int | None:
    """Return a PF's NUMA node, by the driver's attribute if the standard one is a list."""
    nodes = (pf.attributes.get(name) for name in (_NUMA_NODE, _OWN_NUMA_NODE))
    return next((node for node in nodes if isinstance(node, int)), None)


def _room_for(rates: Iterable[int], mbps: int, vfs: int) -> int:
    """Count the interfaces that fit on a PF by themselves, the smallest first."""
    count = 0
    for rate in sorted(rates)[:vfs]:
        mbps -= rate
        if mbps < 0:
            break
        count += 1
    return count


def _notes(claims: Claims, cluster: ClusterClaims, nodes: Collection[str]) -> Iterator[str]:
    """Say which parts the answer lacks."""
    if claims.foreign:
        yield f"requests for devices of other drivers are not judged: {listed(claims.foreign)}"
    for expression in claims.unjudged[:_MOST_NOTES]:
        yield f"a selector is not judged, as if every PF met it: {expression}"
    for why in cluster.unread[:_MOST_NOTES]:
        yield f"a claim is not counted: {why}"
    names = {node.node for node in cluster.nodes}
    for node in sorted(set(nodes) - names):
        yield f"node {node} has no PFs for claims"
    if not names:
        yield "no node has PFs for claims: there are no ResourceSlices of the driver (docs/dra.md)"
    yield _KUBE_SCHEDULER
