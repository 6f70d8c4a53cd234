"""filter and prioritize: which nodes can keep the promise that a pod asks for, and how well."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.score import MAX_SCORE
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.cluster.addresses import AddressCheck
from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.sources.node_states import NodeStates
from k8s_rdma.extender.telling.outcomes import NOTHING_ASKED, Outcome, Outcomes, main_reason
from k8s_rdma.extender.telling.outcomes import STARTING as IS_STARTING
from k8s_rdma.extender.verbs.binding import STARTING
from k8s_rdma.extender.verbs.decisions import Fit
from k8s_rdma.extender.verbs.reply import Sorted
from k8s_rdma.extender.verbs.requests import Requests
from k8s_rdma.extender.verbs.verdicts import NOT_SEARCHED, Verdicts
from k8s_rdma.extender.waking.touching import Toucher
from k8s_rdma.kube.api import API_ERRORS
from k8s_rdma.wire.extender import (
    NOT_ENOUGH_FREE,
    ExtenderFilterResult,
    HostPriority,
    sentence_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.extender.verbs.decisions import Verdict
    from k8s_rdma.wire.extender import Candidate, ExtenderArgs

_BEST = 4
"""Nodes on which a place is looked for once they are known to fit: the first has one."""


@dataclass(slots=True, kw_only=True)
class Scheduling:
    """Answers filter and prioritize.

    clock: seconds, monotonic. max_age_s: a node's state that is younger is not asked for again.
    ready: as in `Binder`. gang_s: how long filter waits for the number of a gang's PodGroup.
    """

    states: NodeStates
    verdicts: Verdicts
    expecting: Expecting
    limits: Limits
    addresses: AddressCheck
    requests: Requests
    toucher: Toucher
    outcomes: Outcomes
    clock: Callable[[], float]
    ready: Callable[[], bool]
    max_age_s: float = 1.0
    gang_s: float = 0.3

    async def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Which candidates fit; never raises for the sake of a node or an annotation.

        MalformedError when a node object is none. A pod that asks for nothing gets what it came with, and
        nothing of that is looked into.
        """
        began = self.clock()
        try:
            pod = self.requests.remember(args.pod, began)
        except MalformedError as error:
            return self._refuse(args, began, sentence_of(error), error.message, error.reason)
        if not pod.request:
            self._tell("filter", args, began, Counter({NOTHING_ASKED: args.count}))
            return ExtenderFilterResult(nodes=args.nodes, node_names=args.node_names)
        if not self.ready():
            self._tell("filter", args, began, Counter(), STARTING)
            return ExtenderFilterResult(error=STARTING)
        if where := args.pod.status.nominated_node_name:
            self.verdicts.nominations.nominated(pod, NodeName(where))
        pod = await self._with_gang(pod)
        beside = self.expecting.mates(pod)
        beyond = self.limits.refusal(pod.namespace, pod.uid, pod.request, beside=beside)
        if beyond is not None:
            self._limited(pod, _candidates(args)[1])
            return self._refuse(args, began, NOT_ENOUGH_FREE, beyond, Reason.NAMESPACE_LIMIT)
        candidates, names = _candidates(args)
        await self._refresh(candidates, names)
        await self.addresses.search(pod, self.verdicts.queue)
        taken = self.addresses.taken(pod)
        if taken is not None:
            self.expecting.drop(pod.uid)
            self.toucher.refused(pod.uid, pod.request, [taken.node], pod.namespace)
            return self._refuse(args, began, NOT_ENOUGH_FREE, taken.why, Reason.ADDRESS_IN_USE)
        found = await self._sort(pod, names)
        self._tell("filter", args, began, found.reasons)
        return found.reply(args, candidates)

    async def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """A score for each candidate, 0..10; 0 where it does not fit any more, and for pods without RDMA.

        While others are on their way, one of the nodes that are best scores a little more than the rest:
        where this pod goes is what the next one has to know.
        """
        began = self.clock()
        candidates, names = _candidates(args)
        try:
            pod = self.requests.ask(args.pod)
        except MalformedError as error:
            return self._unscored(args, began, names, error.reason)
        if not pod.request or not self.ready():
            return self._unscored(args, began, names, IS_STARTING if pod.request else NOTHING_ASKED)
        pod = self.expecting.gangs.judge(pod)
        await self._refresh(candidates, names)
        await self.verdicts.search(pod, names)
        found = self.verdicts.on(pod, names)
        scores = {name: verdict.score if isinstance(verdict, Fit) else 0 for name, verdict in found}
        sorted_ = Sorted.by_verdict(found, self.verdicts.state.why_unreadable)
        self._expect(pod, scores, sorted_.fitting)
        self._tell("prioritize", args, began, sorted_.reasons)
        return [HostPriority(name, score) for name, score in scores.items()]

    async def _sort(self, pod: PendingPod, names: list[NodeName]) -> Sorted:
        await self.verdicts.search(pod, names)
        verdicts = self.verdicts.on(pod, names)
        found = Sorted.by_verdict(verdicts, self.verdicts.state.why_unreadable)
        self.verdicts.nominations.filtered(pod.uid, found.failed)
        if pod.gang is not None and found.fitting:
            self._promise(pod, verdicts, found)
        elif found.fitting:  # of several, prioritize says more
            self.expecting.leave(pod, found.fitting if len(found.fitting) == 1 else ())
        else:
            self.expecting.drop(pod.uid)
        if found.fitting or not found.awaited:
            self.toucher.settled(pod.uid)
        else:
            together = pod.gang is not None
            self.toucher.refused(pod.uid, pod.request, found.awaited, pod.namespace, together=together)
        return found

    def _promise(
        self, pod: PendingPod, verdicts: Iterable[tuple[NodeName, Verdict | None]], found: Sorted
    ) -> None:
        """Send a gang's pod to one node, the best, so that the next ones see what it takes."""
        scores = {name: verdict.score for name, verdict in verdicts if isinstance(verdict, Fit)}
        best = sorted(found.fitting, key=lambda name: -scores[name])
        node = self.expecting.promise(pod, best[:_BEST])
        found.fitting = [node] if node is not None else []
        if node is None:
            found.failed |= dict.fromkeys(map(str, best), NOT_SEARCHED.text)
            found.awaited += best

    async def _with_gang(self, pod: PendingPod) -> PendingPod:
        """Have the number of the pod's gang: while it is not known, its places do not keep others out."""
        if pod.gang is None:
            return pod
        with suppress(TimeoutError, *API_ERRORS):
            async with asyncio.timeout(self.gang_s):
                await self.expecting.gangs.min_count(pod.gang)
        return self.expecting.gangs.judge(pod)

    async def _refresh(self, candidates: Iterable[Candidate], names: Sequence[NodeName]) -> None:
        """Have the nodes' states."""
        for candidate in candidates:
            self.states.suggest(NodeName(candidate.name), candidate.addresses)
        await self.states.refresh(names, since=self.clock() - self.max_age_s)

    def _expect(self, pod: PendingPod, scores: dict[NodeName, int], fitting: Sequence[NodeName]) -> None:
        """Expect the pod on the nodes with the best score, and have few of them, see `prioritize`."""
        if pod.gang is not None:
            return  # filter sent it to one node
        best = max((scores[name] for name in fitting), default=0)
        equals = [name for name in fitting if scores[name] == best]
        if len(equals) > 1 and self.expecting.others(pod.uid):
            *others, chosen = equals
            _prefer(scores, chosen, others)
            equals = [chosen]
        self.expecting.leave(pod, equals)

    def _limited(self, pod: PendingPod, names: Sequence[NodeName]) -> None:
        self.expecting.drop(pod.uid)
        if self.limits.may_pass(pod.namespace, pod.request):
            self.toucher.limited(pod, names)
        else:
            self.toucher.settled(pod.uid)

    def _refuse(
        self, args: ExtenderArgs, began: float, sentence: str, why: str, reason: Reason
    ) -> ExtenderFilterResult:
        """Refuse all candidates for one reason, which no eviction on any of them cures."""
        candidates, names = _candidates(args)
        self._tell("filter", args, began, Counter({reason: len(names)}), why)
        text = f"{sentence} ({why})"
        return Sorted(unresolvable=dict.fromkeys(map(str, names), text)).reply(args, candidates)

    def _unscored(
        self, args: ExtenderArgs, began: float, names: Sequence[NodeName], reason: str
    ) -> list[HostPriority]:
        self._tell("prioritize", args, began, Counter({reason: len(names)}))
        return [HostPriority(name, 0) for name in names]

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
                reason=main_reason(reasons) if reasons or not error else IS_STARTING,
                reasons=reasons,
                error=error,
                duration_s=self.clock() - began,
            )
        )


def _prefer(scores: dict[NodeName, int], chosen: NodeName, others: Iterable[NodeName]) -> None:
    """Have one node score more than those that it equals."""
    if scores[chosen] < MAX_SCORE:
        scores[chosen] += 1
        return
    for name in others:
        scores[name] -= 1


def _candidates(args: ExtenderArgs) -> tuple[list[Candidate], list[NodeName]]:
    """The node objects, decoded, and the names; no objects where only names were sent."""
    if args.nodes is None:
        return [], cast("list[NodeName]", args.node_names or [])
    candidates = args.candidates()
    return candidates, [NodeName(candidate.name) for candidate in candidates]
