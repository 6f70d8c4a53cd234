"""Scheduler cache: the use of nodes and namespaces that counts when a pod is placed.

It has the assumed pods: filtered, perhaps scored, and not bound yet. kube-scheduler asks about the next pod
before the bind of the previous one, and counts the previous one as assigned to a node that it does not name.
So pods that arrive together would all be shown the same room. For this reason room is held for each assumed
pod on its expected node, softly and for a short time. The hold steers other pods elsewhere if another node
fits them. Only a bind makes a promise.
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
from k8s_rdma.extender.fit_cache import FitCache
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
    from k8s_rdma.extender.search_queue import SearchQueue
    from k8s_rdma.kube.api import ClusterApi

_MAX_REMEMBERED = 16
"""The limit for sets of MACs for which the cache remembers the nodes whose reports do not contain them."""

ASSUME_S = {"extender": 2.0, "scheduler": 30.0}
"""The time for which a pod is assumed, by binder. A bind comes at once; a node reports only after its runtime
has started the pod."""

MOST_NODES = 4
"""The limit of nodes on which a pod is held. If a pod has more candidates, its node counts as unknown."""
_MOST_PODS = 1000

_TURN = 5
"""Times `lasts_s` that a whole gang keeps others out without a break. After it the gang does not keep others
out for as long. A gang that is filtered again and again and never bound must not keep others out for ever.
For example, one of its pods may lack another resource."""

_SEARCH_S = 0.02
"""Processor time for the places of assumed pods while another pod waits; places beyond it are not held."""

_LOWEST_PRIORITY = -(2**31)
"""The lowest priority of a pod, an int32, because an assumed pod's place is not available to others of any
priority."""
_NOTHING: Mapping[PodUid, tuple[PlacedInterface, ...]] = MappingProxyType({})


class AddressConflict(NamedTuple):
    """An address that another pod or node has: the reason for the refusal, and the address's node.

    mentions: the pod that has it.
    """

    why: str
    node: NodeName
    mentions: tuple[Mention, ...] = ()

    def why_for(self, namespace: str) -> str:
        """Return the reason for people who see the pods of one namespace alone, as an event's readers do."""
        return shown(self.why, self.mentions, lambda mentioned: mentioned == namespace)


class AddressCheck:
    """Reports whether a pod may have the addresses that it asks for.

    If two functions have one MAC, the fabric may give the frames to either. These addresses are taken:

    - The addresses of a pod that is bound, being bound, or to be bound to room that is held for it, for as
      long as its reservation stands.
    - Every address that a node holds by a Lease, for example for the pod of a ResourceClaim.
    - Every MAC that a node reports for its PFs and VFs, even if the node cannot be read now.
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
        """Return the first address of the pod that another pod or node has; None if all are free.

        If the pod asks for a MAC, this looks through the nodes' reports that `search` has not looked at.
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
        """Yield addresses that nodes hold for pods without a reservation: pods of claims, and ended pods."""
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
        """Return the reports without any of these MACs, by node; kept for the last sets only."""
        key = tuple(rising)
        free = self._free.setdefault(key, {})
        self._free.move_to_end(key)
        if len(self._free) > _MAX_REMEMBERED:
            self._free.popitem(last=False)
        return free


def _requested(pod: PendingPod) -> dict[str, str]:
    """Return the addresses that a pod asks for, each with a clause that says so."""
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
    """Return a MAC that the node reports; None if it reports no such MAC, which `free` remembers."""
    if free.get(node) is ranges:
        return None
    found = ranges.first_index_in(rising)
    if found is None:
        free[node] = ranges
    return found


class SchedulerCache:
    """Nodes and pods of the cluster, and the room that is held for pods that are not bound yet.

    state: reports of nodes, and reservations.
    pods: the pods as the API server shows them.
    requests: the pods' requests.
    fit_cache: which requests fit which snapshots.
    limits: the limits of namespaces.
    nominations: pods that preemption made room for.
    assumed_pods: filtered pods, on their way to a bind.
    gangs: pods that are bound together.
    unplaced: pods that were bound without a placement.
    addresses: MACs and GUIDs that are taken.
    settled: the pods for which no room or state is kept any more, even if a decision on them is under way.
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
        """Return the node as it counts for the pod; None if it cannot be read.

        Nominated pods of the same or a higher priority count, and these assumed ones; the pod's own
        reservation and the excluded pods do not.
        """
        holding = {**assumed, **self.nominations.against(node, pod.uid, pod.priority)}
        if excluded or node in self.state.nodes_of(pod.uid):
            excluded = {pod.uid, *excluded}
        return self.state.snapshot_if(node, excluded=excluded, holding=holding)

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
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
    """Holds room for assumed pods.

    The room is searched only when the next pod asks, because most pods are bound before.

    nominations: their holds count in the search for a pod's place.
    clock: seconds, monotonic.
    lasts_s: how long a pod is waited for.
    pods: the pods that the API server has bound; None without an API server.
    on_release: called for every node on which a gang's place is no longer held and was not taken, if the gang
        was whole.
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
        """Assume the pod on one of these nodes or on an unknown one; this replaces its earlier nodes."""
        self._forget(pod.uid)
        if pod.uid in self.settled:
            return
        assumed = self._on_its_way(pod, tuple(nodes) if len(nodes) <= MOST_NODES else ())
        self._assumed.put(pod.uid, assumed)
        self._new.add(pod.uid)
        self._trim()

    def assume_on_first(self, pod: PendingPod, nodes: Iterable[NodeName]) -> NodeName | None:
        """Assume a gang's pod on the first of these nodes with a place beside the holds against it.

        The place is held from now on; its gang's other places are held for as long as this one.
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
        """Forget the pod, because it goes to no node or has arrived on its node."""
        self._drop([uid])

    def hold_assumed(self, requester: PodUid) -> None:
        """Hold places for the other assumed pods; forget pods that have come or whose time is over."""
        self._whole.clear()
        self._drop_over(self.clock())
        deadline = self.processor() + _SEARCH_S
        for uid in [uid for uid in self._assumed.by_uid if uid in self._new and uid != requester]:
            self._new.discard(uid)
            self._hold(self._assumed.by_uid[uid], deadline)

    def has_assumed_except(self, uid: PodUid) -> bool:
        """Report whether any other pod is assumed, on known or unknown nodes."""
        return any(assumed_uid != uid for assumed_uid in self._assumed.by_uid)

    def against(self, node: NodeName, uid: PodUid) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the places that are held on the node for other pods."""
        return self.holds.against(node, uid, _LOWEST_PRIORITY, self.clock())

    def blocking(self, node: NodeName, pod: PendingPod) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the places of `against` that keep the pod out even if no other node fits.

        These are the places of whole gangs. For a pod of a gang, the places of its own gang and of pods
        without a gang also count, because all room that the gang is shown must be there at its bind.
        """
        alone = pod.gang is not None
        return {
            uid: interfaces
            for uid, interfaces in self.against(node, pod.uid).items()
            if self._is_firm(uid, pod) or (alone and self._assumed.by_uid[uid].pod.gang is None)
        }

    def promised(self, node: NodeName, pod: PendingPod) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the places of whole gangs and of the pod's own gang, which the pod's bind must not take."""
        holds = self.against(node, pod.uid).items()
        return {uid: interfaces for uid, interfaces in holds if self._is_firm(uid, pod)}

    def mates(self, pod: PendingPod) -> list[tuple[PlacedInterface, ...]]:
        """Return the places held for other members of the pod's gang that have no reservation yet."""
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
        """Release gangs' places at the end of their time, for as long as the process runs."""
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
        """Return the pods that room is held for on the node, `namespace/name`."""
        return [self._assumed.by_uid[assumed_uid].pod.pod for assumed_uid in self.against(node, uid)]

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
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
        """Hold the gang's places for as long as the last one; not at each call, because they may be many."""
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
        """Report whether enough of the gang's pods are known to have a place for the gang to be bound.

        A gang counts as whole only for a limited time (`_TURN`).
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
        """Hold the pod's places that are found before a deadline in processor time."""
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
    """A pod, its candidate nodes if they are few, and the begin and end of the wait for it."""

    pod: PendingPod
    nodes: tuple[NodeName, ...]
    assumed_at: float
    deadline: float
