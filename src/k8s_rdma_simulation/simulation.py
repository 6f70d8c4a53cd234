"""A discrete-event simulation of a scenario under one policy.

Pods arrive, are placed by the extender's own code, end, and fail with nodes and links. All policies get the
same arrivals, lifetimes and failures of a seed; equal seeds give equal results.

With a delay between decision and bind, schedulers work as by optimistic concurrency (Schwarzkopf et al.,
"Omega", EuroSys 2013): each decides on the present cluster, and the one binder refuses decisions that no
longer fit.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Placement, Share
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.planning.cluster import Cluster, PlannedNode
from k8s_rdma_simulation.policies import Candidate, Mix, free_mbps, link_mbps, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from k8s_rdma.core.fit import NodeState
    from k8s_rdma.core.request import Request
    from k8s_rdma_simulation.scenario import Arrival, Failures, Scenario

SAMPLES = 200
"""Times at which fragmentation is measured."""

PROGRESS_EVENTS = 1_000

_UNFIT = -1
"""The worth of a node that does not take a request; all others are larger."""


class ShapeResult(msgspec.Struct, kw_only=True, rename="camel"):
    """Figures of the pods of one shape. Times in seconds.

    refusals: attempts that found no place.
    conflicts: binds that the binder refused, because others had taken the room after the decision.
    waiting: pods that wait at the end.
    restarted: that ended with a node, and came again.
    waits: from arrival to bind, of pods that were bound.
    """

    shape: str
    arrived: int = 0
    bound: int = 0
    ended: int = 0
    refusals: int = 0
    conflicts: int = 0
    waiting: int = 0
    restarted: int = 0
    mean_wait_s: float | None = None
    median_wait_s: float | None = None
    p95_wait_s: float | None = None
    longest_wait_s: float | None = None


class Sample(msgspec.Struct, kw_only=True, rename="camel"):
    """Figures at one time, in seconds, as in `Result`. waiting: pods."""

    at_s: float
    reserved: float
    vfs: float
    fragmentation: float | None
    waiting: int


class Result(msgspec.Struct, kw_only=True, rename="camel"):
    """Figures of one run.

    complete: whether it reached its end.
    seconds: of simulated time.
    reserved, vfs: the shares of all bandwidth and of all VFs that pods have, as means over time.
    load_at_first_refusal: the share of bandwidth reserved when a pod was refused for the first time, if one
        was.
    fragmentation: the share of the free bandwidth that is on nodes that do not take the next pod, by shares
        of arrivals.
    over_link: nodes with more reserved than a link has, while that is up, added up over samples: 0 if binds
        are judged.
    samples: at `SAMPLES` times after the warm-up.
    """

    scenario: str
    policy: str
    seed: int
    complete: bool
    seconds: float
    events: int
    reserved: float
    vfs: float
    fragmentation: float | None
    load_at_first_refusal: float | None
    over_link: int
    shapes: list[ShapeResult]
    samples: list[Sample]


class _Kind(IntEnum):
    """Events; of those at one time, ends come before events that may use their room."""

    END = 0
    REPAIR = 1
    FAIL = 2
    BIND = 3
    ARRIVAL = 4
    RETRY = 5
    SAMPLE = 6


@dataclass(slots=True, eq=False)
class _Group:
    """A pod, or a gang. nodes: where its pods are, while they run."""

    id: int
    shape: int
    arrived_s: float
    lifetime_s: float
    attempts: int = 0
    ready_s: float = 0.0
    queued: bool = False
    ends_s: float = 0.0
    nodes: list[NodeName] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Scheduler:
    """A scheduler. next_node: the position at which its next search begins."""

    next_node: int = 0


@dataclass(slots=True)
class _MeanOverTime:
    """The mean of a figure that changes in steps."""

    begin_s: float
    value: float = 0.0
    _since_s: float = 0.0
    _sum: float = 0.0

    def set(self, value: float, now_s: float) -> None:
        self._add(now_s)
        self.value = value

    def mean(self, now_s: float) -> float:
        self._add(now_s)
        return self._sum / (now_s - self.begin_s) if now_s > self.begin_s else self.value

    def _add(self, now_s: float) -> None:
        since_s = max(self._since_s, self.begin_s)
        if now_s > since_s:
            self._sum += self.value * (now_s - since_s)
        self._since_s = now_s


class Simulation:
    """One run of a scenario."""

    def __init__(
        self, scenario: Scenario, policy: str, seed: int, trace: Iterable[Arrival] | None = None
    ) -> None:
        """MalformedError for an unknown policy. trace: the arrivals, instead of drawn ones."""
        self._scenario, self._name, self._seed = scenario, policy, seed
        self._policy = policy_of(policy)
        self._requests = [shape.request() for shape in scenario.pods]
        self._cluster = Cluster(self._policy.strategy)
        self._mix = Mix(self._cluster, scenario.shares())
        self._inventories = scenario.inventories()
        self._positions = {inventory.node: position for position, inventory in enumerate(self._inventories)}
        self._state_worths: WeakKeyDictionary[NodeState, list[int]] = WeakKeyDictionary()
        nodes = len(self._inventories)
        self._unfit = [_UNFIT] * len(scenario.pods)
        # Twice over, so that a search that goes on at the first node is one slice.
        self._worths = [[_UNFIT] * 2 * nodes for _ in scenario.pods]
        self._fits = [bytearray(2 * nodes) for _ in scenario.pods]
        for inventory in self._inventories:
            self._put(inventory)
        self._nodes_to_find = scenario.scheduler.nodes_to_find(nodes)
        self._idle = deque(_Scheduler() for _ in range(scenario.scheduler.replicas))
        self._pending: deque[_Group] = deque()
        self._arrivals = iter(scenario.draw(seed) if trace is None else trace)
        self._lots, self._failures = Random(f"lots {seed}"), Random(f"failures {seed}")
        self._now_s = 0.0
        self._events: list[tuple[float, _Kind, int, Any]] = []
        self._numbers = count()
        self._groups: dict[int, _Group] = {}
        self._waiting: list[dict[int, _Group]] = [{} for _ in scenario.pods]
        self._down: dict[NodeName, set[PciAddress | None]] = defaultdict(set)
        self._link_mbps = sum(map(link_mbps, self._inventories))
        self._vfs = sum(pf.capacity_vfs for inventory in self._inventories for pf in inventory.pfs)
        self._reserved_mbps = self._vfs_in_use = 0
        self._reserved = _MeanOverTime(scenario.warm_up)
        self._vf_share = _MeanOverTime(scenario.warm_up)
        self._samples: list[Sample] = []
        self._waits = [array("d") for _ in scenario.pods]
        self._shapes = [ShapeResult(shape=shape.name) for shape in scenario.pods]
        self._needs = [Share.of_request(request) for request in self._requests]
        self._first_refusal: float | None = None
        self._over_link = 0
        self._handled = 0

    def run(self, progress: Callable[[float], bool] = lambda _: True) -> Result:
        """Run to the end, or until `progress` returns False; it gets the part of the time that is over."""
        scenario = self._scenario
        self._expect_arrival()
        self._schedule_failures()
        for index in range(SAMPLES):
            at_s = scenario.warm_up + (scenario.duration - scenario.warm_up) * (index + 1) / (SAMPLES + 1)
            self._push(at_s, _Kind.SAMPLE, None)
        goes_on = True
        while goes_on and self._events and self._events[0][0] <= scenario.duration:
            self._now_s, kind, _, subject = heapq.heappop(self._events)
            self._handle(kind, subject)
            self._handled += 1
            if self._handled % PROGRESS_EVENTS == 0:
                goes_on = progress(self._now_s / scenario.duration)
            if scenario.stop_at_first_refusal and self._first_refusal is not None:
                break
        else:
            if goes_on:
                self._now_s = scenario.duration
        return self._result(complete=goes_on)

    def _handle(self, kind: _Kind, subject: Any) -> None:
        match kind:
            case _Kind.ARRIVAL:
                self._arrive(subject)
            case _Kind.RETRY:
                self._attempt(subject)
            case _Kind.BIND:
                self._bind_decided(*subject)
            case _Kind.END:
                self._end(*subject)
            case _Kind.FAIL:
                self._fail(*subject)
            case _Kind.REPAIR:
                self._repair(*subject)
            case _Kind.SAMPLE:
                self._sample()

    # Arrivals and attempts

    def _expect_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._push(arrival.at_s, _Kind.ARRIVAL, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._shapes[arrival.shape].arrived += self._size(arrival.shape)
        self._attempt(_Group(next(self._numbers), arrival.shape, self._now_s, arrival.lifetime_s))
        self._expect_arrival()

    def _size(self, shape: int) -> int:
        return self._scenario.pods[shape].gang

    def _attempt(self, group: _Group) -> None:
        """Bind the group as a whole, if it fits; or have the next idle scheduler decide on it."""
        if self._scenario.scheduler.bind_delay:
            group.queued = True
            self._waiting[group.shape][group.id] = group
            self._pending.append(group)
            self._dispatch()
        elif self._place(group, self._idle[0]):
            self._start(group)
        else:
            self._refuse(group)

    def _dispatch(self) -> None:
        """Have idle schedulers decide on the groups that have come first; a decision takes no room."""
        while self._idle and self._pending:
            scheduler, group = self._idle.popleft(), self._pending.popleft()
            decided = self._place(group, scheduler)
            if decided:
                self._release(group)
                at_s = self._now_s + self._scenario.scheduler.bind_delay
                self._push(at_s, _Kind.BIND, (scheduler, group, decided))
            else:
                self._idle.append(scheduler)
                self._refuse(group)

    def _bind_decided(self, scheduler: _Scheduler, group: _Group, decided: Sequence[Placement]) -> None:
        """Bind as decided if the whole group still fits; else try again after the backoff."""
        self._idle.append(scheduler)
        for placement in decided:
            found = self._judge_bind(group, placement)
            if found is None:
                self._release(group)
                self._shapes[group.shape].conflicts += 1
                self._back_off(group)
                self._push(group.ready_s, _Kind.RETRY, group)
                break
            self._bind(group, found)
        else:
            self._start(group)
        self._dispatch()

    def _judge_bind(self, group: _Group, decided: Placement) -> Placement | None:
        """Place the pod on the node that was decided, if it fits the node's present state."""
        if decided.node not in self._cluster:
            return None
        if not self._scenario.scheduler.judge_binds:
            return decided
        found = self._cluster.place(self._requests[group.shape], decided.node)
        return found if isinstance(found, Placement) else None

    def _place(self, group: _Group, scheduler: _Scheduler) -> list[Placement]:
        """Bind all pods of the group to nodes that the scheduler chooses; if one fits nowhere, bind none."""
        placements: list[Placement] = []
        for _ in range(self._size(group.shape)):
            position = self._choose(group.shape, scheduler)
            if position is None:
                self._release(group)
                return []
            node = self._inventories[position].node
            found = self._cluster.place(self._requests[group.shape], node)
            if not isinstance(found, Placement):
                msg = f"{node} fits {self._scenario.pods[group.shape].name}, and has no placement for it"
                raise TypeError(msg)
            self._bind(group, found)
            placements.append(found)
        return placements

    def _bind(self, group: _Group, placement: Placement) -> None:
        self._cluster.bind(_uid(group, len(group.nodes)), placement)
        group.nodes.append(placement.node)
        self._weigh(placement.node)

    def _choose(self, shape: int, scheduler: _Scheduler) -> int | None:
        """Find the best node of a search; it begins where the scheduler's last one ended."""
        fits, nodes = self._fits[shape], len(self._inventories)
        if self._policy.in_order:
            first = fits.find(1)
            return None if first < 0 else first
        start = end = scheduler.next_node
        missing = self._nodes_to_find
        while missing and end < start + nodes:
            begin, end = end, min(end + missing, start + nodes)
            missing -= fits.count(1, begin, end)
        if missing == self._nodes_to_find:
            return None
        scheduler.next_node = end % nodes
        window = self._worths[shape][start:end]
        best = max(window)
        index = -1
        for _ in range(self._lots.randrange(window.count(best)) + 1):
            index = window.index(best, index + 1)
        return (start + index) % nodes

    def _weigh(self, name: NodeName) -> None:
        """Note the worth of a node that has changed to pods of each shape."""
        worths = self._worths_of(self._cluster.state(name)) if name in self._cluster else self._unfit
        position, nodes = self._positions[name], len(self._inventories)
        for of_shape, fits, worth in zip(self._worths, self._fits, worths, strict=True):
            of_shape[position] = of_shape[position + nodes] = worth
            fits[position] = fits[position + nodes] = worth != _UNFIT

    def _worths_of(self, state: NodeState) -> list[int]:
        worths = self._state_worths.get(state)
        if worths is None:
            worths = self._state_worths[state] = [self._worth(state, request) for request in self._requests]
        return worths

    def _worth(self, state: NodeState, request: Request) -> int:
        fit = self._cluster.fit(request, state)
        if fit is None:
            return _UNFIT
        return self._policy.worth(Candidate(self._cluster, self._mix, state, request, fit))

    def _start(self, group: _Group) -> None:
        self._waiting[group.shape].pop(group.id, None)
        self._groups[group.id] = group
        size = self._size(group.shape)
        result = self._shapes[group.shape]
        result.bound += size
        if self._now_s >= self._scenario.warm_up:
            self._waits[group.shape].extend([self._now_s - group.arrived_s] * size)
        group.ends_s = self._now_s + group.lifetime_s
        self._push(group.ends_s + self._scenario.scheduler.report_delay, _Kind.END, (group, group.ends_s))
        self._account(group, 1)
        if group.attempts and self._waiting[group.shape]:
            self._wake(group.shape)  # room for one may be room for two

    def _refuse(self, group: _Group) -> None:
        self._shapes[group.shape].refusals += 1
        if self._first_refusal is None:
            self._first_refusal = self._reserved_mbps / self._link_mbps
        self._back_off(group)
        group.queued = False

    def _back_off(self, group: _Group) -> None:
        settings = self._scenario.scheduler
        backoff_s = min(settings.max_backoff, settings.backoff * 2.0 ** min(group.attempts, 30))
        group.attempts += 1
        group.ready_s = self._now_s + backoff_s
        self._waiting[group.shape][group.id] = group

    def _account(self, group: _Group, sign: int) -> None:
        needs, size = self._needs[group.shape], self._size(group.shape)
        self._reserved_mbps += sign * size * needs.mbps
        self._vfs_in_use += sign * size * needs.vfs
        self._reserved.set(self._reserved_mbps / self._link_mbps, self._now_s)
        self._vf_share.set(self._vfs_in_use / self._vfs, self._now_s)

    # Ends, failures, repairs

    def _end(self, group: _Group, ends_s: float) -> None:
        if group.id in self._groups and group.ends_s == ends_s:
            self._shapes[group.shape].ended += self._size(group.shape)
            self._free(group)

    def _free(self, group: _Group) -> None:
        """Take a group's pods off their nodes, and wake those that may have room now."""
        del self._groups[group.id]
        self._account(group, -1)
        for node in self._release(group):
            self._wake_for(node)

    def _release(self, group: _Group) -> Iterable[NodeName]:
        """Release the pods on nodes that are there; the nodes, each once."""
        nodes, group.nodes = group.nodes, []
        for index, node in enumerate(nodes):
            if node in self._cluster:
                self._cluster.release(_uid(group, index), node)
        changed = dict.fromkeys(nodes)
        for node in changed:
            self._weigh(node)
        return changed

    def _wake_for(self, node: NodeName) -> None:
        position = self._positions[node]
        for shape, waiting in enumerate(self._waiting):
            if waiting and self._worths[shape][position] != _UNFIT:
                self._wake(shape)

    def _wake(self, shape: int) -> None:
        """Have the group that has waited longest tried again, after its backoff."""
        for group in self._waiting[shape].values():
            if not group.queued:
                group.queued = True
                self._push(max(self._now_s, group.ready_s), _Kind.RETRY, group)
                return

    def _schedule_failures(self) -> None:
        scenario = self._scenario
        for inventory in self._inventories:
            if scenario.node_failures is not None:
                self._schedule_failure(scenario.node_failures, inventory.node, None)
            if scenario.link_failures is not None:
                for pf in inventory.pfs:
                    self._schedule_failure(scenario.link_failures, inventory.node, pf.pci)

    def _schedule_failure(self, failures: Failures, node: NodeName, pf: PciAddress | None) -> None:
        at_s = self._now_s + failures.every.draw(self._failures)
        self._push(at_s, _Kind.FAIL, (failures, node, pf))

    def _fail(self, failures: Failures, node: NodeName, pf: PciAddress | None) -> None:
        """Lose a node with its pods, which come again; or a link, whose pods keep their interfaces."""
        self._down[node].add(pf)
        self._push(self._now_s + failures.repair.draw(self._failures), _Kind.REPAIR, (failures, node, pf))
        if pf is not None:
            self._restore(node)
            return
        affected = dict.fromkeys(int(uid.partition("/")[0]) for uid in self._cluster.remove_node(node).pods)
        self._weigh(node)
        for group in [self._groups[number] for number in affected]:
            remaining_s = max(0.0, group.ends_s - self._now_s)
            self._free(group)
            self._shapes[group.shape].restarted += self._size(group.shape)
            self._attempt(_Group(next(self._numbers), group.shape, self._now_s, remaining_s))

    def _repair(self, failures: Failures, node: NodeName, pf: PciAddress | None) -> None:
        self._down[node].discard(pf)
        self._schedule_failure(failures, node, pf)
        self._restore(node)
        self._wake_for(node)

    def _restore(self, name: NodeName) -> None:
        """Bring the node as its failures leave it."""
        down = self._down[name]
        if None not in down:
            inventory = self._inventories[self._positions[name]]
            pfs = [replace(pf, link_mbps=None) if pf.pci in down else pf for pf in inventory.pfs]
            self._put(Inventory.of_node(name, pfs))

    def _put(self, inventory: Inventory) -> None:
        """Add a node, or change its hardware; its pods stay."""
        name = inventory.node
        pods = self._cluster.node(name).pods if name in self._cluster else {}
        self._cluster.add_node(name, PlannedNode(inventory, pods=pods))
        self._weigh(name)

    # Figures

    def _sample(self) -> None:
        """Measure how much of the free bandwidth the next pod cannot use, and count nodes above a link."""
        free = unusable = 0.0
        shares = [shape.share for shape in self._scenario.pods]
        for state, nodes in Counter(map(self._cluster.state, self._cluster)).items():
            node_free = nodes * free_mbps(state)
            free += node_free
            for share, worth in zip(shares, self._worths_of(state), strict=True):
                if worth == _UNFIT:
                    unusable += share / sum(shares) * node_free
            self._over_link += nodes * _is_over_link(state)
        self._samples.append(
            Sample(
                at_s=self._now_s,
                reserved=self._reserved.value,
                vfs=self._vf_share.value,
                fragmentation=unusable / free if free else None,
                waiting=sum(map(self._waiting_of, range(len(self._shapes)))),
            )
        )

    def _result(self, *, complete: bool) -> Result:
        for shape, (result, waits) in enumerate(zip(self._shapes, self._waits, strict=True)):
            result.waiting = self._waiting_of(shape)
            if waits:
                ordered = sorted(waits)
                result.mean_wait_s = sum(ordered) / len(ordered)
                result.median_wait_s, result.p95_wait_s = quantile(ordered, 0.5), quantile(ordered, 0.95)
                result.longest_wait_s = ordered[-1]
        samples = [found for sample in self._samples if (found := sample.fragmentation) is not None]
        return Result(
            scenario=self._scenario.name,
            policy=self._name,
            seed=self._seed,
            complete=complete,
            seconds=self._now_s,
            events=self._handled,
            reserved=self._reserved.mean(self._now_s),
            vfs=self._vf_share.mean(self._now_s),
            fragmentation=sum(samples) / len(samples) if samples else None,
            load_at_first_refusal=self._first_refusal,
            over_link=self._over_link,
            shapes=self._shapes,
            samples=self._samples,
        )

    def _waiting_of(self, shape: int) -> int:
        """Count the pods of a shape that wait for a bind."""
        return len(self._waiting[shape]) * self._size(shape)

    def _push(self, at_s: float, kind: _Kind, subject: Any) -> None:
        heapq.heappush(self._events, (at_s, kind, next(self._numbers), subject))


def _uid(group: _Group, index: int) -> PodUid:
    return PodUid(f"{group.id}/{index}")


def _is_over_link(state: NodeState) -> bool:
    """Report whether more is reserved of a PF than its link has; one that is down counts not."""
    return any(
        pf.link_mbps is not None and state.used.get(pf.pci, NOTHING_USED).mbps > pf.link_mbps
        for pf in state.inventory.pfs
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all does not exceed."""
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
