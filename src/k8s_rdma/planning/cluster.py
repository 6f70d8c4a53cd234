"""Cluster in memory: the nodes that take a request, the node that it goes to, and the use by pods.

Placement, scores and accounts are those of `core`, by which the extender decides. Nodes of equal hardware and
equal use share one state, and the judgements on it: each is found once, by counting alone if that decides.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from k8s_rdma.core.allocation import used_on_node
from k8s_rdma.core.fit import FitEngine, NodeState, NodeStates, bounds_of
from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.offers import Bounds
from k8s_rdma.core.pf_use import NOTHING_USED, Used, total
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, usage_of
from k8s_rdma.core.types import NodeName, PciAddress, PodUid, Strategy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from k8s_rdma.core.request import Request

_MOST_REQUESTS = 256
"""Requests whose judgements are kept."""

_RECENT_STATES = 20_000
"""States that are kept with the judgements on them, though no node may be in them; most come again soon."""


class Fit(NamedTuple):
    """The judgement that a node takes a request, with its score in thousandths."""

    score: int


class PlannedPlacement(NamedTuple):
    """The state of a node with one more pod, and how many interfaces the pod has on each PF."""

    state: NodeState
    interfaces: Mapping[PciAddress, int]


@dataclass(slots=True)
class PlannedNode:
    """A node and the interfaces of its pods. foreign: the VFs that others than pods hold."""

    inventory: Inventory
    foreign: Mapping[PciAddress, Used] = field(default_factory=dict)
    pods: dict[PodUid, tuple[PlacedInterface, ...]] = field(default_factory=dict)

    def used(self) -> dict[PciAddress, Used]:
        """Add up the use of each PF."""
        return used_on_node(reported=self.pods, foreign=self.foreign, promised={}, inventory=self.inventory)

    def devices(self, vf_resource: str | None) -> Counter[str]:
        """Count the devices of each resource that kubelet has; vf_resource: by which VFs are counted."""
        found = Counter[str]()
        for pf in self.inventory.pfs:
            found.update(pf.pools)
            if vf_resource is not None:
                foreign = self.foreign.get(pf.pci, NOTHING_USED)
                found[vf_resource] += max(0, pf.capacity_vfs - foreign.vfs)
        return found


@dataclass(slots=True)
class _Judgements:
    """Judgements on one request: its score if it fits and its placement, by state; bounds by inventory.

    bounds: by the identity of the inventory, which stands beside them so that it stays theirs.
    """

    fits: WeakKeyDictionary[NodeState, Fit | None] = field(default_factory=WeakKeyDictionary)
    placements: WeakKeyDictionary[NodeState, Placement | Rejection] = field(default_factory=WeakKeyDictionary)
    bounds: dict[int, tuple[Inventory, Bounds | None]] = field(default_factory=dict)


_NOT_JUDGED = Fit(-1)


class Cluster:
    """Nodes and the pods on them. strategy: which of the nodes and PFs that fit are the better ones."""

    def __init__(self, strategy: Strategy = Strategy.BINPACK) -> None:
        self.strategy = strategy
        self._nodes: dict[NodeName, PlannedNode] = {}
        self._states: dict[NodeName, NodeState] = {}
        self._engine = FitEngine(strategy)
        self._interned = NodeStates(NodeState, _RECENT_STATES)
        self._judgements: OrderedDict[Request, _Judgements] = OrderedDict()

    def copy(self, strategy: Strategy | None = None) -> Cluster:
        """Copy the nodes and the pods on them, perhaps for another strategy."""
        copied = Cluster(strategy or self.strategy)
        copied._nodes = {name: replace(node, pods=dict(node.pods)) for name, node in self._nodes.items()}
        copied._states = dict(self._states)
        copied._interned = self._interned
        if copied.strategy is self.strategy:
            copied._judgements = self._judgements
        return copied

    def __contains__(self, name: NodeName) -> bool:
        """Report whether there is such a node."""
        return name in self._nodes

    def __iter__(self) -> Iterator[NodeName]:
        """Iterate over the names of nodes, in the order in which they were added."""
        return iter(self._nodes)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def node(self, name: NodeName) -> PlannedNode:
        """Return the node, to be read only. KeyError if it does not exist."""
        return self._nodes[name]

    def state(self, name: NodeName) -> NodeState:
        """Return the node's state. KeyError if it does not exist."""
        return self._states[name]

    def state_without(self, name: NodeName, uids: Collection[PodUid]) -> NodeState:
        """Return the node's state without those pods. KeyError if there is no such node."""
        node = self._nodes[name]
        pods = {uid: interfaces for uid, interfaces in node.pods.items() if uid not in uids}
        return self._interned.find(node.inventory, replace(node, pods=pods).used())

    def pods(self) -> dict[PodUid, NodeName]:
        """Return the pods that hold interfaces, with their nodes."""
        return {uid: name for name, node in self._nodes.items() for uid in node.pods}

    def add_node(self, name: NodeName, node: PlannedNode) -> None:
        """Add a node, or replace the one of that name."""
        self._nodes[name] = node
        self._states[name] = self._interned.find(node.inventory, node.used())

    def remove_node(self, name: NodeName) -> PlannedNode:
        """Remove a node with the pods on it. KeyError if it does not exist."""
        del self._states[name]
        return self._nodes.pop(name)

    def bind(self, uid: PodUid, placement: Placement) -> None:
        """Have a pod that is not on the node yet hold the placement there."""
        node, state = self._nodes[placement.node], self._states[placement.node]
        node.pods[uid] = placement.interfaces
        used = total(state.used, usage_of(placement.interfaces, node.inventory))
        self._states[placement.node] = self._interned.find(node.inventory, used)

    def release(self, uid: PodUid, name: NodeName) -> None:
        """Release the interfaces of a pod on the node. KeyError if it has no interfaces there."""
        node = self._nodes[name]
        del node.pods[uid]
        self._states[name] = self._interned.find(node.inventory, node.used())

    def fit(self, request: Request, state: NodeState) -> Fit | None:
        """Return the score of the request on a state, if it fits."""
        fits = self._judgements_on(request).fits
        found = fits.get(state, _NOT_JUDGED)
        if found is _NOT_JUDGED:
            found = fits[state] = self._judge(request, state)
        return found

    def place(self, request: Request, name: NodeName) -> Placement | Rejection:
        """Place the request on a node as it is now."""
        return replace(self._place(request, self._states[name]), node=name)

    def best(self, request: Request, names: Collection[NodeName] | None = None) -> NodeName | None:
        """Return the node of the highest score, if it fits on any; of equal ones the first by name."""
        scores = (
            (-found.score, name)
            for name in (self if names is None else names)
            if (found := self.fit(request, self._states[name])) is not None
        )
        return min(scores, default=(0, None))[1]

    def room_for(self, request: Request, state: NodeState, limit: int) -> int:
        """Count the pods of this request that a node in this state takes one after the other, up to a limit.

        The request must ask for interfaces.
        """
        bounds = self._bounds_of(request, state.inventory)
        places = bounds.places(state.inventory, state.used) if bounds else None
        if places is not None:
            return min(limit, places // len(request.interfaces))
        count = 0
        while count < limit and (outcome := self.outcome(request, state)) is not None:
            state = outcome.state
            count += 1
        return count

    def outcome(self, request: Request, state: NodeState) -> PlannedPlacement | None:
        """Return the state with one more such pod, if it fits."""
        counted = self._engine.count(self._bounds_of(request, state.inventory), state)
        if counted is not None:
            return PlannedPlacement(self._interned.find(state.inventory, counted.used), counted.interfaces)
        found = self._place(request, state)
        if isinstance(found, Rejection):
            return None
        after = self._interned.find(state.inventory, total(state.used, found.usage(state.inventory)))
        return PlannedPlacement(after, Counter(interface.pf for interface in found.interfaces))

    def _judgements_on(self, request: Request) -> _Judgements:
        found = self._judgements.get(request)
        if found is None:
            while len(self._judgements) >= _MOST_REQUESTS:
                self._judgements.popitem(last=False)
            found = self._judgements[request] = _Judgements()
        return found

    def _place(self, request: Request, state: NodeState) -> Placement | Rejection:
        placements = self._judgements_on(request).placements
        found = placements.get(state)
        if found is None:
            found = placements[state] = self._engine.place(request, state)
        return found

    def _judge(self, request: Request, state: NodeState) -> Fit | None:
        bounds = self._bounds_of(request, state.inventory)
        counted = self._engine.count(bounds, state)
        if counted is not None:
            return Fit(self._engine.score(request, state, counted))
        if bounds is not None and state.headroom is not None and bounds.fits(state.headroom) is False:
            return None
        found = self._place(request, state)
        return None if isinstance(found, Rejection) else Fit(self._engine.score(request, state, found))

    def _bounds_of(self, request: Request, inventory: Inventory) -> Bounds | None:
        by_inventory = self._judgements_on(request).bounds
        found = by_inventory.get(id(inventory))
        if found is None:
            found = by_inventory[id(inventory)] = inventory, bounds_of(request, inventory)
        return found[1]
