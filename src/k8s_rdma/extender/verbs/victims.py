"""Whose eviction makes a pod fit on a node: the scheduler's choice, made more or less.

kube-scheduler chooses by what it counts itself, and takes the fewest: with any of its victims back the pod
would not fit. It does not look again after the extender. So more may be added to its victims (a pod that fits
by its own filters still does when more pods are gone), chosen as it chooses: all of lower priority, then each
put back that is not needed, those first whose eviction a disruption budget does not allow, the important ones
first.

One of its own victims is dropped only where that surely leaves the pod fitting. That is so when it goes by
itself; and when it takes nothing of its node but what it requests (`wire.pod_spec.demand_of`), the victims
that were added free at least as much of everything, places for pods among it, and the pod that waits does not
care who is beside it (no affinity, no topology spread, no claimed device). The latter is the ordinary case of
VFs that are counted: the scheduler knows that one VF must go, and not which one has the bandwidth. At least
one stays: a node without victims fails the whole call.

Source: `SelectVictimsOnNode`, `pkg/scheduler/framework/plugins/defaultpreemption`, and `MoreImportantPod`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.quantities import covers
from k8s_rdma.extender.cluster.occupants import Occupant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from k8s_rdma.extender.verbs.budgets import Budgets

    Fits: TypeAlias = "Callable[[Collection[PodUid]], Awaitable[bool]]"

_NOT_STARTED = "~"
"""Sorts behind every time: such a pod has just come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The scheduler's victims on a node.

    uids: in its order, the important ones first. known: those that something is known of. going: those that
    go by themselves. violations: how many evictions it says no budget allows. replaceable: whether the pod
    that waits does not care who is beside it.
    """

    uids: tuple[PodUid, ...]
    known: Mapping[PodUid, Occupant]
    going: Collection[PodUid] = ()
    violations: int = 0
    replaceable: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whom to evict, the important ones first; how many of these evictions no budget allows."""

    uids: tuple[PodUid, ...]
    violations: int


async def choose(sent: Sent, others: Iterable[Occupant], budgets: Budgets, fits: Fits) -> Chosen | None:
    """The victims that make the pod fit, None when there are none that do.

    others: who may be evicted as well. fits: whether the pod fits without those pods; asked once for each
    that may stay, so it lets others run in between.
    """
    needed = tuple(uid for uid in sent.uids if uid not in sent.going) or sent.uids
    if await fits(needed):
        return _chosen(sent, needed, (), budgets) if needed else None
    more = {pod.uid: pod for pod in others if pod.uid not in needed}
    evicted = {*needed, *more}
    if not more or not await fits(evicted):
        return None
    for uid in _reprieve_order([*_known(sent, needed), *more.values()], budgets):
        if uid in more and await fits(evicted - {uid}):
            evicted.discard(uid)
    added = [pod for pod in more.values() if pod.uid in evicted]
    if sent.replaceable:
        evicted -= await _replaced(_known(sent, needed), added, lambda kept: fits(evicted - kept), budgets)
    return _chosen(sent, [uid for uid in needed if uid in evicted], added, budgets)


async def _replaced(
    victims: Iterable[Occupant],
    added: Iterable[Occupant],
    fits_with: Callable[[set[PodUid]], Awaitable[bool]],
    budgets: Budgets,
) -> set[PodUid]:
    """The victims whose place those that were added take."""
    demands = {pod.uid: pod.demand for pod in victims if pod.demand is not None}
    freed = [pod.demand for pod in added if pod.demand is not None]
    kept: set[PodUid] = set()
    for uid in _reprieve_order(victims, budgets):
        tried = {*kept, uid}
        if uid in demands and covers(freed, [demands[each] for each in tried]) and await fits_with(tried):
            kept = tried
    return kept


def _chosen(sent: Sent, left: Iterable[PodUid], added: Iterable[Occupant], budgets: Budgets) -> Chosen:
    """The scheduler's count stands, but for what the change makes of it: it knows more pods and budgets."""
    uids = _in_order(sent, left, added)
    before = budgets.violating(_important_first(sent.known.values()))
    after = budgets.violating(_important_first([*_known(sent, uids), *added]))
    return Chosen(uids, max(0, sent.violations + len(after) - len(before)))


def _known(sent: Sent, uids: Iterable[PodUid]) -> list[Occupant]:
    return [sent.known[uid] for uid in uids if uid in sent.known]


def _reprieve_order(pods: Iterable[Occupant], budgets: Budgets) -> list[PodUid]:
    ordered = _important_first(pods)
    violating = budgets.violating(ordered)
    return [pod.uid for pod in sorted(ordered, key=lambda pod: pod.uid not in violating)]


def _important_first(pods: Iterable[Occupant]) -> list[Occupant]:
    return sorted(pods, key=_rank)


def _rank(pod: Occupant) -> tuple[int, str, str]:
    """The higher priority first, then who has run for longer; UIDs make it the same each time."""
    return -pod.priority, pod.started or _NOT_STARTED, pod.uid


def _in_order(sent: Sent, left: Iterable[PodUid], added: Iterable[Occupant]) -> tuple[PodUid, ...]:
    """The scheduler takes the first one's priority for the highest; its own order stands.

    One of which nothing is known holds no interfaces, and is taken to be the lesser.
    """
    ordered, known = list(left), dict(sent.known)
    for pod in _important_first(added):
        lesser = (at for at, uid in enumerate(ordered) if uid not in known or _rank(pod) < _rank(known[uid]))
        ordered.insert(next(lesser, len(ordered)), pod.uid)
        known[pod.uid] = pod
    return tuple(ordered)
