"""Present traffic: counters of the nodes that open pages show, read from the nodes' servers.

A page that is loaded has its nodes read for a minute from then on, once for all viewers; nodes that no open
page shows are not read. Each node has a task of its own, so that one that is slow, silent or hostile does not
delay the figures of another one. Its answers are bounded, and are believed about itself alone. If viewers
want more nodes than are read, each has a share.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import httpx2
import structlog

from k8s_rdma.core.traffic import MeanRates, Meter, ProgrammedRates, VfHolder
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.asgi import client_tls, token_of
from k8s_rdma.web.open_pages import WATCH_S
from k8s_rdma.wire.node_metrics import CounterReader
from k8s_rdma.wire.state_socket import SAMPLE_EVERY_S, SOON_S

if TYPE_CHECKING:
    from k8s_rdma.config.web import NodesEndpoint
    from k8s_rdma.core.traffic import CounterSample

PATH = "/metrics"
MAX_NODES = 64
"""Nodes that are read at a time, for all viewers; a page of the cluster has 25."""

_NO_ROOM = f"pages that are open have {MAX_NODES} nodes read, which is the limit; it is read when some close"

MAX_VFS = 1024
"""VFs in use of a node that are read: 8 PFs of 128. All nodes together take 64 MiB at most."""

MAX_BYTES = 8 << 20
"""The limit for a node's metrics; only the lines about VFs are kept."""

NODE_TIMEOUT_S = 5.0
"""The limit for an answer; a server waits up to 2 s for its agent."""

AGAIN_S = 3.0
"""The least time between two questions of a node."""

_log = structlog.get_logger()


class InterfaceTraffic(NamedTuple):
    """An interface of a pod. rates: None until there are two samples of it."""

    name: str
    programmed: ProgrammedRates
    rates: MeanRates | None


class PodOnPf(NamedTuple):
    """A pod on a PF of a node. pci: the PF's address."""

    pci: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The last sample of a node. sent_mbps: by PF with pods, None until all rates there are known.

    has_rates: whether there were two samples.
    failure: why there is no sample; empty if there is one.
    """

    interfaces: Mapping[PodOnPf, tuple[InterfaceTraffic, ...]] = field(default_factory=dict)
    sent_mbps: Mapping[str, float | None] = field(default_factory=dict)
    has_rates: bool = False
    failure: str = ""


class NodeCounterSource:
    """Asks the nodes' servers, each time over a connection of its own."""

    def __init__(
        self, endpoint: NodesEndpoint, *, clock: Callable[[], float], timeout_s: float = NODE_TIMEOUT_S
    ) -> None:
        """Read the files that the endpoint names. MalformedError names the key."""
        tls, token_file = endpoint.tls, endpoint.token_file
        self._port = endpoint.port
        self._timeout_s = timeout_s
        self._clock = clock
        self._token = None if token_file is None else token_of(token_file, field="nodes.tokenFile")
        self._tls = None if tls is None else client_tls(tls, field="nodes.tls")
        self._has_certificate = tls is not None and tls.cert_file is not None
        self._server_name = None if tls is None else tls.server_name

    async def sample(self, node: str, address: str) -> CounterSample | None:
        """Return the latest counters of a node, if its agent has any.

        MalformedError, or an error of the connection, without a usable answer.
        """
        url = httpx2.URL(scheme="https" if self._tls else "http", host=address, port=self._port, path=PATH)
        try:
            return await self._ask(node, url)
        except httpx2.RemoteProtocolError as error:
            if self._tls is None or self._has_certificate:
                raise
            msg = f"{error} Does it demand a certificate? nodes.tls.certFile is not set"
            raise MalformedError(msg) from error

    async def _ask(self, node: str, url: httpx2.URL) -> CounterSample | None:
        headers = {"accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token()}"
        verify = self._tls() if self._tls else False
        extensions = {} if self._server_name is None else {"sni_hostname": self._server_name}
        async with (
            asyncio.timeout(self._timeout_s),
            httpx2.AsyncClient(verify=verify, timeout=self._timeout_s, trust_env=False) as client,
            client.stream("GET", url, headers=headers, extensions=extensions) as reply,
        ):
            if reply.status_code != httpx2.codes.OK:
                msg = f"its server answers HTTP {reply.status_code} for {PATH}{self._explained(reply)}"
                raise MalformedError(msg)
            return await self._read(node, reply)

    def _explained(self, reply: httpx2.Response) -> str:
        """Explain a refusal in words of our own, because a node's text is not trusted."""
        if reply.status_code != httpx2.codes.UNAUTHORIZED:
            return ""
        if self._token is None:
            return ": it demands a token, and nodes.tokenFile is not set"
        return ": it does not accept the token of nodes.tokenFile"

    async def _read(self, node: str, reply: httpx2.Response) -> CounterSample | None:
        counters, received = CounterReader(max_vfs=MAX_VFS, node=node), 0
        async for part in reply.aiter_raw():
            received += len(part)
            if received > MAX_BYTES:
                msg = f"its metrics are longer than {MAX_BYTES} bytes"
                raise MalformedError(msg)
            counters.feed(part)
        return counters.sample(self._clock())


@dataclass(slots=True)
class _Watched:
    """A node that is read. wanted_until: when wants end, by viewer's party.

    task: reads it; None before it begins.
    failures: how many questions got no answer.
    """

    addresses: tuple[str, ...]
    wanted_until: dict[str, float] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    meter: Meter = field(default_factory=Meter)
    measured: Measured = field(default_factory=Measured)
    failures: int = 0

    def viewers(self, now_s: float) -> Collection[str]:
        """Return the parties that want it now; forget others."""
        self.wanted_until = {party: until for party, until in self.wanted_until.items() if now_s < until}
        return self.wanted_until.keys()


class NodeTraffic:
    """Reads the nodes that pages want, if there are servers. clock: seconds, as that of the servers."""

    def __init__(
        self,
        servers: NodeCounterSource | None,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin without nodes."""
        self._servers = servers
        self._clock = clock
        self._pause = pause
        self._watched: dict[str, _Watched] = {}
        self._new: asyncio.Queue[tuple[str, _Watched]] = asyncio.Queue()

    def watch(self, addresses: Mapping[str, tuple[str, ...]], *, party: str) -> Mapping[str, Measured]:
        """Have nodes read for a viewer's party from now on, by name; return their present measurements.

        If too many are read, a node of a party with more of them makes room, so that a party keeps its share.
        Empty without servers.
        """
        if self._servers is None:
            return {}
        wanted_until = self._clock() + WATCH_S
        found = {}
        for node, node_addresses in addresses.items():
            if node not in self._watched and not self._add(node, party):
                found[node] = Measured(failure=_NO_ROOM)
                continue
            watched = self._watched[node]
            watched.addresses, watched.wanted_until[party] = node_addresses, wanted_until
            found[node] = watched.measured
        return found

    def _add(self, node: str, party: str) -> bool:
        if len(self._watched) >= MAX_NODES and not self._make_room(party):
            return False
        watched = self._watched[node] = _Watched(())
        self._new.put_nowait((node, watched))
        return True

    def _make_room(self, party: str) -> bool:
        """End the reading of a node if each party that wants it has at least two nodes more than this one."""
        now_s = self._clock()
        viewers = {node: watched.viewers(now_s) for node, watched in self._watched.items()}
        counts = Counter(viewer for found in viewers.values() for viewer in found)
        fewest = {
            node: min((counts[viewer] for viewer in found), default=inf) for node, found in viewers.items()
        }
        node, count = max(fewest.items(), key=lambda item: item[1])
        if count <= counts[party] + 1:
            return False
        ended = self._watched.pop(node)
        if ended.task is not None:
            ended.task.cancel()
        return True

    async def run(self) -> None:
        """Read nodes until cancelled; return at once without servers."""
        if self._servers is None:
            return
        async with asyncio.TaskGroup() as tasks:
            while True:
                node, watched = await self._new.get()
                if self._watched.get(node) is watched:
                    watched.task = tasks.create_task(self._follow(self._servers, node, watched))

    async def _follow(self, servers: NodeCounterSource, node: str, watched: _Watched) -> None:
        """Read a node until no page wants it any more."""
        try:
            while watched.viewers(self._clock()):
                await _read(servers, node, watched)
                await self._pause(self._next_in_s(watched.meter))
        finally:
            if self._watched.get(node) is watched:
                del self._watched[node]

    def _next_in_s(self, meter: Meter) -> float:
        """Compute when the node will have another sample."""
        if meter.latest is None:
            return SAMPLE_EVERY_S
        return max(AGAIN_S, meter.latest.sampled_at + SAMPLE_EVERY_S - SOON_S / 2 - self._clock())


async def _read(servers: NodeCounterSource, node: str, watched: _Watched) -> None:
    """Read a node once; after a failure it is asked at its next address."""
    if not watched.addresses:
        watched.measured = Measured(failure="the extender knows no address of its server")
        return
    address = watched.addresses[watched.failures % len(watched.addresses)]
    try:
        sample = await servers.sample(node, address)
    except Exception as error:
        if not isinstance(error, (MalformedError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)):
            _log.exception("node_failed", node=node)  # a defect, which costs this node
        watched.failures += 1
        watched.meter.add(None)
        watched.measured = Measured(failure=f"{address}: {_reason(error)}")
    else:
        watched.meter.add(sample)
        watched.measured = _measured(watched.meter)


def _reason(error: Exception) -> str:
    """Explain why a node has no figures; for TLS by OpenSSL's reason, not by names of its calls."""
    if isinstance(error, MalformedError):
        return error.message
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {found.verify_message}"
        if isinstance(found, ssl.SSLError) and found.reason:
            return f"TLS fails: {found.reason.lower().replace('_', ' ')}"
        found = found.__cause__ or found.__context__
    return str(error) or type(error).__name__


def _measured(meter: Meter) -> Measured:
    if meter.latest is None:
        return Measured(failure="its agent has no counters")
    rates = meter.rates()
    interfaces: dict[PodOnPf, list[InterfaceTraffic]] = defaultdict(list)
    on_pfs: dict[str, list[MeanRates | None]] = defaultdict(list)
    for holder, programmed in sorted(meter.latest.programmed.items()):
        found = rates.get(holder)
        interfaces[_place(holder)].append(InterfaceTraffic(holder.interface, programmed, found))
        on_pfs[holder.pf].append(found)
    return Measured(
        has_rates=meter.earlier is not None,
        interfaces={place: tuple(found) for place, found in interfaces.items()},
        sent_mbps={pf: _sum([rate and rate.sent_mbps for rate in found]) for pf, found in on_pfs.items()},
    )


def _place(holder: VfHolder) -> PodOnPf:
    return PodOnPf(holder.pci, holder.namespace, holder.pod)


def _sum(rates: list[float | None]) -> float | None:
    """Add up rates, if all are known."""
    known_rates = [rate for rate in rates if rate is not None]
    return sum(known_rates) if len(known_rates) == len(rates) else None
