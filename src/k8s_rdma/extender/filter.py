"""filter and prioritize: which nodes can keep the promise that a pod asks for, and how well.

On each node the promises and assumptions of other pods count, and the pod's own do not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import structlog

from k8s_rdma.core.mention import listed_for
from k8s_rdma.core.offers import WHOLE
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.decision_log import (
    FIT,
    NOTHING_ASKED,
    STARTING_MESSAGE,
    DecisionLog,
    Outcome,
    main_reason,
)
from k8s_rdma.extender.decision_log import STARTING as IS_STARTING
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.refusal_texts import texts_of
from k8s_rdma.extender.requeue import Requeuer
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.extender.search_queue import SearchQueue
from k8s_rdma.extender.verdicts import (
    COUNTED,
    UNRESOLVABLE,
    Feasible,
    Infeasible,
    Refusal,
    Shortage,
    Verdict,
)
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.extender import (
    MAX_SCORE,
    NOT_ENOUGH_FREE,
    Candidate,
    ExtenderArgs,
    ExtenderFilterResult,
    HostPriority,
    NodeList,
    sentence_of,
)

if TYPE_CHECKING:
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
    from k8s_rdma.extender.pod_requests import PendingPod

    Interfaces = tuple[PlacedInterface, ...]

_LATE_S = 0.05
"""Processor time for the situations that came up while others were searched."""

_COUNTED_AT_ONCE = 256
"""Nodes on which a request is counted in one go; that takes 0.1 ms, and 2 ms if all refuse it."""


NOT_SEARCHED = Infeasible(
    Reason.UNDECIDED,
    f"{NOT_ENOUGH_FREE} (not known: this request is new and takes long to place on many nodes; tried again)",
)


_log = structlog.get_logger()

_BEST = 4
"""The number of fitting nodes on which a place is searched; the first has one."""

_TENTHS = [min(MAX_SCORE - 1, MAX_SCORE * score // WHOLE) for score in range(WHOLE + 1)]
"""Scores by thousandths, with room for one more."""


class _Pass(NamedTuple):
    """One check of many nodes: the cached verdicts on the request, and the deadline for searching others.

    To look up these verdicts takes every interface of the request, and there may be a thousand.
    """

    verdicts: Mapping[NodeSnapshot | None, Verdict]
    deadline: float


@dataclass(slots=True, kw_only=True)
class FeasibilityChecker:
    """Checks whether nodes fit a pod: the verdicts of one filter.

    cache: nominated pods count against pods of no higher priority. Assumed pods only steer: except for the
        places of gangs, they do not keep a pod from the only node that fits.
    clock: seconds, monotonic.
    detail: the amount of detail in refusals.
    queue: decides which search is next, and counts its processor time.
    search_s: processor time that one call may take to search for placements of a request that is new on many
        nodes; the nodes that this does not reach are refused, and searched next time.
    wait_s: the time that the searches of a call may take, because others search as well.
    """

    cache: SchedulerCache
    clock: Callable[[], float]
    detail: Detail = Detail.NUMBERS
    queue: SearchQueue = field(default_factory=SearchQueue)
    search_s: float = 1.0
    wait_s: float = 5.0

    async def search(self, pod: PendingPod, names: Sequence[NodeName], *, scored: bool = False) -> None:
        """Find the verdicts within `search_s`. scored: with the scores of nodes that fit.

        Searches run in between other work: each may take 10 ms, and every node may need one.
        """
        cached = self.cache.fit_cache.verdicts(pod.request, pod.namespace)
        special = self._special(pod)
        current = dict.fromkeys(map(self.cache.state.snapshots.get, names))
        if special:
            against = self.cache.assumed_pods.against
            current |= dict.fromkeys(
                self.cache.snapshot(pod, name, assumed=against(name, pod.uid))
                for name in filter(special.__contains__, names)
            )
        unseen = [
            snapshot
            for snapshot in current
            if snapshot is not None and (snapshot not in cached or (scored and cached[snapshot] is COUNTED))
        ]
        if not unseen:
            return
        deadline = self.clock() + self.wait_s
        async with self.queue.turn(pod.namespace) as turn:
            for start in range(0, len(unseen), _COUNTED_AT_ONCE):
                situations = unseen[start : start + _COUNTED_AT_ONCE]
                if not scored:
                    situations = self.cache.fit_cache.count(pod.request, situations, pod.namespace)
                    await turn.give_way()
                for situation in situations:
                    self.cache.fit_cache.verdict(pod.request, situation, pod.namespace)
                    if turn.used_s > self.search_s or self.clock() > deadline:
                        return
                    await turn.give_way()

    def on(self, pod: PendingPod, names: Sequence[NodeName]) -> list[tuple[NodeName, Verdict | None]]:
        """Return the verdict on each node, None if it cannot be read; no other task runs meanwhile."""
        special = self._special(pod)
        found = self._check_nodes(pod, names, special)
        expected = special & self.cache.assumed_pods.holds.nodes()
        if expected and not any(isinstance(verdict, Feasible) for _, verdict in found):
            found = self._check_nodes(pod, names, special, steering=False)
        return found

    def _check_nodes(
        self,
        pod: PendingPod,
        names: Sequence[NodeName],
        special: frozenset[NodeName],
        *,
        steering: bool = True,
    ) -> list[tuple[NodeName, Verdict | None]]:
        """Look up most nodes, because there may be thousands, and check the special ones."""
        cached = cast(
            "Mapping[NodeSnapshot | None, Verdict]", self.cache.fit_cache.verdicts(pod.request, pod.namespace)
        )
        found = dict(zip(names, map(cached.get, map(self.cache.state.snapshots.get, names)), strict=True))
        if special or not all(found.values()):
            filter_pass = _Pass(cached, self.queue.clock() + _LATE_S)
            unknown = special.union([name for name, verdict in found.items() if verdict is None])
            for name in filter(unknown.__contains__, names):
                found[name] = self._check_node(pod, name, filter_pass, steering=steering)
        return [*found.items()]

    def _check_node(
        self, pod: PendingPod, name: NodeName, filter_pass: _Pass, *, steering: bool
    ) -> Verdict | None:
        """Check one node; steering: count all assumed pods, not only those that keep the pod out."""
        snapshot = self.cache.snapshot(pod, name)
        if snapshot is None:
            return None
        verdict = self._verdict(pod, snapshot, filter_pass)
        if not isinstance(verdict, Feasible):
            return verdict
        expected = (
            self.cache.assumed_pods.against(name, pod.uid)
            if steering
            else self.cache.assumed_pods.blocking(name, pod)
        )
        with_assumed = self.cache.snapshot(pod, name, assumed=expected)
        if with_assumed is None or with_assumed is snapshot:
            return verdict
        steered = self._verdict(pod, with_assumed, filter_pass)
        return steered if isinstance(steered, Feasible) else self._assumed_elsewhere(pod, name)

    def _verdict(self, pod: PendingPod, snapshot: NodeSnapshot, filter_pass: _Pass) -> Verdict:
        """Return the verdict, in words if it refuses the pod."""
        verdict = filter_pass.verdicts.get(snapshot)
        if verdict is None and self.queue.clock() < filter_pass.deadline:
            return self.cache.fit_cache.verdict(pod.request, snapshot, pod.namespace)
        if isinstance(verdict, Shortage):
            return verdict.on(snapshot)
        return verdict or NOT_SEARCHED

    def _special(self, pod: PendingPod) -> frozenset[NodeName]:
        """Return the nodes whose situation differs for this pod, for example by its own reservation."""
        self.cache.assumed_pods.hold_assumed(pod.uid)
        return (
            self.cache.state.nodes_of(pod.uid)
            | self.cache.nominations.nodes()
            | self.cache.assumed_pods.holds.nodes()
        )

    def _assumed_elsewhere(self, pod: PendingPod, name: NodeName) -> Infeasible:
        cause = why = "held for a moment for pods on their way"
        if self.detail is Detail.NUMBERS:
            pods = self.cache.assumed_pods.pod_names(name, pod.uid)
            why = f"{why}: {listed_for(pod.namespace, pods)}"
        text, cause = f"{NOT_ENOUGH_FREE} ({why})", f"{NOT_ENOUGH_FREE} ({cause})"
        return Infeasible(Reason.INSUFFICIENT, text, cause=cause)


@dataclass(slots=True)
class FilterResult:
    """Candidates by verdict: the fitting ones in order, the others with the reason that the scheduler gets.

    awaited: the others that may fit later. reasons: the number of candidates by reason.
    """

    fitting: list[NodeName] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    awaited: list[NodeName] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    @classmethod
    def by_verdict(
        cls, verdicts: Iterable[tuple[NodeName, Verdict | None]], state: ClusterState
    ) -> FilterResult:
        """Sort the nodes; a node without a verdict cannot be read.

        Thousands of nodes share few verdicts, so the consequences of each verdict are found once.
        """
        found = cls()
        refused: dict[int, tuple[Refusal | None, list[NodeName]]] = {}
        for name, verdict in verdicts:
            if isinstance(verdict, Feasible):
                found.fitting.append(name)
            elif (alike := refused.get(id(verdict))) is not None:
                alike[1].append(name)
            else:
                refused[id(verdict)] = verdict, [name]
        groups = [*refused.values()]
        for (misfit, names), texts in zip(groups, texts_of(groups, state), strict=True):
            found._refuse(misfit, names, texts)
        if found.fitting:
            found.reasons[FIT] = len(found.fitting)
        return found

    def _refuse(self, misfit: Refusal | None, names: list[NodeName], texts: Mapping[str, str]) -> None:
        refusals = self.unresolvable if misfit and misfit.reason in UNRESOLVABLE else self.failed
        refusals.update(texts)
        self.reasons[misfit.reason if misfit else Reason.UNREADABLE_NODE] += len(names)
        if misfit is None or misfit.may_pass:
            self.awaited += names

    def reply(self, args: ExtenderArgs, candidates: Sequence[Candidate]) -> ExtenderFilterResult:
        """Return the reply in the request's form: node objects as they came, or names."""
        nodes: NodeList | None = None
        names: list[str] | None = None
        if args.nodes is None:
            names = [*self.fitting]
        else:
            fitting = frozenset(self.fitting)
            items = [candidate.raw for candidate in candidates if candidate.name in fitting]
            nodes = NodeList(metadata=args.nodes.metadata, items=items)
        return ExtenderFilterResult(
            nodes=nodes,
            node_names=names,
            failed_nodes=self.failed,
            failed_and_unresolvable_nodes=self.unresolvable,
        )


@dataclass(slots=True, kw_only=True)
class Scheduling:
    """Answers filter and prioritize.

    clock: seconds, monotonic.
    ready: as in `Binder`.
    max_age_s: a node's state that is younger is not requested again.
    gang_s: how long filter waits for a gang's PodGroup.
    """

    cache: SchedulerCache
    states: NodeSource
    feasibility: FeasibilityChecker
    requeuer: Requeuer
    decision_log: DecisionLog
    clock: Callable[[], float]
    ready: Callable[[], bool]
    max_age_s: float = 1.0
    gang_s: float = 0.3

    async def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Sort the candidates into fitting and refused ones; a bad node or annotation never raises.

        If a pod has no request, its candidates are returned as they came, without decoding them.
        MalformedError if a node object is malformed.
        """
        began = self.clock()
        try:
            pod = self.cache.requests.put(args.pod, began)
        except MalformedError as error:
            return self._refuse(args, began, sentence_of(error), error.message, error.reason)
        if not pod.request:
            self._record("filter", args, began, Counter({NOTHING_ASKED: args.count}))
            return ExtenderFilterResult(nodes=args.nodes, node_names=args.node_names)
        if not self.ready():
            self._record("filter", args, began, Counter(), STARTING_MESSAGE)
            return ExtenderFilterResult(error=STARTING_MESSAGE)
        if nominated_node := args.pod.status.nominated_node_name:
            self.cache.nominations.nominated(pod, NodeName(nominated_node))
        pod = await self._with_gang(pod)
        candidates, names = _candidates(args)
        if refused := self._refused_everywhere(pod, names):
            return self._refuse(args, began, NOT_ENOUGH_FREE, *refused)
        await self._refresh(candidates, names)
        await self.cache.addresses.search(pod, self.feasibility.queue)
        address_conflict = self.cache.addresses.conflict(pod)
        if address_conflict is not None:
            self.cache.assumed_pods.forget(pod.uid)
            self.requeuer.refused(pod.uid, pod.request, [address_conflict.node], pod.namespace)
            _log.info("address_in_use", uid=pod.uid, why=address_conflict.why)
            why = address_conflict.why_for(pod.namespace)
            return self._refuse(args, began, NOT_ENOUGH_FREE, why, Reason.ADDRESS_IN_USE)
        found = await self._sort(pod, names)
        self._record("filter", args, began, found.reasons)
        return found.reply(args, candidates)

    def _refused_everywhere(self, pod: PendingPod, names: Sequence[NodeName]) -> tuple[str, Reason] | None:
        """Return why no node may have the pod: its group, or its namespace's limit."""
        if pod.gang is not None and (composite := self.cache.gangs.composite(pod.gang)):
            self.cache.assumed_pods.forget(pod.uid)
            return composite, Reason.COMPOSITE_GROUP
        gang_holds = self.cache.assumed_pods.mates(pod)
        beyond = self.cache.limits.refusal(pod.namespace, pod.uid, pod.request, added=gang_holds)
        if beyond is None:
            return None
        self._limited(pod, names)
        return beyond, Reason.NAMESPACE_LIMIT

    async def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Return a score for each candidate, 0..10; 0 if it does not fit any more, and for pods without RDMA.

        The best nodes have one more than the tenths of their score, so that they win against nodes of equal
        tenths. While other pods are assumed, only one node is the best, because the next pod's decision
        depends on the node of this one.
        """
        began = self.clock()
        candidates, names = _candidates(args)
        try:
            pod = self.cache.requests.parse(args.pod)
        except MalformedError as error:
            return self._unscored(args, began, names, error.reason)
        if not pod.request or not self.ready():
            return self._unscored(args, began, names, IS_STARTING if pod.request else NOTHING_ASKED)
        pod = self.cache.gangs.judge(pod)
        await self._refresh(candidates, names)
        await self.feasibility.search(pod, names, scored=True)
        found = self.feasibility.on(pod, names)
        scores = {name: _score(verdict) for name, verdict in found}
        sorted_ = FilterResult.by_verdict(found, self.cache.state)
        best = self._expect(pod, scores, sorted_.fitting)
        self._record("prioritize", args, began, sorted_.reasons)
        return [HostPriority(name, _TENTHS[score] + (name in best)) for name, score in scores.items()]

    async def _sort(self, pod: PendingPod, names: list[NodeName]) -> FilterResult:
        await self.feasibility.search(pod, names, scored=pod.gang is not None)
        verdicts = self.feasibility.on(pod, names)
        found = FilterResult.by_verdict(verdicts, self.cache.state)
        self.cache.nominations.filtered(pod.uid, found.failed)
        if pod.gang is not None and found.fitting:
            self._promise(pod, verdicts, found)
        elif found.fitting:  # of several, prioritize says more
            self.cache.assumed_pods.assume(pod, found.fitting if len(found.fitting) == 1 else ())
        else:
            self.cache.assumed_pods.forget(pod.uid)
        if found.fitting or not found.awaited:
            self.requeuer.on_delete(pod.uid)
        else:
            together = pod.gang is not None
            self.requeuer.refused(pod.uid, pod.request, found.awaited, pod.namespace, together=together)
        return found

    def _promise(
        self, pod: PendingPod, verdicts: Iterable[tuple[NodeName, Verdict | None]], found: FilterResult
    ) -> None:
        """Send a gang's pod to the best node alone, so that the next ones count its interfaces there."""
        scores = {name: _score(verdict) for name, verdict in verdicts}
        best = sorted(found.fitting, key=lambda name: -scores[name])
        node = self.cache.assumed_pods.assume_on_first(pod, best[:_BEST])
        found.fitting = [node] if node is not None else []
        if node is None:
            found.failed |= dict.fromkeys(map(str, best), NOT_SEARCHED.text)
            found.awaited += best

    async def _with_gang(self, pod: PendingPod) -> PendingPod:
        """Read the pod's PodGroup; while it is not known, the places of the gang do not keep others out."""
        if pod.gang is None:
            return pod
        with suppress(TimeoutError, *API_ERRORS):
            async with asyncio.timeout(self.gang_s):
                await self.cache.gangs.read(pod.gang)
        return self.cache.gangs.judge(pod)

    async def _refresh(self, candidates: Iterable[Candidate], names: Sequence[NodeName]) -> None:
        """Refresh the nodes' states."""
        for candidate in candidates:
            self.states.suggest(NodeName(candidate.name), candidate.addresses)
        await self.states.refresh(names, newer_than=self.clock() - self.max_age_s)

    def _expect(
        self, pod: PendingPod, scores: Mapping[NodeName, int], fitting: Sequence[NodeName]
    ) -> Collection[NodeName]:
        """Assume the pod on the nodes with the best score, and return them (see `prioritize`)."""
        highest = max((scores[name] for name in fitting), default=0)
        best = [name for name in fitting if scores[name] == highest]
        if pod.gang is not None:
            return frozenset(best)  # filter sent it to one node
        if self.cache.assumed_pods.has_assumed_except(pod.uid):
            best = best[-1:]
        self.cache.assumed_pods.assume(pod, best)
        return frozenset(best)

    def _limited(self, pod: PendingPod, names: Sequence[NodeName]) -> None:
        self.cache.assumed_pods.forget(pod.uid)
        if self.cache.limits.may_pass(pod.namespace, pod.request):
            self.requeuer.limited(pod, names)
        else:
            self.requeuer.on_delete(pod.uid)

    def _refuse(
        self, args: ExtenderArgs, began: float, sentence: str, why: str, reason: Reason
    ) -> ExtenderFilterResult:
        """Refuse all candidates for one reason that no eviction on any of them resolves."""
        candidates, names = _candidates(args)
        self._record("filter", args, began, Counter({reason: len(names)}), why)
        text = f"{sentence} ({why})"
        return FilterResult(unresolvable=dict.fromkeys(map(str, names), text)).reply(args, candidates)

    def _unscored(
        self, args: ExtenderArgs, began: float, names: Sequence[NodeName], reason: str
    ) -> list[HostPriority]:
        self._record("prioritize", args, began, Counter({reason: len(names)}))
        return [HostPriority(name, 0) for name in names]

    def _record(
        self, verb: str, args: ExtenderArgs, began: float, reasons: Counter[str], error: str = ""
    ) -> None:
        meta = args.pod.metadata
        self.decision_log.record(
            Outcome(
                verb=verb,
                pod=f"{meta.namespace}/{meta.name}",
                uid=meta.uid,
                candidates=reasons.total(),
                reason=main_reason(reasons) if reasons or not error else IS_STARTING,
                reasons=reasons,
                error=error,
                duration_s=self.clock() - began,
            )
        )


def _score(verdict: Verdict | None) -> int:
    """Return the score in thousandths; 0 if the pod does not fit, or if there was no time to find it."""
    return verdict.score or 0 if isinstance(verdict, Feasible) else 0


def _candidates(args: ExtenderArgs) -> tuple[list[Candidate], list[NodeName]]:
    """Return the decoded node objects and the names; no objects if only names were sent."""
    if args.nodes is None:
        return [], cast("list[NodeName]", args.node_names or [])
    candidates = args.candidates()
    return candidates, cast("list[NodeName]", [candidate.name for candidate in candidates])
