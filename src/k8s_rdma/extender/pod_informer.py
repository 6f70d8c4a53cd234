"""Pod informer: hands each pod of the API server's watch to the caches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, cast

import structlog

from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.decision_log import LastRefusals
from k8s_rdma.extender.own_placements import OwnPlacements
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.requeue import Requeuer
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.extender.unverified_placements import UnverifiedPlacements
from k8s_rdma.extender.wanted_rates import WantedRates
from k8s_rdma.extender.watch_marker import WatchMarker
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed, ListPage, handle_item
from k8s_rdma.kube.promises import promised_to, unverified_terms
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, PlacementTerms, generation_in
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource, PlacementKeys

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.kube.api import ClusterApi, PodView

_REMEMBERED = 1_000
"""Ended pods to remember: a response that the API server prepared before their end may still arrive after
it."""

_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class PodInformer:
    """Fills the scheduler cache with the pods that the API server shows, and takes out those that are gone.

    keys: verify placements.
    attempts: the last refusals of pods.
    holds_unplaced: whether bound pods without a valid placement get interfaces; otherwise their agents
        refuse them.
    marker: gets each version of a pod that the watch shows.
    own_placements: those that this process has just signed.
    wanted_rates: gets every bound pod that has a reservation; None if rates of running pods do not change.
    """

    cache: SchedulerCache
    requeuer: Requeuer
    clock: Callable[[], float]
    attempts: LastRefusals = field(default_factory=LastRefusals)
    keys: KeySource = UNSIGNED
    holds_unplaced: bool = False
    wanted_rates: WantedRates | None = None
    marker: WatchMarker = field(default_factory=WatchMarker)
    own_placements: OwnPlacements = field(default_factory=OwnPlacements)
    unverified: UnverifiedPlacements = field(init=False)
    _may_defer: bool = field(init=False)
    _listed: asyncio.Event = field(default_factory=asyncio.Event)
    _listing_since: float = 0.0
    _paged: set[PodUid] = field(default_factory=set)
    _ended: deque[PodUid] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _unpromised: set[PodUid] = field(default_factory=set)
    _missing: frozenset[PodUid] = frozenset()
    _judged_by: PlacementKeys | None = None

    def __post_init__(self) -> None:
        """Decide whether signatures may be verified late.

        They may not if more than the room of a node depends on them, for example a quota.
        """
        self._may_defer = not self.holds_unplaced and not self.cache.limits
        self.unverified = UnverifiedPlacements(
            state=self.cache.state,
            pods=self.cache.pods,
            keys=self.keys,
            on_forged=self._unpromised.add,
        )

    @property
    def listed(self) -> bool:
        """Report whether all pods have been seen since the last call of `list_anew`."""
        return self._listed.is_set()

    def list_anew(self) -> None:
        """Require a list that begins from now on, before `listed` is true again."""
        self._listed.clear()

    async def wait_listed(self) -> None:
        """Return when it is `listed`."""
        await self._listed.wait()

    def stream(self, api: ClusterApi) -> AsyncIterator[Event[PodView]]:
        """List and watch pods; each event goes to `on_event` before the next is asked for."""
        self._listing_since = self.clock()
        self._paged.clear()
        self._judge_anew()
        if self.marker.on_list_begun():
            self.list_anew()
        if not self.listed:  # no verb decides yet, and the pods of one node are spread over the pages
            self.cache.state.postpone_updates()
        return self._stream(api)

    async def _stream(self, api: ClusterApi) -> AsyncIterator[Event[PodView]]:
        async with aclosing(cast("Any", api.follow_pods())) as events:
            async for event in events:
                yield event
                if isinstance(event, Listed):
                    await self._look_for_missing(api)
                if self.keys() is not self._judged_by:
                    return  # the next list has placements verified by the current keys

    def _judge_anew(self) -> None:
        """Forget the pods without a promise if the keys changed, because the new keys may accept theirs."""
        if self._judged_by is not (keys := self.keys()):
            self._judged_by = keys
            self._unpromised.clear()

    def on_event(self, event: Event[PodView]) -> None:
        """Handle an event of the watch."""
        match event:
            case ListPage(pods, is_anew):
                self._page(pods, is_anew=is_anew)
            case Listed(pods, is_anew):
                self._list(pods, is_anew=is_anew)
            case Changed(pod):
                self._on_update(pod)
                self.marker.on_update(pod.uid, pod.version)
            case Deleted(pod):
                self.on_delete(pod.uid)

    def on_update(self, pod: PodView) -> None:
        """Take a pod that was read outside the stream, unless the stream has reported its end since."""
        if pod.uid not in self._ended:
            self._on_update(pod)

    def on_not_found(self, uid: PodUid) -> None:
        """Note that the API server has no pod of a bind's name, or has one with another UID.

        A pod that is known to be bound stays, because the bind's caller may have given another pod's UID.
        """
        if not self.cache.pods.is_bound(uid):
            self.on_delete(uid)

    def _page(self, pods: tuple[PodView, ...], *, is_anew: bool) -> None:
        if is_anew:
            self._paged.clear()
        self._paged.update(pod.uid for pod in pods)
        with self.cache.state.together():
            for pod in pods:
                handle_item("pods", self._on_update, pod)

    def _list(self, pods: tuple[PodView, ...], *, is_anew: bool) -> None:
        self._page(pods, is_anew=is_anew)
        listed = frozenset(self._paged)
        self._paged.clear()
        for waiting in self.cache.pods.unbound_pods():
            if waiting.uid not in listed:
                self.cache.settled.add(waiting.uid)
        self.requeuer.retain(listed, self._listing_since)
        self.attempts.retain(listed, self._listing_since)
        for index in (self.cache.pods, self.cache.nominations, self.cache.unplaced):
            index.retain(listed)
        if self.wanted_rates is not None:
            self.wanted_rates.retain(listed)
        self._unpromised &= listed
        self._missing = self.cache.state.pods() - listed
        for uid in self._missing:
            # A pod that was created, filtered and bound while the list was under way may be missing from it.
            if self.cache.state.assumed_since(uid) < self._listing_since:
                self.on_delete(uid)
        self.cache.state.apply_updates()
        if self.keys() is self._judged_by:  # otherwise a list by the new keys follows
            self._listed.set()
        _log.info("pods_listed", pods=len(listed), reservations=len(self.cache.state.pods()))

    async def _look_for_missing(self, api: ClusterApi) -> None:
        """Find pods that were bound after the list was requested, and gone before it was made.

        The watch continues from the list. It does not report deletions from before the list.
        """
        for uid in self._missing:
            if not (places := self.cache.state.nodes_of(uid)):
                continue
            reservation = self.cache.state.reservation(next(iter(places)), uid)
            if reservation is None or reservation.stage is Stage.ENDED:
                continue
            namespace, _, name = reservation.pod.partition("/")
            pod = await api.get_pod(namespace, name)
            if pod is None or pod.uid != uid or pod.finished:
                self.on_delete(uid)

    def _on_update(self, pod: PodView) -> None:
        if pod.finished:
            self.on_delete(pod.uid)
            return
        if pod.node is not None and self.cache.pods.unbound(pod.uid) is not None:
            self.cache.settled.add(pod.uid)
        self.cache.pods.on_update(pod, self.clock() if pod.node is None else inf)
        if pod.node is None:
            self.cache.requests.invalidate_if_changed(pod.uid, pod.annotations)
            self._nominated(pod)
        else:
            reservation = self._bound(pod, pod.node)
            self.cache.nominations.on_delete(pod.uid)
            if reservation is not None and reservation.bound and self.wanted_rates is not None:
                self.wanted_rates.on_update(pod, reservation)

    def _bound(self, pod: PodView, node: NodeName) -> Reservation | None:
        """Take a pod that is bound to the node; return its reservation, if it has one."""
        self.requeuer.on_delete(pod.uid)
        self.attempts.forget(pod.uid)
        reservation, keys = self.cache.state.reservation(node, pod.uid), self.keys()
        if reservation is None and keys is not None and pod.uid not in self._unpromised:
            text = pod.annotations.get(PLACEMENT_ANNOTATION, "")
            if self._may_count_unverified(text) and (terms := unverified_terms(pod)) is not None:
                self.unverified.put(pod.uid, text, keys)
                return self._promised(pod, node, terms)
        counted = reservation is not None and reservation.stage is Stage.BOUND
        later = counted and keys is not None and self._is_later(pod, reservation)
        if pod.uid in self._unpromised or (
            counted
            and not later
            and (keys is None or self.cache.pods.has_signature(pod.uid) or pod.uid in self.unverified)
        ):
            return reservation
        own = self.own_placements.take(pod) if keys is not None else None
        promise = own or promised_to(pod, keys, self.cache.requests.policies())
        if later and promise is None:
            return reservation  # forged: its earlier promise stands
        if keys is not None and PLACEMENT_ANNOTATION in pod.annotations:
            self.unverified.discard(pod.uid)
            self.cache.pods.on_signature(pod.uid, promise.key_id if promise else None)
        if counted and not later:
            return reservation
        return self._promised(pod, node, promise.placement if promise else None)

    def _may_count_unverified(self, text: str) -> bool:
        """Report whether a placement of this text may count before its signature is verified.

        It may only in a list that is read before the first decision, and only if a forged placement can do no
        more than take room on its node for a while.
        """
        return self._may_defer and not self._listed.is_set() and self.unverified.has_room(text)

    def _is_later(self, pod: PodView, reservation: Reservation | None) -> bool:
        """Report whether the placement's generation is later than the reservation's."""
        generation = generation_in(pod.annotations.get(PLACEMENT_ANNOTATION, ""))
        return reservation is not None and generation > reservation.generation

    def _promised(
        self, pod: PodView, node: NodeName, found: Placement | PlacementTerms | None
    ) -> Reservation | None:
        promised = None
        if found is not None:
            promised = Reservation(
                interfaces=found.interfaces,
                policy=found.policy,
                generation=found.generation,
                pod=f"{pod.namespace}/{pod.name}",
                created_at=self.clock(),
                stage=Stage.BOUND,
            )
        reservation = self.cache.state.bound(node, pod.uid, promised)
        if reservation is None:
            self._promised_nothing(pod, node)
            reservation = self.cache.state.reservation(node, pod.uid)
        return reservation

    def _promised_nothing(self, pod: PodView, node: NodeName) -> None:
        """Record that the pod was bound without a valid placement; later writes to it do not change this.

        The placement is read only once, because the pod's owner may write to it at any rate and a long
        annotation takes 0.1 s. Without signatures, only a Binding writes a valid placement, and it does so
        before the pod is seen bound.
        """
        if pod.annotations or self.keys() is None:
            self._unpromised.add(pod.uid)
        self.cache.pods.on_bound_unpromised(pod, node)
        if self.holds_unplaced:
            self.cache.unplaced.on_bound(pod, node)

    def _nominated(self, pod: PodView) -> None:
        if pod.nominated is None:
            self.cache.nominations.cleared(pod.uid)
            return
        try:
            request = self.cache.requests.read(pod)
        except MalformedError:
            return
        self.cache.nominations.nominated(PendingPod.of_view(pod, request), pod.nominated)

    def on_delete(self, uid: PodUid) -> None:
        """Take the pod out of the caches, because the API server showed it as finished or gone."""
        self.cache.settled.add(uid)
        # This comes first, because a node that the state forgets places its unplaced pods again.
        self.cache.unplaced.on_delete(uid)
        self.unverified.verify(uid)
        self.cache.state.on_delete(uid, self.clock())
        for index in (
            self.cache.pods,
            self.cache.nominations,
            self.requeuer,
            self.attempts,
            self.cache.requests,
        ):
            index.on_delete(uid)
        self.cache.assumed_pods.forget(uid)
        if self.wanted_rates is not None:
            self.wanted_rates.on_delete(uid)
        self._unpromised.discard(uid)
        self._ended.append(uid)
