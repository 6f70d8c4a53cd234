"""Judgements of whether a node takes a request, and how well: by counting if that decides, else by a search.

Nodes of equal hardware and equal use share one state, so that each judgement is found once. The extender
keeps judgements by owner (`extender.fit_cache`), planning in a dictionary (`planning.cluster`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from k8s_rdma.core.devices.placement import devices_on
from k8s_rdma.core.offers import Bounds, Headroom, worth_to
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import Placement, Rejection, place, score, score_after
from k8s_rdma.core.types import PciAddress, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from k8s_rdma.core.inventory import Inventory
    from k8s_rdma.core.request import Request


class NodeState:
    """PFs, their use, and GPUs: all that a placement depends on.

    Equal nodes share one object, which is compared by identity, so that it is a quick key. Nodes of equal
    hardware share one inventory, so `inventory.node` is the name of any of them.

    headroom: the free capacity of the PFs, to count with; None if `used` is not whole, and decisions fail.
    """

    __slots__ = ("__weakref__", "headroom", "inventory", "used")

    def __init__(self, inventory: Inventory, used: Mapping[PciAddress, Used]) -> None:
        self.inventory = inventory
        self.used = used
        self.headroom = Headroom.of_node(inventory, used)


S = TypeVar("S", bound=NodeState)


class NodeStates(Generic[S]):
    """The states that nodes are in, each once, and the latest ones, which may come again."""

    def __init__(self, kind: Callable[[Inventory, Mapping[PciAddress, Used]], S], latest: int = 0) -> None:
        """kind: makes a state. latest: how many are remembered though no node is in them any more."""
        self._kind = kind
        self._latest: deque[S] = deque(maxlen=latest)
        self._states: WeakValueDictionary[tuple[Hashable, tuple[Used, ...]], S] = WeakValueDictionary()
        self._inventories: WeakValueDictionary[Hashable, Inventory] = WeakValueDictionary()

    def find(self, inventory: Inventory, used: Mapping[PciAddress, Used]) -> S:
        """Return the state of a node with this hardware and use."""
        hardware = inventory.hardware
        key = hardware, tuple([used.get(pf.pci, NOTHING_USED) for pf in inventory.pfs])
        state = self._states.get(key)
        if state is None:
            shared = self._inventories.setdefault(hardware, inventory)
            state = self._states[key] = self._kind(shared, used)
            self._latest.append(state)
        return state


class Counted(NamedTuple):
    """A placement that counting alone finds.

    interfaces: how many it has on each PF.
    used: the use of all PFs with it.
    """

    interfaces: Mapping[PciAddress, int]
    used: Mapping[PciAddress, Used]


def bounds_of(request: Request, inventory: Inventory) -> Bounds | None:
    """Return the bounds by which a request is counted on hardware, if counting decides it."""
    return None if devices_on(request, inventory) else Bounds.for_pfs(request, inventory)


class FitEngine:
    """Judges requests. strategy: says which of the fits are the better ones."""

    __slots__ = ("_counts", "strategy")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._counts = strategy is Strategy.BINPACK

    def place(self, request: Request, state: NodeState) -> Placement | Rejection:
        """Search for a placement."""
        return place(request, state.inventory, state.used, strategy=self.strategy)

    def count(self, bounds: Bounds | None, state: NodeState) -> Counted | None:
        """Count out the placement that `place` finds.

        There is no result if counting does not decide it, or the request does not fit.

        bounds: the request's on this hardware.
        """
        headroom = state.headroom
        if not self._counts or bounds is None or headroom is None:
            return None
        placed = bounds.best_fit(headroom)
        if placed is None:
            return None
        pfs, used = state.inventory.pfs, state.used
        numbers, after = {}, {**used}
        for index, costs in placed.items():
            pf = pfs[index]
            mins = tuple(filter(None, costs)) if pf.rates.weights else ()
            numbers[pf.pci] = len(costs)
            after[pf.pci] = used.get(pf.pci, NOTHING_USED) + Used(len(costs), sum(costs), mins)
        return Counted(numbers, after)

    def score(self, request: Request, state: NodeState, placed: Placement | Counted) -> int:
        """Return the score of a placement, in thousandths."""
        if isinstance(placed, Counted):
            worth = worth_to(self.strategy, reserving=request.reserves_bandwidth)
            return score_after(placed.interfaces, state.inventory, placed.used, worth)
        return score(placed, state.inventory, state.used, self.strategy)
