"""Poller of every node's `/v1/node`: by long poll, and by plain requests if a server has no long poll.

Placements go the other way: to the agents that have them sent.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto, unique
from time import monotonic
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from k8s_rdma.config.addresses import SERVER_PORT
from k8s_rdma.config.extender import NODE_TIMEOUT_S, RETRY_S
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.http_client import PLAIN, HttpPeer, HttpResponse, Security
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import MAX_ADDRESSES, facts_of
from k8s_rdma.http_server.asgi import client_tls, token_of
from k8s_rdma.wire.http_error import message_of
from k8s_rdma.wire.report import MAX_REFUSAL, NodeReport, decode_report

if TYPE_CHECKING:
    from types import TracebackType

    from k8s_rdma.config.extender import ExtenderConfig
    from k8s_rdma.core.types import NodeName
    from k8s_rdma.extender.metrics import Reading

NEVER = float("-inf")

BYTES_AT_ONCE = 8 * 1024 * 1024
BYTES_PER_S = 512 * 1024
"""The limit for one node's answers. Reading 8 MiB takes up to 0.4 s of processor time, whether they are a
report or not, and all nodes share one processor: so no node gets more than a fortieth of it for long."""

_QUICK_S = 0.1
_PATIENCE = 6
"""Times as long as an answer took that a node is left alone from the question on, unless it was quick. A
filter waits for every node, and with a late one no pod of the cluster would get further."""

_RIT_ENDPOINTS = b"AvailableEndpoints:"
"""The beginning of an answer to a path that it does not know (rit-k8s-rdma/rdma-ds, src/server.go)."""

PATH = "/v1/node"
PLACEMENTS_PATH = "/v1/placements"

_EARLY = 0.9
"""A share of the server's requested waiting time: an earlier answer does not result from the wait."""

_SPREAD = 0.2
"""A share of that time, by which waits differ, so that a thousand nodes do not answer at the same moment."""

_UNWANTED_S = 3600.0
"""A node that only requests name is gone after so long without a request that names it."""

_RESTS = 6
"""Times `NodePollConfig.retry_s`: the longest pause before a node that cannot be read is asked by itself.
There may be thousands without a server; a request that needs such a node's state asks the node earlier."""

_RESERVED_DESCRIPTORS = 1024
"""Files that are open beside long polls: other questions, clients, the API server."""

_HOLD_S = 25.0
"""Shorter than what proxies and firewalls forget a silent connection after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePollConfig:
    """The configuration of polling.

    port: of the nodes' servers. timeout_s: for one question at one address. security: TLS and token.
    retry_s: how long a node that timed out is left alone by `refresh`, so that a dead node delays one
        filter in this time rather than all of them.
    parallel: how many are asked at once; the time-out of the others does not run yet.
    watches: how many long polls there may be, each a connection of its own; with 0 nodes are asked only when
        somebody needs their states. hold_s: how long a server is to wait for a change; what is known of a
        node is older by no more than this, the way, and a question's time-outs. again_s: after which a server
        that does not wait is asked, by long poll too, in case it does now. pause_s: before a node that could
        not be read is asked again by itself; doubles to some times retry_s.
    gap_s: if one change follows another faster than this, the next long poll waits so long, because a node
        that changes all the time must not keep this process busy.
    requests_tell: addresses come with requests alone, since there is no API server to ask.
    """

    port: int = SERVER_PORT
    timeout_s: float = NODE_TIMEOUT_S
    security: Security = PLAIN
    retry_s: float = RETRY_S
    parallel: int = 512
    watches: int = 0
    hold_s: float = 25.0
    again_s: float = 30.0
    gap_s: float = 0.1
    pause_s: float = 1.0
    requests_tell: bool = False


@dataclass(slots=True)
class PollCounts:
    """Counts of answers by kind, for metrics; reports: changes that a long poll reported."""

    changed: int = 0
    unchanged: int = 0
    unreadable: int = 0
    reports: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePollContext:
    """The parts that all nodes share."""

    state: ClusterState
    config: NodePollConfig
    clock: Callable[[], float]
    slots: asyncio.Semaphore
    counts: PollCounts = field(default_factory=PollCounts)


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    timed_out: bool = False


class HttpNode:
    """A node. Callers ask one question at a time; the long poll is no question, and has its own connection.

    polled_at: when the last question began that has an outcome. heard_at: of the last usable answer.
    stands: the latest `since` that this outcome satisfies in `NodeSource.refresh`. watched_until: by then a
    long poll has ended that is under way, and would tell of any other state than the one known; by the clock,
    since the loop's timers stand still while the machine sleeps. requested_at: when a request last named
    the node. named, addresses: those that it is said to have, and those of them that are tried. question,
    keeper: the tasks that ask, and that keep the long poll going.
    """

    def __init__(self, name: NodeName, context: NodePollContext) -> None:
        self.name = name
        self.polled_at = self.heard_at = self.stands = self.requested_at = self.watched_until = NEVER
        self.question: asyncio.Task[None] | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.named: tuple[str, ...] = ()
        self.addresses: tuple[str, ...] = ()
        self._preferred: str | None = None
        self._idle: dict[str, HttpPeer] = {}
        self._etag: str | None = None
        self._is_removed = False
        self._context = context
        self._bytes_left: float = BYTES_AT_ONCE
        self._earned_at = context.clock()

    def readable(self) -> bool:
        """Report whether the last answer was usable."""
        return self._etag is not None

    def rest_s(self) -> float:
        """The time for which the node is not asked, since its answers exceeded its rate."""
        overdrawn = -self._bytes_left - (self._context.clock() - self._earned_at) * BYTES_PER_S
        return max(0.0, overdrawn / BYTES_PER_S)

    def move(self, addresses: tuple[str, ...]) -> None:
        """Use these addresses from now on."""
        self.named, self.addresses = addresses, addresses[:MAX_ADDRESSES]
        self.stands = self._rested(NEVER)
        for removed in self._idle.keys() - set(self.addresses):
            self._idle.pop(removed).close()

    def close(self) -> None:
        """Cancel the questions under way, because the node does not exist any more."""
        self._is_removed = True
        for task in (self.question, self.keeper):
            if task:
                task.cancel()
        for peer in self._idle.values():
            peer.close()

    async def request_report(self) -> None:
        """Ask at each address in turn, the one first that answered last; a failure is noted in the state."""
        config = self._context.config
        async with self._context.slots:
            requested_at = self._context.clock()
            failures = await self._try_addresses(requested_at)
        took_s = self._context.clock() - requested_at
        rest_s = min(config.retry_s, _PATIENCE * took_s) if took_s > _QUICK_S else 0.0
        self.polled_at, self.stands = requested_at, max(self._rested(requested_at), requested_at + rest_s)
        if failures is None or self._is_removed:
            return
        self._context.counts.unreadable += 1
        self._etag = None
        if any(failure.timed_out for failure in failures):
            self.stands = max(self.stands, requested_at + config.retry_s)
        why = "; ".join(failure.why for failure in failures) or "it has no InternalIP or InternalDNS address"
        last = f"; last report {requested_at - self.heard_at:.0f} s ago" if self.heard_at != NEVER else ""
        self._context.state.lose(self.name, f"{why}{last}")

    async def follow(self) -> bool:
        """Have the server wait until something changes; False if it does not wait, or cannot be reached."""
        address = self._preferred
        if address is None:
            return False
        try:
            with self._peer(address) as peer:
                while (answered := await self._wait(peer)) is Answered.UNCHANGED:
                    pass
        except (OSError, UnicodeError, MalformedError):  # OSError: also TimeoutError
            return False
        return answered is Answered.CHANGED

    async def deliver(self, placement: str) -> str:
        """Send a placement to the address that answered last; see `NodeSource.deliver`."""
        address, config = self._preferred, self._context.config
        if address is None or self.rest_s():
            return ""
        try:
            async with asyncio.timeout(config.timeout_s):
                with self._peer(address) as peer:
                    answer = await peer.post(PLACEMENTS_PATH, placement.encode())
        except (OSError, UnicodeError):  # OSError: also TimeoutError
            return ""
        if not 400 <= answer.status < 500:
            return ""
        message = message_of(answer.body)[:MAX_REFUSAL]
        return message or f"{PLACEMENTS_PATH} answers HTTP {answer.status}"

    def _rested(self, now: float) -> float:
        """The later of that time and the end of the node's rest."""
        rest_s = self.rest_s()
        return self._context.clock() + rest_s if rest_s else now

    async def _try_addresses(self, requested_at: float) -> list[_Failure] | None:
        failures = []
        for address in sorted(self.addresses, key=lambda address: address != self._preferred):
            failure = await self._try(address, requested_at)
            if failure is None:
                self._preferred = address
                return None
            failures.append(failure)
        return failures

    async def _try(self, address: str, requested_at: float) -> _Failure | None:
        config = self._context.config
        authority = f"{address}:{config.port}"
        try:
            async with asyncio.timeout(config.timeout_s):
                with self._peer(address) as peer:
                    answer = await peer.get(PATH, etag=self._etag)
            self._store(answer, requested_at)
        except TimeoutError:
            return _Failure(f"{authority}: no answer in {config.timeout_s:g} s", timed_out=True)
        except (OSError, UnicodeError) as error:
            return _Failure(f"{authority}: {error}")
        except MalformedError as error:
            return _Failure(f"{authority}: {error.message}")
        return None

    async def _wait(self, peer: HttpPeer) -> Answered:
        config, requested_at, etag = self._context.config, self._context.clock(), self._etag
        if etag is None:
            return Answered.CHANGED
        self.watched_until = requested_at + config.hold_s + config.timeout_s
        try:
            answered, answer = await watch(peer, etag, hold_s=config.hold_s, timeout_s=config.timeout_s)
        finally:
            self.watched_until = NEVER
        if answered is Answered.CHANGED:
            self._context.counts.reports += 1
        if answered is not Answered.NOT_HELD and self._etag == etag and self.polled_at <= requested_at:
            self._store(answer, requested_at)  # else a question was asked since, and knows better
        return answered

    def _store(self, answer: HttpResponse, requested_at: float) -> None:
        if self._is_removed:
            return
        counts, state = self._context.counts, self._context.state
        if answer.status == 304 and self._etag is not None:
            counts.unchanged += 1
            state.confirm(self.name, requested_at)
        elif answer.status != 200:
            message = message_of(answer.body)
            msg = f"{PATH} answers HTTP {answer.status}{f': {message}' if message else ''}"
            raise MalformedError(msg)
        else:
            facts = facts_of(_report(answer.body), self.name)
            counts.changed += 1
            self._etag = answer.etag
            state.observe(self.name, facts, requested_at)
        self.heard_at = self._context.clock()

    def _spend(self, size: int) -> None:
        now = self._context.clock()
        earned = (now - self._earned_at) * BYTES_PER_S
        self._bytes_left = min(BYTES_AT_ONCE, self._bytes_left + earned) - size
        self._earned_at = now

    @contextmanager
    def _peer(self, address: str) -> Iterator[HttpPeer]:
        """A connection to have alone: a question may begin while a long poll waits, and the reverse."""
        config = self._context.config
        peer = self._idle.pop(address, None) or HttpPeer(address, config.port, config.security)
        try:
            yield peer
        finally:
            self._spend(peer.received)
            peer.received = 0
            if self._is_removed or address not in self.addresses or address in self._idle:
                peer.close()
            else:
                self._idle[address] = peer


def _report(body: bytes) -> NodeReport:
    """Decode an answer; MalformedError says of RIT's server, which answers every path, that it is one."""
    try:
        return decode_report(body)
    except MalformedError as error:
        if body.startswith(_RIT_ENDPOINTS):
            msg = f"{PATH}: the server there is RIT's, which answers only /getpfs: migrate the node"
            raise MalformedError(msg) from error
        raise


@unique
class Answered(Enum):
    """The outcome of a long poll."""

    CHANGED = auto()
    UNCHANGED = auto()
    NOT_HELD = auto()
    """The server did not wait: it knows no long poll, has no room for it, is ending, or has no report."""


async def watch(
    peer: HttpPeer, etag: str, *, hold_s: float, timeout_s: float
) -> tuple[Answered, HttpResponse]:
    """Wait until the node's report is not `etag` any more, or for about `hold_s`.

    OSError and TimeoutError when there was no answer by then; timeout_s: for the way.
    """
    hold_s = round(hold_s * (1 - _SPREAD * random.random()), 3)
    generation = quote(etag.removeprefix("W/").strip('"'), safe="")
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(hold_s + timeout_s):
        answer = await peer.get(f"{PATH}?watch={generation}&timeout_s={hold_s:g}")
    if answer.status == 200 and answer.etag not in (None, etag):
        return Answered.CHANGED, answer
    waited_s = asyncio.get_running_loop().time() - began
    full_wait = answer.status == 304 and waited_s >= _EARLY * hold_s
    return (Answered.UNCHANGED if full_wait else Answered.NOT_HELD), answer


class HttpPoller:
    """`NodeSource` over HTTP; an async context manager that owns the questions under way.

    A node is asked one question at a time, and everyone whose need it meets waits for the same one. A long
    poll is not such a question: what it tells leads to one.
    """

    def __init__(self, state: ClusterState, config: NodePollConfig, clock: Callable[[], float]) -> None:
        self._state = state
        self._config = config
        self._clock = clock
        slots = asyncio.Semaphore(config.parallel)
        self._context = NodePollContext(state=state, config=config, clock=clock, slots=slots)
        self.counts = self._context.counts
        self._nodes: dict[NodeName, HttpNode] = {}
        self._watches = 0
        self._filled = not config.watches
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

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Implement `NodeSource.refresh`."""
        http_nodes, ending, now = self._nodes, self._state.ending, self._clock()
        newer_than = min(newer_than, now)
        while stale := [
            node
            for name in nodes
            if (node := http_nodes.get(name)) is not None
            and (
                node.stands < now if name in ending else node.stands < newer_than and node.watched_until < now
            )
        ]:
            await asyncio.wait([self._question(node) for node in stale])

    async def request_report(self, node: NodeName) -> None:
        """Implement `NodeSource.request_report`."""
        called_at = self._clock()
        while (http_node := self._nodes.get(node)) is not None and http_node.polled_at < called_at:
            await asyncio.wait([self._question(http_node)])

    async def deliver(self, node: NodeName, placement: str) -> str:
        """Implement `NodeSource.deliver`."""
        http_node, facts = self._nodes.get(node), self._state.facts(node)
        if http_node is None or facts is None or not facts.takes_placements:
            return ""
        return await http_node.deliver(placement)

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """Implement `NodeSource.learn`."""
        http_node = self._nodes.get(node)
        if http_node is None:
            http_node = self._nodes[node] = HttpNode(node, self._context)
        elif http_node.named == addresses:
            return
        http_node.move(addresses)
        if http_node.keeper:
            http_node.keeper.cancel()
        if self._config.watches:
            http_node.keeper = self._tasks.create_task(self._poll_forever(http_node))

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        """Implement `NodeSource.suggest`."""
        is_known = node in self._nodes
        if is_known and not self._config.requests_tell:
            return
        current = addresses()
        if current or not is_known:
            self.learn(node, current)
        if self._config.requests_tell:
            self._nodes[node].requested_at = self._clock()

    def addresses(self, node: NodeName) -> tuple[str, ...]:
        """Implement `NodeSource.addresses`."""
        http_node = self._nodes.get(node)
        return () if http_node is None else http_node.addresses

    def forget(self, node: NodeName) -> None:
        """Implement `NodeSource.forget`; a question under way is cancelled."""
        http_node = self._nodes.pop(node, None)
        if http_node is not None:
            http_node.close()

    def awaited(self) -> int:
        """Implement `NodeSource.awaited`."""
        if self._filled:
            return 0
        awaited = sum(node.polled_at == NEVER for node in self._nodes.values())
        self._filled = bool(self._nodes) and not awaited
        return awaited

    def sources(self) -> Counter[tuple[str, ...]]:
        """Count the nodes that are `watched`, `asked` (their servers hold no long poll), or `unreadable`."""
        now, unreadable = self._clock(), self._state.unreadable
        return Counter(
            ("unreadable" if name in unreadable else "watched" if node.watched_until >= now else "asked",)
            for name, node in self._nodes.items()
        )

    def oldest_s(self) -> float:
        """The time since the last answer of the readable node that has been silent for longest."""
        now, unreadable = self._clock(), self._state.unreadable
        heard = [node.heard_at for name, node in self._nodes.items() if name not in unreadable]
        return now - min((heard_at for heard_at in heard if heard_at != NEVER), default=now)

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        counts = self.counts
        answers = {
            "node_reports_total": ("Nodes' answers that held a report.", lambda: counts.changed),
            "node_unchanged_total": ("Nodes' answers that nothing changed.", lambda: counts.unchanged),
            "node_unreadable_total": ("Questions that got no usable answer.", lambda: counts.unreadable),
            "node_changes_received_total": ("Changes reported by long poll.", lambda: counts.reports),
        }
        return {name: (help_text, "counter", read) for name, (help_text, read) in answers.items()}

    def _question(self, node: HttpNode) -> asyncio.Task[None]:
        if node.question is None or node.question.done():
            node.question = self._tasks.create_task(node.request_report())
        return node.question

    async def _poll_forever(self, node: HttpNode) -> None:
        """Keep the node's state up to date for as long as the node exists.

        A question follows whatever a long poll tells: what had begun to be asked before a pod ended cannot
        say that the node does not hold interfaces for it any more.
        """
        config, quick = self._config, 0
        first_s, most_s = config.pause_s, max(config.pause_s, _RESTS * config.retry_s)
        pause_s = first_s
        while not self._unwanted(node):
            if rest_s := node.rest_s():
                await asyncio.sleep(rest_s)
            await self.request_report(node.name)
            if not node.readable():
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))
                pause_s = min(2 * pause_s, most_s)
                continue
            pause_s = first_s
            if quick > 1:
                await asyncio.sleep(config.gap_s)
            began = self._clock()
            if await self._follow(node):
                quick = quick + 1 if self._clock() - began < config.gap_s else 0
                continue
            await self.request_report(node.name)
            if node.readable():
                await asyncio.sleep(config.again_s)
        self.forget(node.name)
        self._state.forget(node.name)

    async def _follow(self, node: HttpNode) -> bool:
        if self._watches >= self._config.watches:
            return False
        self._watches += 1
        try:
            return await node.follow()
        finally:
            self._watches -= 1

    def _unwanted(self, node: HttpNode) -> bool:
        return self._config.requests_tell and self._clock() - node.requested_at > _UNWANTED_S


def poll_config(config: ExtenderConfig) -> NodePollConfig:
    """Read the configuration of polling; MalformedError as `security_of`.

    A node whose long poll is not answered is asked once more, so that both have to fit into `stale_s`.
    """
    return NodePollConfig(
        port=config.node_port,
        timeout_s=config.node_timeout_s,
        security=security_of(config),
        retry_s=config.retry_s,
        watches=min(config.node_watches, _connections() - _RESERVED_DESCRIPTORS),
        hold_s=min(_HOLD_S, config.stale_s / 2),
        requests_tell=not config.api,
    )


def _connections() -> int:
    """The number of connections that this process may have open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else max(hard, _RESERVED_DESCRIPTORS)


def security_of(config: ExtenderConfig, *, clock: Callable[[], float] = monotonic) -> Security:
    """Read the configured credentials; MalformedError names the field whose file is unusable.

    Files are read again when they change, for the connections and questions from then on.
    """
    tls, token = config.node_tls, config.node_token_file
    return Security(
        tls=None if tls is None else client_tls(tls, field="nodeTls", clock=clock),
        server_name=None if tls is None else tls.server_name,
        token=None if token is None else token_of(token, field="nodeTokenFile", clock=clock),
    )
