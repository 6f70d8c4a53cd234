"""Scheduler cache: what counts on nodes, and for namespaces, when a pod is to be placed.

It has the assumed pods: filtered, perhaps scored, and not bound yet. kube-scheduler asks about the next pod
while the bind of the one before is still to come, and counts that one as assigned to a node that it does
not name. So pods that arrive together would all be shown the same room. What one of them may take is held
where it is expected to go, softly and for a short time: it steers others elsewhere where there is an
elsewhere, and only a bind promises anything.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import thread_time
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from k8s_rdma.core.mention import Mention, pod_mention, shown
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.extender.fit_cache import FitCache, SearchQueue
from k8s_rdma.extender.gangs import Gangs
from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
from k8s_rdma.extender.nominated_pods import Hold, Holds, NominatedPods
from k8s_rdma.extender.pod_requests import PendingPod, PodRequestCache
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.extender.promised_addresses import addresses
from k8s_rdma.extender.quota import Limits
from k8s_rdma.extender.settled_pods import SettledPods
from k8s_rdma.extender.unplaced_pods import UnplacedPods
from k8s_rdma.wire.address_leases import kind, lease_name
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from k8s_rdma.config.extender import ExtenderConfig
    from k8s_rdma.core.mac_ranges import MacRanges
    from k8s_rdma.extender.bound_pods import BoundPod
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.requeue import Requeuer
    from k8s_rdma.kube.api import ClusterApi

_MAX_REMEMBERED = 16
"""Sets of MACs for which the cache remembers the nodes whose reports contain none of them."""

ASSUME_S = {"extender": 2.0, "scheduler": 30.0}
"""The time for which a pod is assumed, by binder: a bind comes at once, a node reports what its runtime
did."""

MOST_NODES = 4
"""The limit of nodes on which a pod is held: with more candidates, its node counts as unknown."""
_MOST_PODS = 1000

_TURN = 5
"""Times `lasts_s` that a whole gang keeps others out without a break, and then does not for as long: a gang
that is filtered again and again and never bound, as when one of its pods lacks something else, must not keep
others out for ever."""

_SEARCH_S = 0.02
"""Processor time for the places of assumed pods while another pod waits; places beyond it are not held."""

_LOWEST_PRIORITY = -(2**31)
"""The lowest priority of a pod, an int32: an assumed pod's place is not available to others of any
priority."""
_NOTHING: Mapping[PodUid, tuple[PlacedInterface, ...]] = MappingProxyType({})


class AddressConflict(NamedTuple):
    """An address that another pod or node has: why the pod cannot have it, and on which node it is.

    mentions: the pod that has it.
    """

    why: str
    node: NodeName
    mentions: tuple[Mention, ...] = ()

    def why_for(self, namespace: str) -> str:
        """Return the reason for people who see the pods of one namespace alone, as an event's readers do."""
        return shown(self.why, self.mentions, lambda mentioned: mentioned == namespace)


class AddressCheck:
    """Tells whether a pod may have the addresses that it asks for.

    Of two functions with one MAC the fabric gives the frames to either. Taken is what a pod was promised
    (bound, being bound, or to be bound where room is held for it), for as long as its reservation stands,
    every address that a node holds by a Lease, as for the pod of a ResourceClaim, and every MAC that a node
    reports of its PFs and VFs, also of a node that cannot be read now.
    """

    def __init__(self, state: ClusterState, nominations: NominatedPods) -> None:
        self._state = state
        self._nominations = nominations
        self._free: OrderedDict[tuple[int, ...], dict[NodeName, MacRanges]] = OrderedDict()

    async def search(self, pod: PendingPod, queue: SearchQueue) -> None:
        """Look through the nodes' reports beforehand, in turns of the pod's namespace.

        A thousand MACs take 0.1 s of the processor with a thousand nodes; `conflict` then looks only at
        reports that are new.
        """
        macs = sorted(address_number(address) for address in _requested(pod) if kind(address) == "mac")
        if not macs:
            return
        free = self._free_of(macs)
        async with queue.turn(pod.namespace) as turn:
            for node, ranges in [*self._state.reported_macs()]:
                _first_in(macs, node, ranges, free)
                await turn.give_way()

    def conflict(self, pod: PendingPod) -> AddressConflict | None:
        """Return the first address of the pod that another has; None when all are free.

        Looks through the nodes for pods that ask for a MAC alone, but for what `search` has looked at.
        """
        requested = _requested(pod)
        return next(self._conflicts(pod, requested), None) if requested else None

    def _conflicts(self, pod: PendingPod, requested: dict[str, str]) -> Iterator[AddressConflict]:
        for address, clause in requested.items():
            for node, uid in self._state.promised_addresses.holders(address):
                if uid != pod.uid:
                    holder = self._state.reservation(node, uid)
                    mentions = (_mention(holder.pod),) if holder else ()
                    owner = mentions[0].text if mentions else "another pod"
                    yield AddressConflict(f"{clause}, which {owner} on node {node} has", node, mentions)
        for node, hold in self._nominations.holds_against(pod.uid, pod.priority):
            for address in (
                requested_address
                for placed in hold.interfaces
                for requested_address in addresses(placed.options)
            ):
                if address in requested:
                    mention = _mention(hold.pod)
                    why = f"{requested[address]}, which is held for {mention.text} on node {node}"
                    yield AddressConflict(why, node, (mention,))
        yield from self._leased(pod, requested)
        yield from self._reported(pod, requested)

    def _leased(self, pod: PendingPod, requested: dict[str, str]) -> Iterator[AddressConflict]:
        """Addresses that nodes hold for pods which no reservation names: those of claims, and ended ones."""
        for address, clause in requested.items():
            node = self._state.leased_addresses.holder(address)
            if node is not None and address not in self._state.promised_addresses.addresses_of(node, pod.uid):
                why = f"{clause}, which node {node} holds (Lease {lease_name(address)})"
                yield AddressConflict(why, node)

    def _reported(self, pod: PendingPod, requested: dict[str, str]) -> Iterator[AddressConflict]:
        macs = {address_number(address): address for address in requested if kind(address) == "mac"}
        if not macs:
            return
        rising = sorted(macs)
        free = self._free_of(rising)
        for node, ranges in self._state.reported_macs():
            if own := self._state.promised_addresses.addresses_of(node, pod.uid):
                found = ranges.first_index_in([mac for mac in rising if macs[mac] not in own])
            else:
                found = _first_in(rising, node, ranges, free)
            if found is not None:
                yield AddressConflict(f"{requested[macs[found]]}, which a PF or VF of node {node} has", node)

    def _free_of(self, rising: list[int]) -> dict[NodeName, MacRanges]:
        """The reports that have none of these MACs, by node; of the sets that were asked for last."""
        key = tuple(rising)
        free = self._free.setdefault(key, {})
        self._free.move_to_end(key)
        if len(self._free) > _MAX_REMEMBERED:
            self._free.popitem(last=False)
        return free


def _requested(pod: PendingPod) -> dict[str, str]:
    """The addresses that a pod asks for, and that it does, in a clause."""
    return {
        address: f"interface {index} asks for {kind(address)} {address}"
        for index, interface in enumerate(pod.request.interfaces)
        for address in addresses(interface.options)
    }


def _mention(pod: str) -> Mention:
    namespace, _, name = pod.partition("/")
    return pod_mention(namespace, name)


def _first_in(
    rising: list[int], node: NodeName, ranges: MacRanges, free: dict[NodeName, MacRanges]
) -> int | None:
    """Return a MAC that the node reports; None when it reports none of them, which `free` keeps."""
    if free.get(node) is ranges:
        return None
    found = ranges.first_index_in(rising)
    if found is None:
        free[node] = ranges
    return found


class SchedulerCache:
    """Nodes and pods of the cluster, and what is held for pods that are not bound yet.

    state: reports of nodes, and reservations. pods: as the API server shows them. requests: what pods ask
    for. fit_cache: which requests fit which snapshots. limits: of namespaces. nominations: pods that
    preemption made room for. assumed_pods: filtered pods, on their way to a bind. gangs: pods that are bound
    together. unplaced: pods that were bound without a placement. addresses: MACs and GUIDs that are taken.
    settled: the pods for which nothing is held or kept any more, whatever was being decided of them.
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
        settled: SettledPods | None = None,
    ) -> None:
        """Begin empty. clock: seconds, monotonic. keys, exists: as of `PodStore` and `ClusterState`."""
        self.requests = requests
        self.fit_cache = fit_cache
        self.settled = SettledPods() if settled is None else settled
        self._requeuer = requeuer
        self.limits = Limits(config.limits, on_freed=requeuer.freed)
        limited = bool(self.limits)
        self.state = ClusterState(
            on_change=self._on_node_change,
            on_use=self.limits.update if limited else None,
            exists=exists,
            on_failure=fit_cache.quarantine.failed,
            unpromised=self._unpromised if limited and config.api else None,
            on_addresses=requeuer.freed_address,
        )
        fit_cache.quarantine.watch(self.state)
        self.pods = PodStore(keys, on_unpromised=self.state.recount if limited and config.api else None)
        self.gangs = Gangs(api=api, state=self.state, pods=self.pods, clock=clock)
        self.nominations = NominatedPods(
            self.state,
            self.pods,
            fit_cache,
            clock,
            nomination_s=config.nomination_s,
            settled=self.settled,
            on_release=requeuer.released,
        )
        self.assumed_pods = AssumedPods(
            state=self.state,
            fit_cache=fit_cache,
            nominations=self.nominations,
            gangs=self.gangs,
            clock=clock,
            lasts_s=config.assume_s or ASSUME_S[config.binder],
            pods=self.pods if config.api else None,
            on_release=requeuer.released,
            settled=self.settled,
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
            **self.gangs.readings(),
        }

    def _on_node_change(
        self, node: NodeName, previous: NodeSnapshot | None, current: NodeSnapshot | None
    ) -> None:
        self._requeuer.on_node_change(node, previous, current)
        self.nominations.changed(node)
        self.unplaced.changed(node)

    def _unpromised(self, node: NodeName) -> Mapping[PodUid, BoundPod]:
        return self.pods.unpromised(node)


@dataclass(slots=True, kw_only=True)
class AssumedPods:
    """Holds room for assumed pods. It is searched when the next pod asks: most pods are bound before.

    nominations: counted where a pod's place is looked for. clock: seconds, monotonic. lasts_s: how long a
    pod is waited for. pods: those that the API server has bound; None if there is none to say it.
    on_release: called for every node where a place of a whole gang is no longer held and was not taken.
    settled: the pods that are not assumed any more.
    processor: processor time of this thread, s.
    """

    state: ClusterState
    fit_cache: FitCache
    nominations: NominatedPods
    gangs: Gangs
    clock: Callable[[], float]
    lasts_s: float
    pods: PodStore | None = None
    on_release: Callable[[NodeName], None] = lambda _node: None
    processor: Callable[[], float] = thread_time
    settled: SettledPods = field(default_factory=SettledPods)
    holds: Holds = field(default_factory=Holds)
    _assumed: PodTable[_AssumedPod] = field(
        default_factory=lambda: PodTable(
            PodLimits(pods=_MOST_PODS), owner=lambda assumed: assumed.pod.namespace
        )
    )
    _new: set[PodUid] = field(default_factory=set)
    _mates: dict[Gang, dict[PodUid, None]] = field(default_factory=dict)
    _whole: dict[Gang, bool] = field(default_factory=dict)
    _turns: dict[Gang, float] = field(default_factory=dict)
    _promised: asyncio.Event = field(default_factory=asyncio.Event)

    def assume(self, pod: PendingPod, nodes: Sequence[NodeName]) -> None:
        """Assume the pod on one of these nodes, or on an unknown node, instead of what was assumed before."""
        self._forget(pod.uid)
        if pod.uid in self.settled:
            return
        assumed = self._on_its_way(pod, tuple(nodes) if len(nodes) <= MOST_NODES else ())
        self._assumed.put(pod.uid, assumed)
        self._new.add(pod.uid)
        self._trim()

    def assume_on_first(self, pod: PendingPod, nodes: Iterable[NodeName]) -> NodeName | None:
        """Have a gang's pod go to the first of these nodes that has a place beside what counts against it.

        The place is held from now on; those of its gang are held for as long as this one.
        """
        self._forget(pod.uid)
        for node in nodes:
            nominated = self.nominations.against(node, pod.uid, pod.priority)
            snapshot = self.state.snapshot_if(node, holding={**self.blocking(node, pod), **nominated})
            found = self.fit_cache.place(pod.request, snapshot) if snapshot else None
            if isinstance(found, Placement):
                self._promise(pod, node, found)
                return node
        return None

    def forget(self, uid: PodUid) -> None:
        """The pod goes nowhere, or has come to where it went."""
        self._drop([uid])

    def hold_assumed(self, requester: PodUid) -> None:
        """Hold what the others may come to take; forget those that have come, or were waited for enough."""
        self._whole.clear()
        self._drop_over(self.clock())
        deadline = self.processor() + _SEARCH_S
        for uid in [uid for uid in self._assumed.by_uid if uid in self._new and uid != requester]:
            self._new.discard(uid)
            self._hold(self._assumed.by_uid[uid], deadline)

    def has_assumed_except(self, uid: PodUid) -> bool:
        """Report whether any other pod is on its way, to nodes that are known or not."""
        return any(assumed_uid != uid for assumed_uid in self._assumed.by_uid)

    def against(self, node: NodeName, uid: PodUid) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return what is held on the node for other pods."""
        return self.holds.against(node, uid, _LOWEST_PRIORITY, self.clock())

    def blocking(self, node: NodeName, pod: PendingPod) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """The part of it that keeps the pod out even where no other node fits.

        Places of whole gangs; for one of a gang those of its own, and of pods that belong to none: all that
        its gang is shown must be there when it is bound.
        """
        alone = pod.gang is not None
        return {
            uid: interfaces
            for uid, interfaces in self.against(node, pod.uid).items()
            if self._is_firm(uid, pod) or (alone and self._assumed.by_uid[uid].pod.gang is None)
        }

    def promised(self, node: NodeName, pod: PendingPod) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """The places of whole gangs and of the pod's own gang, which a bind of the pod must not take."""
        holds = self.against(node, pod.uid).items()
        return {uid: interfaces for uid, interfaces in holds if self._is_firm(uid, pod)}

    def mates(self, pod: PendingPod) -> list[tuple[PlacedInterface, ...]]:
        """The places held for other members of the pod's gang that have no reservation yet."""
        if pod.gang is None:
            return []
        return [
            hold.interfaces
            for uid in self._mates.get(pod.gang, ())
            if uid != pod.uid and not self.state.nodes_of(uid)
            for node in self.holds.nodes_of(uid)
            if (hold := self.holds.get(node, uid))
        ]

    async def keep_time(self) -> NoReturn:
        """Release gangs' places when their time is over, for as long as the process runs."""
        while True:
            await self._promised.wait()
            await asyncio.sleep(self.lasts_s)
            now = self.clock()
            self._whole.clear()
            self._drop_over(now)
            self._end_turns(now)
            if not self._mates:
                self._promised.clear()

    def pod_names(self, node: NodeName, uid: PodUid) -> list[str]:
        """The pods that room is held for on the node, `namespace/name`."""
        return [self._assumed.by_uid[assumed_uid].pod.pod for assumed_uid in self.against(node, uid)]

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        return {"pods_assumed": ("Pods on their way to a bind.", "gauge", lambda: len(self._assumed.by_uid))}

    def _on_its_way(self, pod: PendingPod, nodes: tuple[NodeName, ...]) -> _AssumedPod:
        now = self.clock()
        return _AssumedPod(pod, nodes, now, now + self.lasts_s)

    def _promise(self, pod: PendingPod, node: NodeName, place: Placement) -> None:
        assumed = self._on_its_way(pod, (node,))
        self._assumed.put(pod.uid, assumed)
        hold = Hold(
            interfaces=place.interfaces, pod=pod.pod, priority=pod.priority, deadline=assumed.deadline
        )
        self.holds.hold(node, pod.uid, hold)
        if pod.gang is not None:
            self._mates.setdefault(pod.gang, {})[pod.uid] = None
            self._extend(pod.gang, assumed)
        self._whole.clear()
        self._promised.set()
        self._trim()

    def _extend(self, gang: Gang, last: _AssumedPod) -> None:
        """Hold the gang's places for as long as the last one's; not each time, as they may be many."""
        for uid in self._mates[gang]:
            assumed = self._assumed.by_uid[uid]
            deadline = min(last.deadline, assumed.assumed_at + _TURN * self.lasts_s)
            if assumed.deadline + self.lasts_s / 2 > deadline:
                continue
            self._assumed.replace(uid, replace(assumed, deadline=deadline))
            for node in self.holds.nodes_of(uid):
                if hold := self.holds.get(node, uid):
                    self.holds.hold(node, uid, replace(hold, deadline=deadline))

    def _forget(self, uid: PodUid) -> None:
        assumed = self._assumed.pop(uid)
        if assumed is None:
            return
        self._new.discard(uid)
        self.holds.release(uid)
        self._whole.clear()
        mates = self._mates.get(assumed.pod.gang) if assumed.pod.gang else None
        if assumed.pod.gang and mates is not None:
            mates.pop(uid, None)
            if not mates:
                del self._mates[assumed.pod.gang]

    def _trim(self) -> None:
        while (uid := self._assumed.excess()) is not None:
            self.forget(uid)

    def _drop_over(self, now: float) -> None:
        self._drop(
            [
                uid
                for uid, assumed in self._assumed.by_uid.items()
                if assumed.deadline <= now or self._is_confirmed(assumed)
            ]
        )

    def _drop(self, uids: Sequence[PodUid]) -> None:
        """Forget the pods; a whole gang that loses an untaken place no longer keeps other gangs out."""
        gangs = {
            assumed.pod.gang
            for uid in uids
            if (assumed := self._assumed.by_uid.get(uid)) and not self.state.nodes_of(uid)
        }
        freed = [node for gang in gangs if gang and self._is_whole(gang) for node in self._nodes_of(gang)]
        for uid in uids:
            self._forget(uid)
        for node in freed:
            self.on_release(node)

    def _nodes_of(self, gang: Gang) -> set[NodeName]:
        """The nodes on which the gang's places are held."""
        return {node for uid in self._mates.get(gang, ()) for node in self.holds.nodes_of(uid)}

    def _end_turns(self, now: float) -> None:
        """End the turns of gangs that kept others out for long enough, and release their nodes for now."""
        for gang, began in [*self._turns.items()]:
            if gang not in self._mates:
                del self._turns[gang]
            elif now - began >= _TURN * self.lasts_s:
                for node in self._nodes_of(gang):
                    self.on_release(node)

    def _has_turn(self, gang: Gang) -> bool:
        now, turn_s = self.clock(), _TURN * self.lasts_s
        if now - self._turns.setdefault(gang, now) >= 2 * turn_s:
            self._turns[gang] = now
        return now - self._turns[gang] < turn_s

    def _is_firm(self, uid: PodUid, pod: PendingPod) -> bool:
        gang = self._assumed.by_uid[uid].pod.gang
        return gang is not None and (gang == pod.gang or self._is_whole(gang))

    def _is_whole(self, gang: Gang | None) -> bool:
        """Report whether as many of the gang's pods have a place as it takes, as far as that is known.

        Only for so long: see `_TURN`.
        """
        if gang is None:
            return False
        if gang not in self._whole:
            count = self.gangs.member_count(gang)
            self._whole[gang] = count is not None and 0 < count <= self._placed(gang) and self._has_turn(gang)
        return self._whole[gang]

    def _placed(self, gang: Gang) -> int:
        return self.gangs.placed(gang, self._mates.get(gang, ()))

    def _is_confirmed(self, assumed: _AssumedPod) -> bool:
        """Report whether the pod counts by itself: it has a reservation, or its node reports it."""
        uid = assumed.pod.uid
        return bool(self.state.nodes_of(uid)) or any(self._is_reported(node, uid) for node in assumed.nodes)

    def _is_reported(self, node: NodeName, uid: PodUid) -> bool:
        facts = self.state.facts(node)
        if facts is None or uid not in facts.reported:
            return False
        return self.pods is None or self.pods.has_occupant(node, uid)

    def _hold(self, assumed: _AssumedPod, deadline: float) -> None:
        """Hold the pod's places, but for those beyond a deadline in processor time."""
        pod = assumed.pod
        places: dict[NodeSnapshot, tuple[PlacedInterface, ...]] = {}
        for node in assumed.nodes:
            nominated = self.nominations.against(node, pod.uid, pod.priority)
            holding = {**self.against(node, pod.uid), **nominated}
            snapshot = self.state.snapshot_if(node, holding=holding)
            if snapshot is None or self.processor() > deadline:
                continue
            if snapshot not in places:
                found = self.fit_cache.place(pod.request, snapshot)
                places[snapshot] = found.interfaces if isinstance(found, Placement) else ()
            if interfaces := places[snapshot]:
                hold = Hold(
                    interfaces=interfaces, pod=pod.pod, priority=pod.priority, deadline=assumed.deadline
                )
                self.holds.hold(node, pod.uid, hold)


@dataclass(frozen=True, slots=True)
class _AssumedPod:
    """A pod; the nodes that it goes to one of, if they are few; since and until when it is waited for."""

    pod: PendingPod
    nodes: tuple[NodeName, ...]
    assumed_at: float
    deadline: float
