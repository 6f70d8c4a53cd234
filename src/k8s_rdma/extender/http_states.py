"""Node states by asking every node's `/v1/node` over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.facts import facts_of
from k8s_rdma.extender.http_get import HttpPeer
from k8s_rdma.wire.rest import decode_report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.http_get import Answer
    from k8s_rdma.extender.state import ClusterState

PATH = "/v1/node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How nodes are asked.

    port: of the nodes' servers. timeout_s: for one question at one address.
    retry_s: how long a node that timed out is left alone by `refresh`, so that a dead node delays one
        filter in this time rather than all of them.
    parallel: how many are asked at once; the time-out of the others does not run yet.
    """

    port: int = 54005
    timeout_s: float = 1.5
    retry_s: float = 10.0
    parallel: int = 512


@dataclass(slots=True)
class Counts:
    """Questions by outcome, for metrics."""

    changed: int = 0
    unchanged: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    timed_out: bool = False


@dataclass(slots=True)
class _Node:
    """What is remembered of asking a node.

    preferred: the address that answered last. etag: of the report that the state holds; None when the
    next answer must be a whole one. asked_at: when the last question began that has an outcome.
    stands: the latest `since` that this outcome satisfies in `refresh`.
    """

    addresses: tuple[str, ...] = ()
    peers: dict[str, HttpPeer] = field(default_factory=dict)
    preferred: str | None = None
    etag: str | None = None
    asked_at: float = float("-inf")
    stands: float = float("-inf")
    question: asyncio.Task[None] | None = None


class HttpNodeStates:
    """`NodeStates` over HTTP; an async context manager that owns the questions under way.

    A node is asked one question at a time, and everyone whose need it meets waits for the same one.
    """

    def __init__(self, state: ClusterState, asking: Asking, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self._state = state
        self._asking = asking
        self._clock = clock
        self._nodes: dict[NodeName, _Node] = {}
        self._slots = asyncio.Semaphore(asking.parallel)
        self._questions = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._questions.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for entry in self._nodes.values():
            if entry.question:
                entry.question.cancel()
        try:
            await self._questions.__aexit__(kind, error, trace)
        finally:
            for node in list(self._nodes):
                self.forget(node)

    async def refresh(self, nodes: Collection[NodeName], *, since: float) -> None:
        """As `NodeStates.refresh`."""
        known, since = self._nodes, min(since, self._clock())
        while stale := [n for n in nodes if (entry := known.get(n)) is not None and entry.stands < since]:
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
            entry.stands = float("-inf")
            for gone in entry.peers.keys() - set(addresses):
                entry.peers.pop(gone).close()

    def suggest(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.suggest`."""
        if node not in self._nodes:
            self.learn(node, addresses)

    def forget(self, node: NodeName) -> None:
        """As `NodeStates.forget`; a question under way comes to nothing."""
        entry = self._nodes.pop(node, None)
        if entry is not None:
            for peer in entry.peers.values():
                peer.close()

    def _question(self, node: NodeName, entry: _Node) -> asyncio.Task[None]:
        if entry.question is None or entry.question.done():
            entry.question = self._questions.create_task(self._ask(node, entry))
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
        why = "; ".join(failure.why for failure in failures)
        self._state.lose(node, why or "it has no InternalIP or InternalDNS address")

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
        peer = entry.peers.setdefault(address, HttpPeer(address, self._asking.port))
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
            return
        if answer.status != 200:
            msg = f"{PATH} answers HTTP {answer.status}"
            raise MalformedError(msg)
        facts = facts_of(decode_report(answer.body), node)
        self.counts.changed += 1
        entry.etag = answer.etag
        self._state.observe(node, facts, asked_at)
