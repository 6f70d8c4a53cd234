"""What a node says of a pod, one by one, and many nodes by what they have in common."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from k8s_rdma.core.placement import Rejection
from k8s_rdma.extender.looks.pf_look import look_at_pfs
from k8s_rdma.extender.verbs.decisions import UNRESOLVABLE, Fit, Misfit
from k8s_rdma.wire.explain import Group, NodeLook
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE

if TYPE_CHECKING:
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.request import Request
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.verbs.decisions import Decisions, Verdict

    Said: TypeAlias = Literal["fits", "refused", "unreadable", "unknown"]

EXAMPLES = 3
"""Nodes of a group that are shown in detail."""

MAX_GROUPS = 50
"""The rest is one group: texts of nodes may differ in what is no number."""

_ORDER = ("fits", "refused", "unknown", "unreadable")
_ADDRESS = re.compile(r"(?:\d+\.){3}\d+(?::\d+)?|\[?[0-9a-f]*:[0-9a-f:]+\]?(?::\d+)?")
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")


class Seen(NamedTuple):
    """A node's situation for the pod, and the verdict; why: of a node that has none."""

    node: NodeName
    situation: Situation | None
    verdict: Verdict | None
    why: str = ""

    @property
    def said(self) -> Said:
        """The verdict in a word."""
        if self.situation is None:
            return "unreadable"
        if self.verdict is None:
            return "unknown"
        return "fits" if isinstance(self.verdict, Fit) else "refused"

    @property
    def score(self) -> int | None:
        """How well it fits, 0..10."""
        return self.verdict.score if isinstance(self.verdict, Fit) else None

    @property
    def text(self) -> str:
        """As the scheduler is told; empty where it fits."""
        if self.situation is None:
            return f"{UNREADABLE_NODE} ({self.why})"
        return self.verdict.text if isinstance(self.verdict, Misfit) else ""

    @property
    def evictable(self) -> bool:
        """Whether evicting pods might help."""
        return not isinstance(self.verdict, Misfit) or self.verdict.reason not in UNRESOLVABLE


def look_at(seen: Seen, request: Request, decisions: Decisions) -> NodeLook:
    """The node in detail; searches anew, for where the interfaces go, or for the whole reason."""
    situation = seen.situation
    if situation is None or seen.verdict is None:
        return NodeLook(node=seen.node, verdict=seen.said, why=seen.text)
    found = decisions.place(request, situation)
    placed = () if isinstance(found, Rejection) else found.interfaces
    return NodeLook(
        node=seen.node,
        verdict=seen.said,
        score=seen.score,
        why=f"{NOT_ENOUGH_FREE} ({found.message})" if isinstance(found, Rejection) else "",
        evictable=seen.evictable,
        pfs=decisions.quarantine.decide(
            situation, lambda: look_at_pfs(request, situation, placed), lambda _: ()
        ),
    )


@dataclass(slots=True)
class _Group:
    """text: what all of them say word by word; None when they do not."""

    count: int = 0
    text: str | None = None
    best: list[tuple[int, int, Seen]] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Keep the best few; of equal ones those that came first."""
        if not self.count:
            self.text = seen.text
        elif seen.text != self.text:
            self.text = None
        self.count += 1
        self.best = nsmallest(EXAMPLES, [*self.best, (-(seen.score or 0), self.count, seen)])


class Groups:
    """Nodes that differ in numbers alone are one group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Said, str], _Group] = {}

    def add(self, seen: Seen) -> None:
        """One more node."""
        key = seen.said, _cause(seen.text)
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = seen.said, "for other reasons"
        self._groups.setdefault(key, _Group()).add(seen)

    async def documents(self, request: Request, decisions: Decisions) -> tuple[Group, ...]:
        """Those that fit first, the largest first; in slices of one search."""
        found = sorted(self._groups.items(), key=lambda item: (_ORDER.index(item[0][0]), -item[1].count))
        documents = []
        for (said, cause), group in found:
            examples = []
            for *_, seen in group.best:
                await asyncio.sleep(0)
                examples.append(look_at(seen, request, decisions))
            why = group.text if group.text is not None else _shared(group, request, decisions) or cause
            documents.append(Group(verdict=said, count=group.count, why=why, examples=tuple(examples)))
        return tuple(documents)


def _shared(group: _Group, request: Request, decisions: Decisions) -> str:
    """What nodes that differ in their numbers refuse for; empty where that is not known in words."""
    [*_, seen] = group.best[0]
    found = decisions.place(request, seen.situation) if seen.situation else None
    return f"{NOT_ENOUGH_FREE} ({found.cause})" if isinstance(found, Rejection) and found.cause else ""


def _cause(text: str) -> str:
    """The text without what is of a single node: `10 VFs` and `3 VFs` are `N VFs`."""
    return _NUMBER.sub("N", _ADDRESS.sub("ADDRESS", text))
