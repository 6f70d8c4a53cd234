"""Texts of refusals in an answer of filter: with each node's figures while they are few, else by cause.

kube-scheduler shows how many nodes gave each text, without the nodes' names, and cuts its event off after
1,024 characters (source: `FitError.Error`, pkg/scheduler/framework/types.go, and `truncateMessage`,
pkg/scheduler/schedule_one.go). The pod's condition has all of them, and with thousands of texts the pod grows
beyond what the API server stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma.extender.verdicts import Infeasible, Shortage
from k8s_rdma.wire.extender import UNREADABLE_NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.core.shortage import Lack
    from k8s_rdma.core.types import NodeName
    from k8s_rdma.extender.node_cache import ClusterState
    from k8s_rdma.extender.verdicts import Refusal

    Group: TypeAlias = tuple[Refusal | None, Sequence[NodeName]]
    Texts: TypeAlias = dict[str, str]

MOST_TEXTS = 5
"""The number of different texts for which an event has room."""

_UNREADABLE = f"{UNREADABLE_NODE} (for different reasons, which k8s-rdma explain pod shows)"


def texts_of(groups: Sequence[Group], state: ClusterState) -> list[Texts]:
    """Return the text of each node, by groups of nodes with one verdict; None if they cannot be read."""
    different: set[str] = set()
    found: list[Texts] = []
    texts: Texts | None
    for verdict, names in groups:
        if verdict is None:
            texts = _unreadable(names, state)
        elif isinstance(verdict, Infeasible):
            texts = dict.fromkeys(names, verdict.text)
        else:
            texts = _texts_of_nodes(verdict, names, state)
        different.update(texts.values() if texts else ())
        if texts is None or len(different) > MOST_TEXTS:
            return _by_cause(groups, state)
        found.append(texts)
    return found


def _texts_of_nodes(verdict: Shortage, names: Sequence[NodeName], state: ClusterState) -> Texts | None:
    """Return the text of each node; None if they are too many different ones."""
    snapshots = [*map(state.snapshots.__getitem__, names)]
    figures = [*map(verdict.figures, snapshots)]
    different = {*figures}
    if len(different) > MOST_TEXTS:
        return None
    worded = {of_one: verdict.on(snapshots[figures.index(of_one)]).text for of_one in different}
    if len(worded) == 1:
        return dict.fromkeys(names, worded[figures[0]])
    return dict(zip(names, map(worded.__getitem__, figures), strict=True))


def _by_cause(groups: Sequence[Group], state: ClusterState) -> list[Texts]:
    """Return the texts by cause, each with the largest figure of the nodes that have it."""
    largest_figures: dict[Lack, int] = {}
    for verdict, names in groups:
        if isinstance(verdict, Shortage):
            snapshots = map(state.snapshots.__getitem__, names)
            largest, *_ = max(map(verdict.figures, snapshots))
            largest_figures[verdict.lack] = max(largest_figures.get(verdict.lack, 0), largest)
    found: list[Texts] = []
    for verdict, names in groups:
        if verdict is None:
            texts = _unreadable(names, state)
            found.append(texts if len({*texts.values()}) == 1 else dict.fromkeys(names, _UNREADABLE))
        elif isinstance(verdict, Infeasible):
            found.append(dict.fromkeys(names, verdict.cause or verdict.text))
        else:
            found.append(dict.fromkeys(names, verdict.together(largest_figures[verdict.lack])))
    return found


def _unreadable(names: Iterable[NodeName], state: ClusterState) -> Texts:
    return {name: f"{UNREADABLE_NODE} ({state.why_unreadable(name)})" for name in names}
