"""Pods as the extender knows them, at the beginning of an explanation: requests and places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.placement import PlacedInterface, usage_of
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.decision_log import LastRefusals
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.kube.api import ClusterApi, PodView
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import KeySource
from k8s_rdma.wire.rates_status import describe_rates_status
from k8s_rdma.wire.views import Place, Placed

NO_API = (
    "the extender has no credentials for the API server, so that only what it was asked itself is known: "
    "neither what was bound by others nor what has ended"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod.

    request: None if it cannot be read, or is `not_allowed` by its namespace's policy; `malformed` says why.
    view: as the API server has it now; None if the pod could not be read, see `notes`.
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
        """The pod's priority; 0 if it is not known."""
        return self.view.priority if self.view else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplainer:
    """Looks at pods.

    api: None without one. keys: verify placements. clock: seconds, monotonic.
    bypass_outcome: a clause on the fate of a pod that was bound without a placement; empty if placements
        are not written.
    """

    cache: SchedulerCache
    attempts: LastRefusals
    api: ClusterApi | None
    keys: KeySource
    clock: Callable[[], float]
    bypass_outcome: str = ""

    async def find(self, namespace: str, name: str) -> KnownPod | str:
        """Return the pod as the API server has it, or else as it was refused here; or why not."""
        if self.api is None:
            return self._remembered(namespace, name, NO_API)
        try:
            view = await self.api.get_pod(namespace, name)
        except API_ERRORS as error:
            return self._remembered(namespace, name, f"the pod could not be read: {error.message}")
        return self._read(view) if view else f"the API server knows no pod {namespace}/{name}"

    def places(self, pod: KnownPod) -> tuple[Place, ...]:
        """List the nodes that hold interfaces for the pod, and whether its placement annotation counts."""
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
            notes=unknown_keys(view.annotations),
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
            generation=reservation.generation if reservation else 0,
            programmed=self.cache.state.programmed(node, pod.uid),
            rates=describe_rates_status(pod.view.annotations) if pod.view else "",
        )

    def bypass_notes(self, pod: KnownPod) -> tuple[str, ...]:
        """Return notes about a pod that was bound without this extender."""
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


def placed_on(interfaces: Iterable[PlacedInterface], inventory: Inventory) -> tuple[Placed, ...]:
    """Return the placed interfaces by PF."""
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
