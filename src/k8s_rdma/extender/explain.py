"""Explanation of a pod: why each node takes it or does not, as filter would answer now.

Explanations are made one at a time, in between other work. A slice of one delays a filter no longer than a
single search does. Nodes that refuse for the same cause are grouped. For each PF an explanation shows the
free capacity, the interfaces that would go there, and the objections.

An explanation begins with the pod as the extender knows it: its request, and its reservations.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from k8s_rdma.core.devices.placement import device_mismatch, devices_on, possible
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.pf_needs import unmet
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import PlacedInterface, Rejection, Share
from k8s_rdma.core.pod_constraints import gates_obstacles
from k8s_rdma.core.programming import enforcers, objection, reserved
from k8s_rdma.core.request import InterfaceClass, InterfaceRequest, PfPolicy, Request, class_of
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.known_pods import KnownPod, PodExplainer
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.extender.verdicts import COUNTED, UNRESOLVABLE, Feasible, Infeasible
from k8s_rdma.wire.annotation import format_request
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE
from k8s_rdma.wire.views import (
    Explanation,
    ExtenderState,
    Group,
    NodeExplanation,
    PfExplanation,
    Refused,
    RequestedInterface,
)

if TYPE_CHECKING:
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.packing import Room
    from k8s_rdma.extender.fit_cache import FitCache
    from k8s_rdma.extender.node_cache import NodeSnapshot

_MAX_NAMES = 3
_EXAMINED = 64
"""Kinds of interfaces, as in `core.refusal`: the annotation's author decides how many there are."""

EXAMPLES = 3
"""Nodes of a group that are shown in detail."""

MAX_GROUPS = 50
"""All further nodes are one group, because texts of nodes may differ in more than numbers."""

_ORDER = ("fits", "refused", "unknown", "unreadable")
_ADDRESS = re.compile(r"(?:\d+\.){3}\d+(?::\d+)?|\[?[0-9a-f]*:[0-9a-f:]+\]?(?::\d+)?")
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")

_SLICE_S = 0.001
_SEARCH_S = 5.0
_ASK_S = 3.0


def requested_interfaces(request: Request) -> tuple[RequestedInterface, ...]:
    """Return the interfaces in the request's order; equal ones are counted together."""
    counts = Counter(request.interfaces)
    alike = msgspec.json.decode(format_request(Request(tuple(counts))))
    return tuple(
        RequestedInterface(count=count, interface=interface)
        for interface, count in zip(alike, counts.values(), strict=True)
    )


if TYPE_CHECKING:
    PodState: TypeAlias = Literal[
        "bound", "binding", "finished", "nominated", "refused", "waiting", "no-rdma"
    ]
    NodeAnswer: TypeAlias = Literal["fits", "refused", "unreadable", "unknown"]


def look_at_pfs_of_devices(
    request: Request, snapshot: NodeSnapshot, devices: Sequence[tuple[str, int]]
) -> tuple[PfExplanation, ...]:
    """Explain each PF. devices: the request's devices that are VFs of the node."""
    asked_wrongly = device_mismatch(request, devices)
    requests: dict[str, list[InterfaceRequest]] = {}
    if not asked_wrongly:
        for place in possible(request, snapshot.inventory, devices):
            requests.setdefault(place.pf.pci, []).append(place.interface_request)
    return tuple(
        _explain_pf_of_devices(pf, [name for name, _ in devices], requests.get(pf.pci, []), snapshot)
        for pf in snapshot.inventory.pfs
    )


def _explain_pf_of_devices(
    pf: Pf, resources: Sequence[str], requests: Sequence[InterfaceRequest], snapshot: NodeSnapshot
) -> PfExplanation:
    room = room_of(pf, snapshot.used.get(pf.pci, NOTHING_USED))
    devices = sum(pf.pools.get(resource, 0) for resource in resources)
    worst = sorted((reserved(pf, request.min_tx_rate_mbps) for request in requests), reverse=True)[:devices]
    return replace(
        _describe_pf(pf, room, worst),
        room_for=_room_for_devices(worst, room.mbps),
        objections=tuple(_device_objections(pf, requests, sum(worst), room.mbps)),
        short_mbps=0 if pf.link_mbps is None else max(0, sum(worst) - room.mbps),
        devices=devices,
    )


def _describe_pf(pf: Pf, room: Room, placed_mbps: Sequence[int]) -> PfExplanation:
    """Describe the PF and the interfaces that would go there. placed_mbps: the reservation of each."""
    return PfExplanation(
        name=pf.name,
        pci=pf.pci,
        link_mbps=pf.link_mbps,
        unreserved_mbps=room.mbps,
        vfs=pf.capacity_vfs,
        free_vfs=room.vfs,
        numa_node=pf.numa_node,
        placed=len(placed_mbps),
        placed_mbps=sum(placed_mbps),
    )


def _room_for_devices(worst: Sequence[int], free_mbps: int) -> int:
    """Count the devices that fit on this PF, the largest first, as kubelet may choose."""
    for index, mbps in enumerate(worst):
        free_mbps -= mbps
        if free_mbps < 0:
            return index
    return len(worst)


def _device_objections(
    pf: Pf, requests: Sequence[InterfaceRequest], worst_mbps: int, left_mbps: int
) -> Iterator[str]:
    yield from list(
        dict.fromkeys(
            filter(None, (unmet(pf, request.needs) or objection(pf, request) for request in requests))
        )
    )[:1]
    if worst_mbps and pf.link_mbps is None:
        yield "its link speed is not known (link down?), so that nothing can be reserved"
    elif worst_mbps > left_mbps:
        yield f"{left_mbps} Mb/s unreserved, and kubelet may choose devices here for {worst_mbps}"


def look_at_pfs(
    request: Request, snapshot: NodeSnapshot, placed: Sequence[PlacedInterface] = ()
) -> tuple[PfExplanation, ...]:
    """Explain each PF. placed: the pod's interfaces as they would be placed; empty if they do not fit."""
    devices = devices_on(request, snapshot.inventory)
    if devices:
        return look_at_pfs_of_devices(request, snapshot, devices)
    kinds = [class_of(interface) for interface in request.interfaces]
    return tuple(_explain_pf(pf, kinds, snapshot, placed) for pf in snapshot.inventory.pfs)


def _explain_pf(
    pf: Pf, kinds: Sequence[InterfaceClass], snapshot: NodeSnapshot, placed: Sequence[PlacedInterface]
) -> PfExplanation:
    room = room_of(pf, snapshot.used.get(pf.pci, NOTHING_USED))
    requests_on_pf = [interface.as_request() for interface in placed if interface.pf == pf.pci]
    accepted = [kind for kind in kinds if not _against(pf, kind)]
    return replace(
        _describe_pf(pf, room, [reserved(pf, interface.min_tx_rate_mbps) for interface in requests_on_pf]),
        room_for=_room_for(pf, accepted, room),
        objections=tuple(_objections(pf, kinds, room)),
        short_mbps=_short_mbps(pf, accepted, room),
        min_by=_but_hardware(
            enforcers(pf, interface).min for interface in requests_on_pf if interface.min_tx_rate_mbps
        ),
        max_by=_but_hardware(
            enforcers(pf, interface).max for interface in requests_on_pf if interface.max_tx_rate_mbps
        ),
    )


def _but_hardware(holders: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(sorted(set(holders)))
    return () if distinct == ("hardware",) else distinct


def _against(pf: Pf, kind: InterfaceClass) -> str:
    return unmet(pf, kind.needs) or objection(pf, kind)


def _room_for(pf: Pf, kinds: Sequence[InterfaceClass], room: Room) -> int:
    """Count the interfaces that fit on this PF, the smallest first."""
    left_mbps, count = room.mbps, 0
    for cost in islice(sorted(reserved(pf, kind.min_tx_rate_mbps) for kind in kinds), room.vfs):
        left_mbps -= cost
        if left_mbps < 0:
            break
        count += 1
    return count


def _short_mbps(pf: Pf, kinds: Sequence[InterfaceClass], room: Room) -> int:
    """Compute the bandwidth that is missing for the smallest interface; 0 if the link speed is not known."""
    smallest = min((reserved(pf, kind.min_tx_rate_mbps) for kind in kinds), default=0)
    return 0 if pf.link_mbps is None else max(0, smallest - room.mbps)


def _objections(pf: Pf, kinds: Sequence[InterfaceClass], room: Room) -> Iterator[str]:
    distinct = list(islice(dict.fromkeys(kinds), _EXAMINED))
    yield from islice(dict.fromkeys(filter(None, (_against(pf, kind) for kind in distinct))), _MAX_NAMES)
    accepted = [reserved(pf, kind.min_tx_rate_mbps) for kind in distinct if not _against(pf, kind)]
    if not accepted:
        return
    if not room.vfs:
        yield "no VF is free"
    if pf.link_mbps is None and max(accepted):
        yield "its link speed is not known (link down?), so that nothing can be reserved"
    elif room.vfs and min(accepted) > room.mbps:
        yield f"{room.mbps} Mb/s unreserved, and the smallest interface needs {min(accepted)}"
    elif room.vfs and max(accepted) > room.mbps:
        yield f"{room.mbps} Mb/s unreserved, and the largest interface needs {max(accepted)}"


class JudgedNode(NamedTuple):
    """A node's snapshot for the pod, and the verdict; why: the cause if there is no snapshot."""

    node: NodeName
    snapshot: NodeSnapshot | None
    verdict: Feasible | Infeasible | None
    why: str = ""

    @property
    def answer(self) -> NodeAnswer:
        """The verdict in a word."""
        if self.snapshot is None:
            return "unreadable"
        if self.verdict is None:
            return "unknown"
        return "fits" if isinstance(self.verdict, Feasible) else "refused"

    @property
    def score(self) -> int | None:
        """The node's score in thousandths; None if the pod does not fit."""
        return self.verdict.score if isinstance(self.verdict, Feasible) else None

    @property
    def text(self) -> str:
        """The refusal as the scheduler gets it; empty if the pod fits."""
        if self.snapshot is None:
            return f"{UNREADABLE_NODE} ({self.why})"
        return self.verdict.text if isinstance(self.verdict, Infeasible) else ""

    @property
    def evictable(self) -> bool:
        """Report whether evicting pods might help."""
        return not isinstance(self.verdict, Infeasible) or self.verdict.reason not in UNRESOLVABLE


def explain_node(judged: JudgedNode, request: Request, fit_cache: FitCache) -> NodeExplanation:
    """Explain the node in detail; search again for the PFs of the interfaces, or for the whole reason."""
    snapshot = judged.snapshot
    if snapshot is None or judged.verdict is None:
        return NodeExplanation(node=judged.node, verdict=judged.answer, why=judged.text)
    found = fit_cache.place(request, snapshot)
    placed = () if isinstance(found, Rejection) else found.interfaces
    return NodeExplanation(
        node=judged.node,
        verdict=judged.answer,
        score=judged.score,
        why=f"{NOT_ENOUGH_FREE} ({found.message})" if isinstance(found, Rejection) else "",
        evictable=judged.evictable,
        pfs=fit_cache.quarantine.decide(
            snapshot, lambda: look_at_pfs(request, snapshot, placed), lambda _: ()
        ),
    )


@dataclass(slots=True)
class _Group:
    """A group of nodes. text: the refusal of all, word by word; None if the words differ."""

    count: int = 0
    text: str | None = None
    best: list[tuple[int, int, JudgedNode]] = field(default_factory=list)

    def add(self, judged: JudgedNode) -> None:
        """Add a node; keep the best few, and of equal ones the first."""
        if not self.count:
            self.text = judged.text
        elif judged.text != self.text:
            self.text = None
        self.count += 1
        self.best = nsmallest(EXAMPLES, [*self.best, (-(judged.score or 0), self.count, judged)])


class Groups:
    """Groups of nodes; nodes whose texts differ only in numbers are in one group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[NodeAnswer, str], _Group] = {}

    def add(self, judged: JudgedNode) -> None:
        """Add a node to its group."""
        key = judged.answer, _cause(judged.text)
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = judged.answer, "for other reasons"
        self._groups.setdefault(key, _Group()).add(judged)

    async def documents(self, request: Request, fit_cache: FitCache) -> tuple[Group, ...]:
        """Return the groups, those that fit first, then by size; in slices of one search."""
        found = sorted(self._groups.items(), key=lambda item: (_ORDER.index(item[0][0]), -item[1].count))
        documents = []
        for (text, cause), group in found:
            examples = []
            for *_, example in group.best:
                await asyncio.sleep(0)
                examples.append(explain_node(example, request, fit_cache))
            why = group.text if group.text is not None else _shared(group, request, fit_cache) or cause
            documents.append(Group(verdict=text, count=group.count, why=why, examples=tuple(examples)))
        return tuple(documents)


def _shared(group: _Group, request: Request, fit_cache: FitCache) -> str:
    """Describe the refusal that nodes with different numbers share; empty if there is no text for it."""
    [*_, example] = group.best[0]
    found = fit_cache.place(request, example.snapshot) if example.snapshot else None
    return f"{NOT_ENOUGH_FREE} ({found.cause})" if isinstance(found, Rejection) and found.cause else ""


def _cause(text: str) -> str:
    """Return the text without a node's numbers and addresses: `10 VFs` and `3 VFs` are `N VFs`."""
    return _NUMBER.sub("N", _ADDRESS.sub("ADDRESS", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainQuery:
    """The nodes to show one by one: these, or every one. If neither is set, all are shown in groups."""

    nodes: tuple[NodeName, ...] = ()
    every: bool = False


GROUPS = ExplainQuery()


@dataclass(slots=True, kw_only=True)
class Explainer:
    """Explains pods.

    nodes: the names of all known nodes. role: the state of this process. clock: seconds, monotonic.
    max_age_s: a node's state that is younger is not requested again.
    """

    cache: SchedulerCache
    pods: PodExplainer
    states: NodeSource
    nodes: Callable[[], Collection[NodeName]]
    role: Callable[[], ExtenderState]
    clock: Callable[[], float]
    max_age_s: float
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def explain(self, namespace: str, name: str, query: ExplainQuery = GROUPS) -> Explanation | str:
        """Return the document; or why there is no document."""
        async with self._turn:
            pod = await self.pods.find(namespace, name)
            return pod if isinstance(pod, str) else await self._explain(pod, query)

    async def _explain(self, pod: KnownPod, query: ExplainQuery) -> Explanation:
        names = sorted(self.nodes())
        groups: tuple[Group, ...] = ()
        explanations: tuple[NodeExplanation, ...] = ()
        if pod.request and not (pod.view and pod.view.finished):
            shown = query.nodes or names
            await self._refresh(shown)
            judged_nodes = self._judge(pod, pod.request, shown)
            if query.nodes or query.every:
                fit_cache = self.cache.fit_cache
                explanations = tuple(
                    [explain_node(judged, pod.request, fit_cache) async for judged in judged_nodes]
                )
            else:
                groups = await self._grouped(judged_nodes, pod.request)
        return self._document(pod, len(names), groups, explanations)

    def _document(
        self, pod: KnownPod, known_nodes: int, groups: tuple[Group, ...], nodes: tuple[NodeExplanation, ...]
    ) -> Explanation:
        refused = self._refused(pod)
        return Explanation(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            extender=self.role(),
            state=self._state_of(pod, refused=refused is not None),
            priority=pod.priority,
            interfaces=requested_interfaces(pod.request) if pod.request else (),
            reserved_mbps=Share.of_request(pod.request).mbps if pod.request else 0,
            policy=pod.request.policy if pod.request else PfPolicy.ANY,
            malformed=pod.malformed,
            not_allowed=pod.not_allowed,
            places=self.pods.places(pod),
            nominated="" if self._stale(pod) else self._nominated(pod),
            refused=refused,
            limit=self.cache.limits.use(pod.namespace),
            limit_refusal=self._beyond(pod),
            obstacles=gates_obstacles(pod.view.gates) if pod.view else (),
            nodes_known=known_nodes,
            groups=groups,
            nodes=nodes,
            notes=(*pod.notes, *self.pods.bypass_notes(pod), *self._stale(pod)),
        )

    def _nominated(self, pod: KnownPod) -> str:
        return (pod.view.nominated or "") if pod.view else ""

    def _stale(self, pod: KnownPod) -> tuple[str, ...]:
        """Return notes about an expired nomination, which holds no place any more."""
        node = self._nominated(pod)
        if not node or not self.cache.nominations.expired(pod.uid):
            return ()
        note = (
            f"its status.nominatedNodeName is {node} still, where nothing is held for it any more, while "
            "kube-scheduler counts what it requests there against pods of no higher priority: if it does not "
            "come to be bound, clear that, see extender.md#preemption"
        )
        return (note,)

    def _refused(self, pod: KnownPod) -> Refused | None:
        attempt = self.pods.attempts.last_of(pod.uid)
        if attempt is None:
            return None
        verb, ago_s = attempt.outcome.verb, round(self.clock() - attempt.refused_at, 3)
        return Refused(verb=verb, ago_s=ago_s, text=attempt.why, causes=attempt.causes)

    def _beyond(self, pod: KnownPod) -> str:
        """Return the part of the limit that the pod exceeds; empty for a bound pod."""
        if not pod.request or (pod.view and pod.view.node):
            return ""
        return self.cache.limits.refusal(pod.namespace, pod.uid, pod.request) or ""

    def _state_of(self, pod: KnownPod, *, refused: bool) -> PodState:
        if pod.view and pod.view.finished:
            return "finished"
        if pod.view and pod.view.node:
            return "bound"
        if pod.request is not None and not pod.request:
            return "no-rdma"
        if self.cache.state.nodes_of(pod.uid):
            return "binding"
        if self._nominated(pod) and not self._stale(pod):
            return "nominated"
        return "refused" if refused or pod.malformed else "waiting"

    async def _refresh(self, names: Collection[NodeName]) -> None:
        """Refresh the states of these nodes; a node that does not answer delays the request only briefly."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ASK_S):
                await self.states.refresh(names, newer_than=self.clock() - self.max_age_s)

    async def _judge(
        self, pod: KnownPod, request: Request, names: Iterable[NodeName]
    ) -> AsyncIterator[JudgedNode]:
        """Judge each node as filter would, in slices."""
        fit_cache, began = self.cache.fit_cache, self.clock()
        sliced = began
        for node in names:
            if self.clock() - sliced > _SLICE_S:
                await asyncio.sleep(0)
                sliced = self.clock()
            if (snapshot := self._snapshot(pod, node)) is None:
                yield JudgedNode(node, None, None, self.cache.state.why_unreadable(node))
                continue
            verdict = fit_cache.cached_verdict(request, snapshot, pod.namespace)
            if (verdict is None or verdict is COUNTED) and sliced - began < _SEARCH_S:
                verdict = fit_cache.verdict(request, snapshot, pod.namespace)
            yield JudgedNode(node, snapshot, verdict)

    def _snapshot(self, pod: KnownPod, node: NodeName) -> NodeSnapshot | None:
        """Return the node's snapshot for this pod: without its reservation, with nominated pods."""
        holding = self.cache.nominations.against(node, pod.uid, pod.priority)
        if holding or node in self.cache.state.nodes_of(pod.uid):
            return self.cache.state.snapshot_if(node, excluded=[pod.uid], holding=holding)
        return self.cache.state.snapshots.get(node)

    async def _grouped(self, judged_nodes: AsyncIterator[JudgedNode], request: Request) -> tuple[Group, ...]:
        groups = Groups()
        async for node in judged_nodes:
            groups.add(node)
        return await groups.documents(request, self.cache.fit_cache)
