"""Node states of every node's `/v1/node`: by long poll, and by asking where there is none."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Self

from k8s_rdma.extender.sources.http_node import NEVER, Asking, HttpNode, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.cluster.state import ClusterState
    from k8s_rdma.extender.telling.metrics import Reading

_UNWANTED_S = 3600.0
"""A node that only requests tell of, and none did for so long, is gone."""

_RESTS = 6
"""Times `Asking.retry_s`: the longest pause before a node that cannot be read is asked by itself. There may
be thousands without a server; whoever needs such a node's state asks it before."""


class HttpNodeStates:
    """`NodeStates` over HTTP; an async context manager that owns the questions under way.

    A node is asked one question at a time, and everyone whose need it meets waits for the same one. A long
    poll is not such a question: what it tells leads to one.
    """

    def __init__(self, state: ClusterState, asking: Asking, clock: Callable[[], float]) -> None:
        self._state = state
        self._asking = asking
        self._clock = clock
        slots = asyncio.Semaphore(asking.parallel)
        self._surroundings = Surroundings(state=state, asking=asking, clock=clock, slots=slots)
        self.counts = self._surroundings.counts
        self._nodes: dict[NodeName, HttpNode] = {}
        self._watches = 0
        self._filled = not asking.watches
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes.values():
            node.close()
        await self._tasks.__aexit__(kind, error, trace)

    async def refresh(self, nodes: Collection[NodeName], *, since: float) -> None:
        """As `NodeStates.refresh`."""
        known, ending, now = self._nodes, self._state.ending, self._clock()
        since = min(since, now)
        while stale := [
            node
            for name in nodes
            if (node := known.get(name)) is not None
            and (node.stands < now if name in ending else node.stands < since and node.watched_until < now)
        ]:
            await asyncio.wait([self._question(node) for node in stale])

    async def ask(self, node: NodeName) -> None:
        """As `NodeStates.ask`."""
        since = self._clock()
        while (known := self._nodes.get(node)) is not None and known.asked_at < since:
            await asyncio.wait([self._question(known)])

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.learn`."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = HttpNode(node, self._surroundings)
        elif known.named == addresses:
            return
        known.move(addresses)
        if known.keeper:
            known.keeper.cancel()
        if self._asking.watches:
            known.keeper = self._tasks.create_task(self._keep(known))

    def suggest(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.suggest`."""
        if node not in self._nodes or (self._asking.requests_tell and addresses):
            self.learn(node, addresses)
        if self._asking.requests_tell:
            self._nodes[node].wanted_at = self._clock()

    def forget(self, node: NodeName) -> None:
        """As `NodeStates.forget`; a question under way comes to nothing."""
        known = self._nodes.pop(node, None)
        if known is not None:
            known.close()

    def awaited(self) -> int:
        """As `NodeStates.awaited`."""
        if self._filled:
            return 0
        awaited = sum(node.asked_at == NEVER for node in self._nodes.values())
        self._filled = bool(self._nodes) and not awaited
        return awaited

    def sources(self) -> Counter[tuple[str, ...]]:
        """How many nodes are `watched`, `asked` because their servers hold no long poll, or `unreadable`."""
        now, unreadable = self._clock(), self._state.unreadable
        return Counter(
            ("unreadable" if name in unreadable else "watched" if node.watched_until >= now else "asked",)
            for name, node in self._nodes.items()
        )

    def oldest_s(self) -> float:
        """How long the node that can be read and was silent for longest has not been heard from."""
        now, unreadable = self._clock(), self._state.unreadable
        heard = [node.heard_at for name, node in self._nodes.items() if name not in unreadable]
        return now - min((at for at in heard if at != NEVER), default=now)

    def readings(self) -> dict[str, Reading]:
        """What metrics show."""
        counts = self.counts
        answers = {
            "node_reports_total": ("Nodes' answers that held a report.", lambda: counts.changed),
            "node_unchanged_total": ("Nodes' answers that nothing changed.", lambda: counts.unchanged),
            "node_unreadable_total": ("Questions that got no usable answer.", lambda: counts.unreadable),
            "node_changes_told_total": ("Changes that nodes told by long poll.", lambda: counts.told),
        }
        return {name: (help_text, "counter", read) for name, (help_text, read) in answers.items()}

    def _question(self, node: HttpNode) -> asyncio.Task[None]:
        if node.question is None or node.question.done():
            node.question = self._tasks.create_task(node.ask())
        return node.question

    async def _keep(self, node: HttpNode) -> None:
        """Know the node's state for as long as there is the node.

        A question follows whatever a long poll tells: what had begun to be asked before a pod ended cannot
        say that the node holds nothing for it any more.
        """
        asking, quick = self._asking, 0
        first_s, most_s = asking.pause_s, max(asking.pause_s, _RESTS * asking.retry_s)
        pause_s = first_s
        while not self._unwanted(node):
            if rest_s := node.rest_s():
                await asyncio.sleep(rest_s)
            await self.ask(node.name)
            if not node.readable():
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))
                pause_s = min(2 * pause_s, most_s)
                continue
            pause_s = first_s
            if quick > 1:
                await asyncio.sleep(asking.gap_s)
            began = self._clock()
            if await self._follow(node):
                quick = quick + 1 if self._clock() - began < asking.gap_s else 0
                continue
            await self.ask(node.name)
            if node.readable():
                await asyncio.sleep(asking.again_s)
        self.forget(node.name)
        self._state.forget(node.name)

    async def _follow(self, node: HttpNode) -> bool:
        if self._watches >= self._asking.watches:
            return False
        self._watches += 1
        try:
            return await node.follow()
        finally:
            self._watches -= 1

    def _unwanted(self, node: HttpNode) -> bool:
        return self._asking.requests_tell and self._clock() - node.wanted_at > _UNWANTED_S
