"""One node whose `/v1/node` is asked, and followed by long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.cluster.facts import facts_of
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.sources.http_get import PLAIN, HttpPeer, Security
from k8s_rdma.extender.sources.http_watch import PATH, Told, watch
from k8s_rdma.wire.rest import decode_report
from k8s_rdma.wire.rest_error import message_of

if TYPE_CHECKING:
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.sources.http_get import Answer

NEVER = float("-inf")

BYTES_AT_ONCE = 8 * 1024 * 1024
BYTES_PER_S = 512 * 1024
"""Of one node's answers. To read 8 MiB takes up to 0.4 s of the processor, whether they are a report or not,
and the nodes share one: so none gets more than a fortieth of it for long."""

_MOST_ADDRESSES = 4
"""Of a node, the first ones; each may take the time-out, and kubelet writes how many there are."""


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
        not be read is asked again by itself; doubles to some times retry_s.
    gap_s: where one change follows another faster than this, so long passes before the next long poll: a node
        that changes all the time must not keep this process busy.
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
    gap_s: float = 0.1
    pause_s: float = 1.0
    requests_tell: bool = False


@dataclass(slots=True)
class Counts:
    """Answers by what they said, for metrics; told: changes that a long poll told of."""

    changed: int = 0
    unchanged: int = 0
    unreadable: int = 0
    told: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all nodes have in common."""

    state: ClusterState
    asking: Asking
    clock: Callable[[], float]
    slots: asyncio.Semaphore
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    timed_out: bool = False


class HttpNode:
    """A node. One question at a time is its caller's business; the long poll is none, and has its connection.

    asked_at: when the last question began that has an outcome. heard_at: of the last usable answer.
    stands: the latest `since` that this outcome satisfies in `NodeStates.refresh`. watched_until: by then a
    long poll has ended that is under way, and would tell of any other state than the one known; by the clock,
    since the loop's timers stand still while the machine sleeps. wanted_at: when a request last told of the
    node. named, addresses: those that it is said to have, and those of them that are tried. question, keeper:
    the tasks that ask, and that keep the long poll going.
    """

    def __init__(self, name: NodeName, surroundings: Surroundings) -> None:
        self.name = name
        self.asked_at = self.heard_at = self.stands = self.wanted_at = self.watched_until = NEVER
        self.question: asyncio.Task[None] | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.named: tuple[str, ...] = ()
        self.addresses: tuple[str, ...] = ()
        self._preferred: str | None = None
        self._idle: dict[str, HttpPeer] = {}
        self._etag: str | None = None
        self._gone = False
        self._around = surroundings
        self._bytes_left: float = BYTES_AT_ONCE
        self._earned_at = surroundings.clock()

    def readable(self) -> bool:
        """Whether the last answer was usable."""
        return self._etag is not None

    def rest_s(self) -> float:
        """How long the node is to be left alone, since its answers were more than it may send."""
        overdrawn = -self._bytes_left - (self._around.clock() - self._earned_at) * BYTES_PER_S
        return max(0.0, overdrawn / BYTES_PER_S)

    def move(self, addresses: tuple[str, ...]) -> None:
        """It is to be reached there."""
        self.named, self.addresses = addresses, addresses[:_MOST_ADDRESSES]
        self.stands = self._rested(NEVER)
        for gone in self._idle.keys() - set(self.addresses):
            self._idle.pop(gone).close()

    def close(self) -> None:
        """It does not exist any more: whatever is under way comes to nothing."""
        self._gone = True
        for task in (self.question, self.keeper):
            if task:
                task.cancel()
        for peer in self._idle.values():
            peer.close()

    async def ask(self) -> None:
        """Ask at each address in turn, the one first that answered last; a failure is noted in the state."""
        asking = self._around.asking
        async with self._around.slots:
            asked_at = self._around.clock()
            failures = await self._try_addresses(asked_at)
        self.asked_at, self.stands = asked_at, self._rested(asked_at)
        if failures is None or self._gone:
            return
        self._around.counts.unreadable += 1
        self._etag = None
        if any(failure.timed_out for failure in failures):
            self.stands = max(self.stands, asked_at + asking.retry_s)
        why = "; ".join(failure.why for failure in failures) or "it has no InternalIP or InternalDNS address"
        heard = f"; heard from {asked_at - self.heard_at:.0f} s ago" if self.heard_at != NEVER else ""
        self._around.state.lose(self.name, f"{why}{heard}")

    async def follow(self) -> bool:
        """Have the server wait until something changes; False when it does not, or cannot be reached."""
        address = self._preferred
        if address is None:
            return False
        try:
            with self._peer(address) as peer:
                while (told := await self._wait(peer)) is Told.UNCHANGED:
                    pass
        except (OSError, UnicodeError, MalformedError):  # TimeoutError among them; whoever asks is told why
            return False
        return told is Told.CHANGED

    def _rested(self, at: float) -> float:
        """At that time, but not before the node has been left alone."""
        rest_s = self.rest_s()
        return self._around.clock() + rest_s if rest_s else at

    async def _try_addresses(self, asked_at: float) -> list[_Failure] | None:
        failures = []
        for address in sorted(self.addresses, key=lambda address: address != self._preferred):
            failure = await self._try(address, asked_at)
            if failure is None:
                self._preferred = address
                return None
            failures.append(failure)
        return failures

    async def _try(self, address: str, asked_at: float) -> _Failure | None:
        asking = self._around.asking
        where = f"{address}:{asking.port}"
        try:
            async with asyncio.timeout(asking.timeout_s):
                with self._peer(address) as peer:
                    answer = await peer.get(PATH, etag=self._etag)
            self._take(answer, asked_at)
        except TimeoutError:
            return _Failure(f"{where}: no answer in {asking.timeout_s:g} s", timed_out=True)
        except (OSError, UnicodeError) as error:
            return _Failure(f"{where}: {error}")
        except MalformedError as error:
            return _Failure(f"{where}: {error.message}")
        return None

    async def _wait(self, peer: HttpPeer) -> Told:
        asking, asked_at, etag = self._around.asking, self._around.clock(), self._etag
        if etag is None:
            return Told.CHANGED
        self.watched_until = asked_at + asking.hold_s + asking.timeout_s
        try:
            told, answer = await watch(peer, etag, hold_s=asking.hold_s, timeout_s=asking.timeout_s)
        finally:
            self.watched_until = NEVER
        if told is Told.CHANGED:
            self._around.counts.told += 1
        if told is not Told.NOT_HELD and self._etag == etag and self.asked_at <= asked_at:
            self._take(answer, asked_at)  # else a question was asked since, and knows better
        return told

    def _take(self, answer: Answer, asked_at: float) -> None:
        if self._gone:
            return
        self._spend(len(answer.body))
        counts, state = self._around.counts, self._around.state
        if answer.status == 304 and self._etag is not None:
            counts.unchanged += 1
            state.confirm(self.name, asked_at)
        elif answer.status != 200:
            told = message_of(answer.body)
            msg = f"{PATH} answers HTTP {answer.status}{f': {told}' if told else ''}"
            raise MalformedError(msg)
        else:
            facts = facts_of(decode_report(answer.body), self.name)
            counts.changed += 1
            self._etag = answer.etag
            state.observe(self.name, facts, asked_at)
        self.heard_at = self._around.clock()

    def _spend(self, size: int) -> None:
        now = self._around.clock()
        earned = (now - self._earned_at) * BYTES_PER_S
        self._bytes_left = min(BYTES_AT_ONCE, self._bytes_left + earned) - size
        self._earned_at = now

    @contextmanager
    def _peer(self, address: str) -> Iterator[HttpPeer]:
        """A connection to have alone: a question may begin while a long poll waits, and the reverse."""
        asking = self._around.asking
        peer = self._idle.pop(address, None) or HttpPeer(address, asking.port, asking.security)
        try:
            yield peer
        finally:
            if self._gone or address not in self.addresses or address in self._idle:
                peer.close()
            else:
                self._idle[address] = peer
