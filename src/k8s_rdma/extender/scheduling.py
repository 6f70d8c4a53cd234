"""filter and prioritize: which nodes can keep the promise that a pod asks for, and how well."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.binding import STARTING
from k8s_rdma.extender.decisions import UNRESOLVABLE, Decisions, Fit, Misfit
from k8s_rdma.extender.outcomes import FIT, NOTHING_ASKED, Outcome, Outcomes, main_reason
from k8s_rdma.extender.outcomes import STARTING as IS_STARTING
from k8s_rdma.extender.requests import Requests
from k8s_rdma.extender.sources import NodeStates
from k8s_rdma.extender.state import ClusterState
from k8s_rdma.extender.touching import Toucher
from k8s_rdma.wire.extender import (
    MALFORMED_ANNOTATION,
    NOT_ENOUGH_FREE,
    UNREADABLE_NODE,
    ExtenderFilterResult,
    HostPriority,
    filter_result,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.core.request import Request
    from k8s_rdma.extender.decisions import Verdict
    from k8s_rdma.wire.extender import Candidate, ExtenderArgs

_LATE_S = 0.05
"""For the situations that came up while others were searched."""

NOT_SEARCHED = Misfit(
    Reason.UNDECIDED,
    f"{NOT_ENOUGH_FREE} (not known: this request is new and takes long to place on many nodes; tried again)",
)


@dataclass(slots=True)
class Sorted:
    """Candidates by verdict: the fitting ones in order, the others with the reason told to the scheduler.

    awaited: those of the others that may come to fit. reasons: how many of all were judged so.
    """

    fitting: list[NodeName] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    awaited: list[NodeName] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class Scheduling:
    """Answers filter and prioritize.

    clock: seconds, monotonic. max_age_s: a node's state that is younger is not asked for again.
    ready: as in `Binder`. search_s: for how long one call may search for placements of a request that is
        new on many nodes; the nodes that this does not reach are refused, and searched next time.
    """

    state: ClusterState
    states: NodeStates
    decisions: Decisions
    requests: Requests
    toucher: Toucher
    outcomes: Outcomes
    clock: Callable[[], float]
    ready: Callable[[], bool]
    max_age_s: float = 1.0
    search_s: float = 1.0

    async def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Which candidates fit; never raises for the sake of a node or an annotation.

        MalformedError when a node object is none.
        """
        began = self.clock()
        candidates, names = _candidates(args)
        uid = PodUid(args.pod.metadata.uid)
        try:
            request = self.requests.remember(uid, args.pod.annotations, began)
        except MalformedError as error:
            why = f"{MALFORMED_ANNOTATION} ({error.message})"
            sorted_ = Sorted(
                unresolvable=dict.fromkeys(map(str, names), why), reasons=Counter({error.reason: len(names)})
            )
        else:
            if request and not self.ready():
                self._tell("filter", args, began, Counter(), STARTING)
                return ExtenderFilterResult(error=STARTING)
            sorted_ = await self._sort(uid, request, candidates, names)
        self._tell("filter", args, began, sorted_.reasons)
        return _result(args, candidates, sorted_)

    async def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """A score for each candidate, 0..10; 0 where it does not fit any more, and for pods without RDMA."""
        began = self.clock()
        candidates, names = _candidates(args)
        uid = PodUid(args.pod.metadata.uid)
        try:
            request = self.requests.read(uid, args.pod.annotations)
            unscored = IS_STARTING if request else NOTHING_ASKED
        except MalformedError as error:
            request, unscored = None, error.reason
        if not request or not self.ready():
            self._tell("prioritize", args, began, Counter({unscored: len(names)}))
            return [HostPriority(name, 0) for name in names]
        await self._know(candidates, names, request)
        reasons: Counter[str] = Counter()
        scores = []
        for name, verdict in self._verdicts(uid, request, names):
            reasons[_reason(verdict)] += 1
            scores.append(HostPriority(name, verdict.score if isinstance(verdict, Fit) else 0))
        self._tell("prioritize", args, began, reasons)
        return scores

    async def _sort(
        self, uid: PodUid, request: Request, candidates: Sequence[Candidate], names: list[NodeName]
    ) -> Sorted:
        if not request:
            return Sorted(fitting=names, reasons=Counter({NOTHING_ASKED: len(names)}))
        await self._know(candidates, names, request)
        sorted_ = Sorted()
        for name, verdict in self._verdicts(uid, request, names):
            sorted_.reasons[_reason(verdict)] += 1
            if isinstance(verdict, Fit):
                sorted_.fitting.append(name)
                continue
            if verdict is None:
                sorted_.failed[name] = f"{UNREADABLE_NODE} ({self.state.why_unreadable(name)})"
            elif verdict.reason in UNRESOLVABLE:
                sorted_.unresolvable[name] = verdict.text
            else:
                sorted_.failed[name] = verdict.text
            if verdict is None or verdict.may_pass:
                sorted_.awaited.append(name)
        if sorted_.fitting or not sorted_.awaited:
            self.toucher.settled(uid)
        else:
            self.toucher.refused(uid, request, sorted_.awaited)
        return sorted_

    async def _know(
        self, candidates: Iterable[Candidate], names: Sequence[NodeName], request: Request
    ) -> None:
        """Have the nodes' states, and the verdicts on them as far as `search_s` goes.

        Searches come in between other work: each may take 10 ms, and there may be one for every node.
        """
        for candidate in candidates:
            self.states.suggest(NodeName(candidate.name), candidate.addresses)
        await self.states.refresh(names, since=self.clock() - self.max_age_s)
        known = self.decisions.known(request)
        current = map(self.state.situations.get, names)
        unseen = [situation for situation in current if situation is not None and situation not in known]
        deadline = self.clock() + self.search_s
        for situation in dict.fromkeys(unseen):
            self.decisions.verdict(request, situation)
            if self.clock() > deadline:
                return
            await asyncio.sleep(0)

    def _verdicts(
        self, uid: PodUid, request: Request, names: Iterable[NodeName]
    ) -> Iterator[tuple[NodeName, Verdict | None]]:
        """The verdict on each node, None where it cannot be read; nothing else runs meanwhile.

        What the pod itself holds (a bind that is under way still) does not count against it.
        """
        situations, known = self.state.situations, self.decisions.known(request)
        deadline = self.clock() + _LATE_S
        own = self.state.nodes_of(uid)
        for name in names:
            situation = (
                situations.get(name) if name not in own else self.state.situation_if(name, without=[uid])
            )
            if situation is None:
                yield name, None
                continue
            verdict = known.get(situation)
            if verdict is None:
                in_time = self.clock() < deadline
                verdict = self.decisions.verdict(request, situation) if in_time else NOT_SEARCHED
            yield name, verdict

    def _tell(
        self, verb: str, args: ExtenderArgs, began: float, reasons: Counter[str], error: str = ""
    ) -> None:
        meta = args.pod.metadata
        self.outcomes.tell(
            Outcome(
                verb=verb,
                pod=f"{meta.namespace}/{meta.name}",
                uid=meta.uid,
                candidates=reasons.total(),
                reason=IS_STARTING if error else main_reason(reasons),
                reasons=reasons,
                error=error,
                duration_s=self.clock() - began,
            )
        )


def _reason(verdict: Verdict | None) -> str:
    if verdict is None:
        return Reason.UNREADABLE_NODE
    return FIT if isinstance(verdict, Fit) else verdict.reason


def _candidates(args: ExtenderArgs) -> tuple[list[Candidate], list[NodeName]]:
    """The node objects, decoded, and the names; no objects where only names were sent."""
    if args.nodes is None:
        return [], cast("list[NodeName]", args.node_names or [])
    candidates = args.candidates()
    return candidates, [NodeName(candidate.name) for candidate in candidates]


def _result(args: ExtenderArgs, candidates: Sequence[Candidate], sorted_: Sorted) -> ExtenderFilterResult:
    if args.nodes is None:
        return ExtenderFilterResult(
            node_names=list(sorted_.fitting),
            failed_nodes=sorted_.failed,
            failed_and_unresolvable_nodes=sorted_.unresolvable,
        )
    fitting = frozenset(sorted_.fitting)
    return filter_result(
        args,
        [candidate for candidate in candidates if candidate.name in fitting],
        failed=sorted_.failed,
        unresolvable=sorted_.unresolvable,
    )
