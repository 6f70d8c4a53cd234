"""Scheduler cache: what counts on nodes, and for namespaces, when a pod is to be placed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.extender.addresses import AddressCheck
from k8s_rdma.extender.assumed_pods import AssumedPods
from k8s_rdma.extender.gangs import Gangs
from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_store import BoundPod, PodStore
from k8s_rdma.extender.quota import Limits
from k8s_rdma.extender.unplaced_pods import UnplacedPods
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.extender.fit_cache import FitCache
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.pod_request import PendingPod, PodRequestCache
    from k8s_rdma.extender.requeue import Requeuer
    from k8s_rdma.kube.api import ClusterApi

ASSUME_S = {"extender": 2.0, "scheduler": 30.0}
"""How long a pod is assumed, by who binds: a bind comes at once, a node reports what its runtime did."""

_NOTHING: Mapping[PodUid, tuple[PlacedInterface, ...]] = MappingProxyType({})


class SchedulerCache:
    """Nodes and pods of the cluster, and what is held for pods that are not bound yet.

    state: reports of nodes, and reservations. pods: as the API server shows them. requests: what pods ask
    for. fit_cache: which requests fit which snapshots. limits: of namespaces. nominations: pods that
    preemption made room for. assumed_pods: filtered pods, on their way to a bind. gangs: pods that are bound
    together. unplaced: pods that were bound without a placement. addresses: MACs and GUIDs that are taken.
    """

    def __init__(  # noqa: PLR0913 - what it is filled from, and whom it tells
        self,
        config: ExtenderConfig,
        *,
        requests: PodRequestCache,
        fit_cache: FitCache,
        requeuer: Requeuer,
        api: ClusterApi,
        clock: Callable[[], float],
        keys: KeySource = UNSIGNED,
        exists: Callable[[NodeName], bool] = lambda _: True,
    ) -> None:
        """Begin empty. clock: seconds, monotonic. keys, exists: as of `PodStore` and `ClusterState`."""
        self.requests = requests
        self.fit_cache = fit_cache
        self._requeuer = requeuer
        self.limits = Limits(config.limits, on_freed=requeuer.freed)
        limited = bool(self.limits)
        self.state = ClusterState(
            on_change=self._on_node_change,
            on_claims=self.limits.update if limited else None,
            exists=exists,
            on_failure=fit_cache.quarantine.failed,
            unpromised=self._unpromised if limited and config.api else None,
        )
        self.state.on_addresses = requeuer.freed_address
        fit_cache.quarantine.watch(self.state)
        self.pods = PodStore(keys, on_unpromised=self.state.recount if limited and config.api else None)
        self.gangs = Gangs(api=api, state=self.state, pods=self.pods, clock=clock)
        self.nominations = NominatedPods(
            self.state,
            self.pods,
            fit_cache,
            clock,
            nomination_s=config.nomination_s,
            on_release=requeuer.released,
        )
        self.assumed_pods = AssumedPods(
            state=self.state,
            fit_cache=fit_cache,
            nominations=self.nominations,
            gangs=self.gangs,
            clock=clock,
            lasts_s=config.expect_s or ASSUME_S[config.binder],
            pods=self.pods if config.api else None,
            on_release=requeuer.released,
        )
        self.unplaced = UnplacedPods(
            state=self.state, requests=requests, clock=clock, quarantine=fit_cache.quarantine
        )
        self.addresses = AddressCheck(self.state, self.nominations)

    def snapshot(
        self,
        pod: PendingPod,
        node: NodeName,
        *,
        assumed: Mapping[PodUid, tuple[PlacedInterface, ...]] = _NOTHING,
        excluded: Collection[PodUid] = (),
    ) -> NodeSnapshot | None:
        """The node as it counts for the pod; None when it cannot be read.

        Nominated pods of the same or a higher priority count, and these assumed ones; the pod's own
        reservation and the excluded pods do not.
        """
        holding = {**assumed, **self.nominations.against(node, pod.uid, pod.priority)}
        if excluded or node in self.state.nodes_of(pod.uid):
            excluded = {pod.uid, *excluded}
        return self.state.snapshot_if(node, excluded=excluded, holding=holding)

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        return {
            **self.state.readings(),
            **self.fit_cache.readings(),
            **self.limits.readings(),
            **self.nominations.readings(),
            **self.assumed_pods.readings(),
            **self.pods.readings(),
        }

    def _on_node_change(
        self, node: NodeName, previous: NodeSnapshot | None, current: NodeSnapshot | None
    ) -> None:
        self._requeuer.on_node_change(node, previous, current)
        self.nominations.changed(node)
        self.unplaced.changed(node)

    def _unpromised(self, node: NodeName) -> Mapping[PodUid, BoundPod]:
        return self.pods.unpromised(node)
