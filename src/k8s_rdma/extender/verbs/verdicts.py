"""The verdicts on nodes for one pod: what others hold there counts, what it holds itself does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from k8s_rdma.core.refusal import Detail
from k8s_rdma.errors import Reason
from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.nominating import Nominations
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.verbs.decisions import Decisions, Fit, Misfit
from k8s_rdma.extender.verbs.search_queue import SearchQueue
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.verbs.decisions import Verdict

    Interfaces = tuple[PlacedInterface, ...]

_LATE_S = 0.05
"""Processor time for the situations that came up while others were searched."""

_SHOWN_PODS = 3
_NOBODY: Mapping[PodUid, Interfaces] = MappingProxyType({})

NOT_SEARCHED = Misfit(
    Reason.UNDECIDED,
    f"{NOT_ENOUGH_FREE} (not known: this request is new and takes long to place on many nodes; tried again)",
)


class _Look(NamedTuple):
    """One look at many nodes: the verdicts on the request so far, and until when others are searched for.

    Which they are depends on every interface of the request, and there may be a thousand.
    """

    known: Mapping[Situation | None, Verdict]
    deadline: float


@dataclass(slots=True, kw_only=True)
class Verdicts:
    """Gives them.

    nominations: what preemption made room for, which counts against pods of no higher priority. expecting:
    where others go that were filtered and are not bound yet; it steers, and but for gangs' places keeps
    nobody from a node that is the only one. clock: seconds, monotonic. detail: how much refusals tell.
    queue: whose search is next, and what it costs.
    search_s: processor time that one call may take to search for placements of a request that is new on many
        nodes; the nodes that this does not reach are refused, and searched next time.
    wait_s: how long it may take for that, as others search as well.
    """

    state: ClusterState
    decisions: Decisions
    nominations: Nominations
    expecting: Expecting
    clock: Callable[[], float]
    detail: Detail = Detail.NUMBERS
    queue: SearchQueue = field(default_factory=SearchQueue)
    search_s: float = 1.0
    wait_s: float = 5.0

    async def search(self, pod: PendingPod, names: Sequence[NodeName]) -> None:
        """Have the verdicts as far as `search_s` goes.

        Searches come in between other work: each may take 10 ms, and there may be one for every node.
        """
        known = self.decisions.known(pod.request, pod.namespace)
        special = self._special(pod)
        current = dict.fromkeys(map(self.state.situations.get, names))
        if special:
            against = self.expecting.against
            current |= dict.fromkeys(
                self._situation(pod, name, against(name, pod.uid)) for name in names if name in special
            )
        unseen = [situation for situation in current if situation is not None and situation not in known]
        if not unseen:
            return
        deadline = self.clock() + self.wait_s
        async with self.queue.turn(pod.namespace) as turn:
            for situation in unseen:
                self.decisions.verdict(pod.request, situation, pod.namespace)
                if turn.used_s > self.search_s or self.clock() > deadline:
                    return
                await turn.give_way()

    def on(self, pod: PendingPod, names: Sequence[NodeName]) -> list[tuple[NodeName, Verdict | None]]:
        """The verdict on each node, None where it cannot be read; nothing else runs meanwhile."""
        special = self._special(pod)
        found = self._each(pod, names, special)
        expected = special & self.expecting.holds.nodes()
        if expected and not any(isinstance(verdict, Fit) for _, verdict in found):
            found = self._each(pod, names, special, steering=False)
        return found

    def _each(
        self,
        pod: PendingPod,
        names: Sequence[NodeName],
        special: frozenset[NodeName],
        *,
        steering: bool = True,
    ) -> list[tuple[NodeName, Verdict | None]]:
        """Most are looked up, and there may be thousands of them."""
        known = cast("Mapping[Situation | None, Verdict]", self.decisions.known(pod.request, pod.namespace))
        usual = [*map(known.get, map(self.state.situations.get, names))]
        if not special and all(usual):
            return [*zip(names, usual, strict=True)]
        look = _Look(known, self.queue.clock() + _LATE_S)
        return [
            (name, self._on(pod, name, look, steering=steering))
            if verdict is None or name in special
            else (name, verdict)
            for name, verdict in zip(names, usual, strict=True)
        ]

    def _on(self, pod: PendingPod, name: NodeName, look: _Look, *, steering: bool) -> Verdict | None:
        """steering: count all who are on their way, and not only those that keep the pod out."""
        situation = self._situation(pod, name)
        if situation is None:
            return None
        verdict = self._verdict(pod, situation, look)
        if not isinstance(verdict, Fit):
            return verdict
        expected = self.expecting.against(name, pod.uid) if steering else self.expecting.firm(name, pod)
        beside = self._situation(pod, name, expected)
        if beside is None or beside is situation:
            return verdict
        there = self._verdict(pod, beside, look)
        return there if isinstance(there, Fit) else self._held(pod, name)

    def _verdict(self, pod: PendingPod, situation: Situation, look: _Look) -> Verdict:
        verdict = look.known.get(situation)
        if verdict is None and self.queue.clock() < look.deadline:
            return self.decisions.verdict(pod.request, situation, pod.namespace)
        return verdict or NOT_SEARCHED

    def _special(self, pod: PendingPod) -> frozenset[NodeName]:
        """The nodes whose situation is another one for this pod than for others."""
        self.expecting.settle(pod.uid)
        return self.state.nodes_of(pod.uid) | self.nominations.nodes() | self.expecting.holds.nodes()

    def _situation(
        self, pod: PendingPod, name: NodeName, expected: Mapping[PodUid, Interfaces] = _NOBODY
    ) -> Situation | None:
        holding = {**expected, **self.nominations.against(name, pod.uid, pod.priority)}
        without = [pod.uid] if name in self.state.nodes_of(pod.uid) else ()
        return self.state.situation_if(name, without=without, holding=holding)

    def _held(self, pod: PendingPod, name: NodeName) -> Misfit:
        why = "held for a moment for pods on their way"
        if self.detail is Detail.NUMBERS:
            pods = self.expecting.pods(name, pod.uid)
            more = f" and {len(pods) - _SHOWN_PODS} more" if len(pods) > _SHOWN_PODS else ""
            why = f"{why}: {', '.join(pods[:_SHOWN_PODS])}{more}"
        return Misfit(Reason.INSUFFICIENT, f"{NOT_ENOUGH_FREE} ({why})")
