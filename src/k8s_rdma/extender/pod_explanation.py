"""Pods as the extender knows them: what they ask for, and where something is held for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.placement import PlacedInterface, usage_of
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.decision_log import LastRefusals
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.kube.api import API_ERRORS, ClusterApi, PodView
from k8s_rdma.wire.annotation import format_request
from k8s_rdma.wire.explain import Place, Placed, RequestedInterface
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import KeySource

NO_API = (
    "the extender has no credentials for the API server, so that only what it was asked itself is known: "
    "neither what was bound by others nor what has ended"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod.

    request: None when what it asks for cannot be read, or is `not_allowed` by its namespace's policy;
    `malformed` says why. view: as the API server has it now; None where that could not be asked, as `notes`
    say.
    """

    namespace: str
    name: str
    uid: PodUid
    request: Request | None
    malformed: str = ""
    not_allowed: bool = False
    view: PodView | None = None
    notes: tuple[str, ...] = ()

    @property
    def priority(self) -> int:
        """The pod's priority; 0 where it is not known."""
        return self.view.priority if self.view else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplainer:
    """Looks at pods.

    api: None without one. keys: verify placements. clock: seconds, monotonic.
    bypass_outcome: what becomes of a pod that was bound without a placement, in a clause; empty where
        placements are not written.
    """

    cache: SchedulerCache
    attempts: LastRefusals
    api: ClusterApi | None
    keys: KeySource
    clock: Callable[[], float]
    bypass_outcome: str = ""

    async def find(self, namespace: str, name: str) -> KnownPod | str:
        """The pod of that name: as the API server has it, or else as it was refused here; or why not."""
        if self.api is None:
            return self._remembered(namespace, name, NO_API)
        try:
            view = await self.api.get_pod(namespace, name)
        except API_ERRORS as error:
            return self._remembered(namespace, name, f"the pod could not be read: {error.message}")
        return self._read(view) if view else f"the API server knows no pod {namespace}/{name}"

    def places(self, pod: KnownPod) -> tuple[Place, ...]:
        """List where something is held for the pod, and whether its placement annotation counts."""
        bound_to = pod.view.node if pod.view else None
        nodes = set(self.cache.state.nodes_of(pod.uid)) | ({bound_to} if bound_to else set())
        return tuple(self._place(pod, node) for node in sorted(nodes))

    def _read(self, view: PodView) -> KnownPod:
        request, malformed, not_allowed = None, "", False
        try:
            request = self.cache.requests.parse_view(view)
        except MalformedError as error:
            malformed, not_allowed = error.message, error.reason is Reason.NOT_ALLOWED
        return KnownPod(
            namespace=view.namespace,
            name=view.name,
            uid=view.uid,
            request=request,
            malformed=malformed,
            not_allowed=not_allowed,
            view=view,
        )

    def _remembered(self, namespace: str, name: str, note: str) -> KnownPod | str:
        uid = self.attempts.named(f"{namespace}/{name}")
        filtered = self.cache.requests.get(uid) if uid else None
        if uid is None or filtered is None:
            return f"pod {namespace}/{name} was not refused here lately; {note}"
        return KnownPod(namespace=namespace, name=name, uid=uid, request=filtered.request, notes=(note,))

    def _place(self, pod: KnownPod, node: NodeName) -> Place:
        reservation, facts = self.cache.state.reservation(node, pod.uid), self.cache.state.facts(node)
        inventory = facts.inventory if facts else Inventory(node=node, pfs=())
        reported = placed_on(facts.reported.get(pod.uid, ()), inventory) if facts else None
        return Place(
            node=node,
            since_s=round(self.clock() - reservation.created_at, 3) if reservation else None,
            placement=placed_on(reservation.interfaces, inventory) if reservation else (),
            signature=self._signature(pod, node),
            reported=reported,
        )

    def bypass_notes(self, pod: KnownPod) -> tuple[str, ...]:
        """Notes about a pod that was bound without this extender."""
        view = pod.view
        if not (self.bypass_outcome and pod.request and view and view.node) or view.finished:
            return ()
        if PLACEMENT_ANNOTATION in view.annotations:
            return ()
        note = (
            f"it was bound to {view.node} without a placement, past this extender: its schedulerName is not "
            "the one that asks it, it requests no managed resource, or it named its node itself; "
            f"{self.bypass_outcome}. Correct that in what makes the pod, and make the pod anew; k8s-rdma "
            "doctor cluster says which it is"
        )
        return (note,)

    def _signature(self, pod: KnownPod, node: NodeName) -> str | None:
        text = pod.view.annotations.get(PLACEMENT_ANNOTATION) if pod.view else None
        if text is None:
            return None
        keys = self.keys()
        try:
            decode(text, uid=pod.uid, node=node, keys=keys)
        except MalformedError as error:
            return error.message
        return "unsigned" if keys is None else "valid"


def requested_interfaces(request: Request) -> tuple[RequestedInterface, ...]:
    """The interfaces, those that are alike together, in the request's order."""
    counts = Counter(request.interfaces)
    alike = msgspec.json.decode(format_request(Request(tuple(counts))))
    return tuple(
        RequestedInterface(count=count, interface=interface)
        for interface, count in zip(alike, counts.values(), strict=True)
    )


def placed_on(interfaces: Iterable[PlacedInterface], inventory: Inventory) -> tuple[Placed, ...]:
    """Interfaces by PF."""
    open_ = {interface.pf for interface in interfaces if interface.entry is not None}
    return tuple(
        Placed(
            pci=pci,
            name=pf.name if (pf := inventory.pf(pci)) else None,
            interfaces=used.in_use,
            reserved_mbps=used.mbps,
            at_most=pci in open_,
        )
        for pci, used in sorted(usage_of(interfaces, inventory).items())
    )
