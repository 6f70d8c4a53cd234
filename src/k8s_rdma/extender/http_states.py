"""Node states of every node's `/v1/node`: by long poll, and by asking where there is none."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.facts import facts_of
from k8s_rdma.extender.http_get import PLAIN, HttpPeer, Security
from k8s_rdma.extender.http_watch import PATH, Told, watch
from k8s_rdma.wire.rest import decode_report
from k8s_rdma.wire.rest_error import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.http_get import Answer
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.state import ClusterState

NEVER = float("-inf")

_UNWANTED_S = 3600.0
"""A node that only requests tell of, and none did for so long, is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How nodes are asked.

    port: of the nodes' servers. timeout_s: for one question at one address. security: TLS and token.
    retry_s: how long a node that timed out is left alone by `refresh`, so that a dead node delays one
        filter in this time rather than all of them.
    parallel: how many are asked at once; the time-out of the others does not run yet.
    watches: how many long polls there may be, each a connection of its own; with 0 nodes are asked only when
        somebody needs their states. hold_s: how long a server is to wait for a change; what is known of a
        node is older by no more than this, the way, and a question's time-outs. again_s: after which a server
        that does not wait is asked, by long poll too, in case it does now. pause_s: before a node that could
        not be read is asked again by itself; doubles to retry_s.
    requests_tell: addresses come with requests alone, since there is no API server to ask.
    """

    port: int = 54005
    timeout_s: float = 1.5
    security: Security = PLAIN
    retry_s: float = 10.0
    parallel: int = 512
    watches: int = 0
    hold_s: float = 25.0
    again_s: float = 30.0
    pause_s: float = 1.0
    requests_tell: bool = False


@dataclass(slots=True)
class Counts:
    """Questions by outcome, for metrics; told: changes that a long poll told of."""

    changed: int = 0
    unchanged: int = 0
    unreadable: int = 0
    told: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    timed_out: bool = False


@dataclass(slots=True)
class _Node:
    """What is remembered of asking a node.

    preferred: the address that answered last. etag: of the report that the state holds; None when the
    next answer must be a whole one. asked_at: when the last question began that has an outcome.
    heard_at: of the last usable answer. stands: the latest `since` that this outcome satisfies in `refresh`.
    watched: a long poll is under way that would tell of any other state than the one known.
    wanted_at: when a request last told of it. keeper: what keeps the long poll going.
    """

    addresses: tuple[str, ...] = ()
    peers: dict[str, HttpPeer] = field(default_factory=dict)
    preferred: str | None = None
    etag: str | None = None
    asked_at: float = NEVER
    heard_at: float = NEVER
    stands: float = NEVER
    watched: bool = False
    wanted_at: float = NEVER
    question: asyncio.Task[None] | None = None
    keeper: asyncio.Task[None] | None = None


class HttpNodeStates:
    """`NodeStates` over HTTP; an async context manager that owns the questions under way.

    A node is asked one question at a time, and everyone whose need it meets waits for the same one. A long
    poll is not such a question: it has a connection of its own, and what it tells leads to one.
    """

    def __init__(self, state: ClusterState, asking: Asking, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self._state = state
        self._asking = asking
        self._clock = clock
        self._nodes: dict[NodeName, _Node] = {}
        self._slots = asyncio.Semaphore(asking.parallel)
        self._watches = 0
        self._filled = not asking.watches
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for entry in self._nodes.values():
            for task in (entry.question, entry.keeper):
                if task:
                    task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            for node in list(self._nodes):
                self.forget(node)

    async def refresh(self, nodes: Collection[NodeName], *, since: float) -> None:
        """As `NodeStates.refresh`."""
        known, ending, since = self._nodes, self._state.ending, min(since, self._clock())
        while stale := [
            node
            for node in nodes
            if (entry := known.get(node)) is not None
            and (not entry.watched or node in ending)
            and entry.stands < since
        ]:
            await asyncio.wait([self._question(node, known[node]) for node in stale])

    async def ask(self, node: NodeName) -> None:
        """As `NodeStates.ask`."""
        since = self._clock()
        while (entry := self._nodes.get(node)) is not None and entry.asked_at < since:
            await asyncio.wait([self._question(node, entry)])

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.learn`."""
        entry = self._nodes.setdefault(node, _Node())
        if entry.addresses != addresses:
            entry.addresses = addresses
            entry.stands = NEVER
            for gone in entry.peers.keys() - set(addresses):
                entry.peers.pop(gone).close()
            self._keep_up(node, entry)

    def suggest(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.suggest`."""
        if node not in self._nodes or (self._asking.requests_tell and addresses):
            self.learn(node, addresses)
        if self._asking.requests_tell:
            self._nodes[node].wanted_at = self._clock()

    def forget(self, node: NodeName) -> None:
        """As `NodeStates.forget`; a question under way comes to nothing."""
        entry = self._nodes.pop(node, None)
        if entry is not None:
            if entry.keeper:
                entry.keeper.cancel()
            for peer in entry.peers.values():
                peer.close()

    def awaited(self) -> int:
        """As `NodeStates.awaited`."""
        if self._filled:
            return 0
        awaited = sum(entry.asked_at == NEVER for entry in self._nodes.values())
        self._filled = not awaited
        return awaited

    def sources(self) -> Counter[tuple[str, ...]]:
        """How many nodes are `watched`, `asked` because their servers hold no long poll, or `unreadable`."""
        unreadable = self._state.unreadable
        return Counter(
            ("unreadable" if node in unreadable else "watched" if entry.watched else "asked",)
            for node, entry in self._nodes.items()
        )

    def oldest_s(self) -> float:
        """How long the node that can be read and was silent for longest has not been heard from."""
        now, unreadable = self._clock(), self._state.unreadable
        heard = [entry.heard_at for node, entry in self._nodes.items() if node not in unreadable]
        return now - min((at for at in heard if at != NEVER), default=now)

    def readings(self) -> dict[str, Reading]:
        """What metrics show."""
        counts = self.counts
        return {
            "node_reports_total": ("Nodes' answers that held a report.", "counter", lambda: counts.changed),
            "node_unchanged_total": (
                "Nodes' answers that nothing changed.",
                "counter",
                lambda: counts.unchanged,
            ),
            "node_unreadable_total": (
                "Nodes that gave no usable answer.",
                "counter",
                lambda: counts.unreadable,
            ),
            "node_changes_told_total": (
                "Changes that nodes told by long poll.",
                "counter",
                lambda: counts.told,
            ),
        }

    # asking

    def _question(self, node: NodeName, entry: _Node) -> asyncio.Task[None]:
        if entry.question is None or entry.question.done():
            entry.question = self._tasks.create_task(self._ask(node, entry))
        return entry.question

    async def _ask(self, node: NodeName, entry: _Node) -> None:
        async with self._slots:
            asked_at = self._clock()
            failures = await self._try_addresses(node, entry, asked_at)
        entry.asked_at = entry.stands = asked_at
        if failures is None or self._nodes.get(node) is not entry:
            return
        self.counts.unreadable += 1
        entry.etag = None
        if any(failure.timed_out for failure in failures):
            entry.stands += self._asking.retry_s
        why = "; ".join(failure.why for failure in failures) or "it has no InternalIP or InternalDNS address"
        heard = f"; heard from {asked_at - entry.heard_at:.0f} s ago" if entry.heard_at != NEVER else ""
        self._state.lose(node, f"{why}{heard}")

    async def _try_addresses(self, node: NodeName, entry: _Node, asked_at: float) -> list[_Failure] | None:
        failures = []
        for address in sorted(entry.addresses, key=lambda address: address != entry.preferred):
            failure = await self._try(address, node, entry, asked_at)
            if failure is None:
                entry.preferred = address
                return None
            failures.append(failure)
        return failures

    async def _try(self, address: str, node: NodeName, entry: _Node, asked_at: float) -> _Failure | None:
        where = f"{address}:{self._asking.port}"
        peer = entry.peers.setdefault(address, self._peer(address))
        try:
            async with asyncio.timeout(self._asking.timeout_s):
                answer = await peer.get(PATH, etag=entry.etag)
            self._take(node, entry, answer, asked_at)
        except TimeoutError:
            return _Failure(f"{where}: no answer in {self._asking.timeout_s:g} s", timed_out=True)
        except (OSError, UnicodeError) as error:
            return _Failure(f"{where}: {error}")
        except MalformedError as error:
            return _Failure(f"{where}: {error.message}")
        return None

    def _take(self, node: NodeName, entry: _Node, answer: Answer, asked_at: float) -> None:
        if self._nodes.get(node) is not entry:
            return
        if answer.status == 304 and entry.etag is not None:
            self.counts.unchanged += 1
            self._state.confirm(node, asked_at)
        elif answer.status != 200:
            told = message_of(answer.body)
            msg = f"{PATH} answers HTTP {answer.status}{f': {told}' if told else ''}"
            raise MalformedError(msg)
        else:
            facts = facts_of(decode_report(answer.body), node)
            self.counts.changed += 1
            entry.etag = answer.etag
            self._state.observe(node, facts, asked_at)
        entry.heard_at = self._clock()

    def _peer(self, address: str) -> HttpPeer:
        return HttpPeer(address, self._asking.port, self._asking.security)

    # being told

    def _keep_up(self, node: NodeName, entry: _Node) -> None:
        if entry.keeper:
            entry.keeper.cancel()
        if self._asking.watches:
            entry.keeper = self._tasks.create_task(self._keep(node, entry))

    async def _keep(self, node: NodeName, entry: _Node) -> None:
        """Know the node's state for as long as there is the node.

        A question follows whatever a long poll tells: what had begun to be asked before a pod ended cannot
        say that the node holds nothing for it any more.
        """
        pause_s = self._asking.pause_s
        while not self._unwanted(entry):
            await self.ask(node)
            if entry.etag is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, max(self._asking.pause_s, self._asking.retry_s))
                continue
            pause_s = self._asking.pause_s
            if not await self._follow(node, entry):
                await self.ask(node)
                if entry.etag is not None:
                    await asyncio.sleep(self._asking.again_s)
        self.forget(node)
        self._state.forget(node)

    def _unwanted(self, entry: _Node) -> bool:
        return self._asking.requests_tell and self._clock() - entry.wanted_at > _UNWANTED_S

    async def _follow(self, node: NodeName, entry: _Node) -> bool:
        """Have the server wait until something changes; False when it does not, or cannot be reached."""
        address = entry.preferred
        if self._watches >= self._asking.watches or address is None:
            return False
        peer = entry.peers.pop(address, None) or self._peer(address)
        self._watches += 1
        try:
            while (told := await self._wait(peer, node, entry)) is Told.UNCHANGED:
                pass
        except (OSError, UnicodeError, MalformedError):  # TimeoutError among them; whoever asks is told why
            return False
        finally:
            self._watches -= 1
            if self._nodes.get(node) is entry and address in entry.addresses and address not in entry.peers:
                entry.peers[address] = peer
            else:
                peer.close()
        return told is Told.CHANGED

    async def _wait(self, peer: HttpPeer, node: NodeName, entry: _Node) -> Told:
        asked_at, etag = self._clock(), entry.etag
        if etag is None:
            return Told.CHANGED
        entry.watched = True
        try:
            told, answer = await watch(
                peer, etag, hold_s=self._asking.hold_s, timeout_s=self._asking.timeout_s
            )
        finally:
            entry.watched = False
        if told is Told.CHANGED:
            self.counts.told += 1
        if told is not Told.NOT_HELD and entry.etag == etag and entry.asked_at <= asked_at:
            self._take(node, entry, answer, asked_at)  # else a question was asked since, and knows better
        return told
