"""Policies of a simulation: rules for the choice of a node among those that take a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from k8s_rdma.core.fit import NodeState
from k8s_rdma.core.offers import WHOLE, Worth, bandwidth_share, fullness, room_of
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import pf_worths
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import Strategy
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.cluster import Cluster, Fit, PlannedPlacement

if TYPE_CHECKING:
    from k8s_rdma.core.inventory import Inventory

TENTH = WHOLE // 10
"""One of the scores 0 to 10 of a scheduler extender."""


class Mix:
    """The requests that arrive, each with its share of arrivals, and the bandwidth that they cannot use."""

    def __init__(self, cluster: Cluster, shares: Mapping[Request, float]) -> None:
        self._cluster = cluster
        self._shares = shares
        self._unusable: WeakKeyDictionary[NodeState, float] = WeakKeyDictionary()

    def unusable_mbps(self, state: NodeState) -> float:
        """Return the free bandwidth of a node that the next pod cannot use, as a mean over the mix.

        A pod can use the PFs that take its smallest interface, if the node takes the pod: the fragmentation
        of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), with PFs for GPUs.
        """
        found = self._unusable.get(state)
        if found is None:
            total = sum(self._shares.values())
            found = sum(
                share / total * self._unusable_by(request, state) for request, share in self._shares.items()
            )
            self._unusable[state] = found
        return found

    def _unusable_by(self, request: Request, state: NodeState) -> int:
        if self._cluster.fit(request, state) is None:
            return free_mbps(state)
        least_mbps = min(interface.min_tx_rate_mbps for interface in request.interfaces)
        rooms = [room_of(pf, state.used.get(pf.pci, NOTHING_USED)) for pf in state.inventory.pfs]
        return sum(room.mbps for room in rooms if room.mbps < least_mbps or not room.vfs)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node in this state that takes the request, with its score, in a cluster where this mix arrives."""

    cluster: Cluster
    mix: Mix
    state: NodeState
    request: Request
    fit: Fit

    def outcome(self) -> PlannedPlacement:
        """Return the node with the pod on it."""
        found = self.cluster.outcome(self.request, self.state)
        if found is None:
            msg = f"{self.state.inventory.node} fits the request, and has no placement for it"
            raise TypeError(msg)
        return found


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule for the choice of a node.

    strategy: of the PFs of a node. worth: of a node that takes the pod, from 0 on: the largest one is chosen,
    and among equal ones one by lot. in_order: instead, the first node that takes it.
    """

    strategy: Strategy
    worth: Callable[[Candidate], int]
    in_order: bool = False


def _score(candidate: Candidate) -> int:
    return candidate.fit.score


def _tenths(candidate: Candidate) -> int:
    return candidate.fit.score // TENTH


def _equal(_candidate: Candidate) -> int:
    return 0


def _least_capacity(candidate: Candidate) -> int:
    """Prefer nodes with less free bandwidth."""
    return link_mbps(candidate.state.inventory) - free_mbps(candidate.state)


def _least_fragmentation(candidate: Candidate) -> int:
    """Prefer nodes on which less bandwidth becomes unusable for the mix; of equal ones the higher score."""
    unusable = candidate.mix.unusable_mbps
    increase_mbps = unusable(candidate.outcome().state) - unusable(candidate.state)
    return round(link_mbps(candidate.state.inventory) - increase_mbps) * (WHOLE + 1) + candidate.fit.score


def _best_fit(candidate: Candidate) -> int:
    """Prefer nodes on which the pod's PFs are fuller."""
    return _weighted(candidate, bandwidth_share, node_percent=0)


def _fullest(candidate: Candidate) -> int:
    """Prefer nodes whose PFs are fuller, by the larger share of VFs or bandwidth."""
    return _weighted(candidate, fullness, node_percent=50)


def _weighted(candidate: Candidate, worth: Worth, node_percent: int) -> int:
    """Return the mean worth of the PFs of the pod's interfaces and of the node's PFs, in this proportion."""
    state, interfaces = candidate.outcome()
    worths = pf_worths(state.inventory, state.used, worth)
    placed = sum(worths[pci] * number for pci, number in interfaces.items()) / sum(interfaces.values())
    node = sum(worths.values()) / len(worths)
    return round(placed * (100 - node_percent) + node * node_percent)


POLICIES: dict[str, Policy] = {
    **{strategy.value: Policy(strategy, _score) for strategy in Strategy},
    "binpack-tenths": Policy(Strategy.BINPACK, _tenths),
    "fullest": Policy(Strategy.BINPACK, _fullest),
    "best-fit": Policy(Strategy.BINPACK, _best_fit),
    "least-fragmentation": Policy(Strategy.BINPACK, _least_fragmentation),
    "least-capacity": Policy(Strategy.BINPACK, _least_capacity),
    "first-fit": Policy(Strategy.BINPACK, _equal, in_order=True),
    "random": Policy(Strategy.BINPACK, _equal),
}
"""The extender's strategies by its scores, and others to compare them with."""


def policy_of(name: str) -> Policy:
    """Find a policy. MalformedError names those that there are."""
    if name not in POLICIES:
        msg = f"policy {name}: wanted one of {', '.join(POLICIES)}"
        raise MalformedError(msg)
    return POLICIES[name]


def link_mbps(inventory: Inventory) -> int:
    """Return the bandwidth of the links that are up."""
    return sum(pf.link_mbps or 0 for pf in inventory.pfs)


def free_mbps(state: NodeState) -> int:
    """Return the bandwidth that is not reserved."""
    return sum(room_of(pf, state.used.get(pf.pci, NOTHING_USED)).mbps for pf in state.inventory.pfs)
