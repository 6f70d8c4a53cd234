"""The DRA driver: kubelet's side of ResourceClaims. Every decision is the agent's, which it asks for each.

Kubelet finds the driver by a socket in its registry, whose name and that of the driver's own socket contain
the UID of the pod that the process runs in: during an update two of them are there at once, kubelet asks the
one that came last, and the node is never without a driver (Kubernetes 1.36, pkg/kubelet/cm/dra/plugin).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import structlog
from prometheus_client import Histogram, disable_created_metrics

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.core.types import NodeName
from k8s_rdma.deviceplugin.directory_watch import DirectoryWatch
from k8s_rdma.deviceplugin.prepared_claims import (
    ABANDONMENT_TIMES,
    AbandonedClaims,
    AbandonmentTimes,
    ClaimStatuses,
    Handovers,
)
from k8s_rdma.deviceplugin.resource import PREFIX, Followers, Observable, check_path, is_served, open_endpoint
from k8s_rdma.deviceplugin.resource_slices import SlicePublisher
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.grpc_calls import handler, stream_handler
from k8s_rdma.linux.numa_nodes import nearest_nodes
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.claim_status import decode_state
from k8s_rdma.wire.claims import (
    DRIVER,
    LONGEST_WAIT_S,
    MAX_LINE_BYTES,
    NO_POD,
    SILENCE_S,
    ClaimAnswer,
    ClaimName,
    ClaimQuestion,
    Offers,
    Prepare,
    decode_answer,
    decode_offers,
    encode_line,
)
from k8s_rdma.wire.dra import (
    GET_INFO,
    NOTIFY,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
    Answers,
    Claims,
    DeviceHealth,
    PluginInfo,
    RegistrationStatus,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

    from k8s_rdma.config.devices import ClaimsConfig, DevicePluginConfig
    from k8s_rdma.deviceplugin.resource import Handlers, ResourceEndpoint
    from k8s_rdma.kube.resource_slices import SlicesApi

_log = structlog.get_logger()

RETRY_S, LAST_RETRY_S = 0.2, 5.0
"""The delay before the agent, or the API server, is asked again; the longest one for the API server."""

ANSWER_S = 4.0
"""The time for the agent's answer beyond its longest wait: kubelet gives up after 45 s."""

AGENT_AWAY_S = 60.0
"""The time without the agent after which no new pods are to come; it restarts within seconds."""

HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 10.0, 30
"""The interval of health reports, and the time after which kubelet forgets one."""

SERVE_RETRY_S = 1.0

DRAIN_S = 25.0
"""The time for calls under way when the process ends, which has 30 s by Kubernetes' default: kubelet tries a
prepare that failed again after 80 s."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0)
"""Bounds of durations: from an answer at once to kubelet's deadline."""

_PASSING = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_MANY_REQUESTS,
)
"""Refusals of the API server that end by themselves: a token is replaced, a server has too much to do."""

MAX_ERROR_CHARACTERS = 500
"""Kubelet makes an event of an error."""


class ClaimsAgent:
    """The agent, at its `claims.sock`.

    offers: the latest, if there were any. away_since_s: of the monotonic clock, while it is away.
    """

    def __init__(self, socket: Path, *, silence_s: float = SILENCE_S) -> None:
        """Connect when the first question is asked. silence_s: after which the agent counts as away."""
        self._socket = socket
        self._silence_s = silence_s
        self.offers = Observable[Offers | None](None)
        self.away_since_s = Observable[float | None](time.monotonic())

    async def ask(self, question: Callable[[], ClaimQuestion], deadline_s: float) -> ClaimAnswer:
        """Ask, and again while the agent cannot be reached before the deadline (of the monotonic clock).

        question: makes it for each attempt.
        """
        while True:
            try:
                async with asyncio.timeout(deadline_s + ANSWER_S - time.monotonic()):
                    return await self._ask(question())
            except (OSError, EOFError, ValueError, TimeoutError, MalformedError) as error:
                if time.monotonic() + RETRY_S >= deadline_s:
                    why = f"the agent cannot be reached at {self._socket}: {error or 'no answer in time'}"
                    return ClaimAnswer(error=why, reason=Reason.AGENT_UNREACHABLE)
            await asyncio.sleep(RETRY_S)

    async def _ask(self, question: ClaimQuestion) -> ClaimAnswer:
        incoming, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE_BYTES)
        try:
            writer.write(encode_line(question))
            await writer.drain()
            return decode_answer(_whole(await incoming.readline()))
        finally:
            writer.close()

    async def follow(self) -> NoReturn:
        """Keep `offers` and `away_since_s` up to date until cancelled."""
        problem = ""
        while True:
            try:
                await self._follow()
            except (OSError, EOFError, ValueError, TimeoutError, MalformedError) as error:
                if str(error) != problem or self.away_since_s.value is None:
                    _log.warning("agent_lost", socket=str(self._socket), error=str(error))
                problem = str(error)
            if self.away_since_s.value is None:
                self.away_since_s.publish(time.monotonic())
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> NoReturn:
        incoming, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE_BYTES)
        try:
            writer.write(encode_line(ClaimQuestion(follow=True)))
            while True:
                async with _within(self._silence_s):
                    line = _whole(await incoming.readline())
                offers = decode_offers(line)
                self.away_since_s.publish(None)
                self.offers.publish(offers)
        finally:
            writer.close()


@asynccontextmanager
async def _within(silence_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(silence_s):
            yield
    except TimeoutError as error:
        msg = f"it has said nothing for {silence_s:.0f} s"
        raise TimeoutError(msg) from error


def _whole(line: bytes) -> bytes:
    if not line.endswith(b"\n"):
        raise EOFError("it ended the connection")
    return line


class DraDriver:
    """Serves kubelet, and publishes the node's PFs.

    registration: why kubelet does not use the driver; empty once it has registered it.
    """

    def __init__(
        self,
        config: DevicePluginConfig,
        claims: ClaimsConfig,
        api: SlicesApi,
        *,
        agent_away_s: float = AGENT_AWAY_S,
        abandonment_times: AbandonmentTimes = ABANDONMENT_TIMES,
    ) -> None:
        """Prepare only. MalformedError if a directory's path is too long for sockets."""
        self._agent_away_s = agent_away_s
        self._api = api
        self._node = NodeName(config.node or "")
        self._agent = ClaimsAgent(Path(config.run_dir) / CLAIMS_SOCKET)
        uid = claims.uid or uuid.uuid4().hex[:12]
        self._registry = Path(claims.registry_dir)
        self._directory = Path(claims.plugins_dir) / DRIVER
        self._socket = self._directory / f"dra-{uid}.sock"
        self._registration_socket = self._registry / f"{DRIVER}-{uid}-reg.sock"
        check_path(self._socket, "claims.pluginsDir")
        check_path(self._registration_socket, "claims.registryDir")
        near_nodes = partial(nearest_nodes, Sysfs()) if claims.numa_node_list else None
        self.slices = SlicePublisher(api, self._node, near_nodes=near_nodes)
        self.statuses = ClaimStatuses(api, self._node, self._agent.offers)
        self._handovers = Handovers(api, self._node, self._agent.offers, self._ask_now)
        self._abandoned = AbandonedClaims(api, self._agent.offers, self._ask_now, abandonment_times)
        self.registration = "kubelet has not registered the driver yet"
        self.counts: Counter[tuple[str, bool]] = Counter()
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.durations = Histogram(
            f"{PREFIX}claims_duration_seconds",
            "Duration of kubelet's calls for ResourceClaims.",
            ("command",),
            registry=None,
            buckets=SECONDS,
        )
        for command in ("prepare", "unprepare"):
            self.durations.labels(command)
        self._health = Observable[tuple[DeviceHealth, ...]](())
        self._known_to_kubelet = asyncio.Event()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def problem(self) -> str:
        """Reason why pods with claims may not start on this node; empty when they do."""
        agent = "" if self.agent_up else "the agent cannot be reached"
        return "; ".join(filter(None, (self.registration, self.slices.problem, agent)))

    @property
    def agent_up(self) -> bool:
        """Report whether the agent reports its offers."""
        return self._agent.away_since_s.value is None

    async def run(self) -> NoReturn:
        """Serve until cancelled, then remove the sockets; the slices stay."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._agent.follow())
            tasks.create_task(self._offer())
            tasks.create_task(self.slices.run())
            tasks.create_task(self.statuses.run())
            tasks.create_task(self._handovers.run())
            tasks.create_task(self._abandoned.run())
            await self._serve()
        raise AssertionError

    async def _serve(self) -> NoReturn:
        """Keep both sockets in place, even if their directories are removed."""
        while True:
            try:
                async with AsyncExitStack() as opened:
                    endpoints = [await self._open(opened, *endpoint) for endpoint in self._endpoints()]
                    await self._watch_sockets(endpoints)
            except (K8sRdmaError, OSError) as error:
                if str(error) != self.registration:
                    _log.warning("driver_not_served", error=str(error))
                self.registration = str(error)
                await asyncio.sleep(SERVE_RETRY_S)

    async def _watch_sockets(self, endpoints: list[ResourceEndpoint]) -> None:
        """Return when a socket is lost; if cancelled, end when the calls under way have been answered."""
        socket_lost = asyncio.Event()

        def check() -> None:
            if not all(endpoint.exists() for endpoint in endpoints):
                socket_lost.set()

        directories = [endpoint.path.parent for endpoint in endpoints]
        try:
            await wait_for_first(DirectoryWatch(directories, check).run(), socket_lost.wait())
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._idle.wait()
            raise

    def _endpoints(self) -> tuple[tuple[Path, Handlers], ...]:
        """Return the plugin's socket, which is to be there first, and the one that kubelet finds it by."""
        return (
            (
                self._socket,
                {
                    PREPARE: handler(PREPARE, self.prepare),
                    UNPREPARE: handler(UNPREPARE, self.unprepare),
                    WATCH_HEALTH: stream_handler(WATCH_HEALTH, self._watch_health),
                },
            ),
            (
                self._registration_socket,
                {GET_INFO: handler(GET_INFO, self._info), NOTIFY: handler(NOTIFY, self._registered)},
            ),
        )

    async def _open(self, opened: AsyncExitStack, path: Path, handlers: Handlers) -> ResourceEndpoint:
        path.parent.mkdir(parents=True, exist_ok=True)
        for socket in path.parent.glob(f"{'dra' if path == self._socket else DRIVER}-*.sock"):
            if socket != path and not is_served(socket):
                socket.unlink(missing_ok=True)  # of a process that was killed
        endpoint = await open_endpoint(path, handlers, Followers(b"", lambda: None))
        opened.push_async_callback(endpoint.close)
        return endpoint

    async def _info(self, _request: None) -> PluginInfo:
        return PluginInfo(name=DRIVER, endpoint=str(self._socket))

    async def _registered(self, status: RegistrationStatus) -> None:
        self.registration = "" if status.registered else f"kubelet refuses the driver: {status.error}"
        if status.registered:
            self._known_to_kubelet.set()
            _log.info("driver_registered", endpoint=str(self._socket))
        else:
            _log.warning("driver_refused", error=status.error)

    async def prepare(self, claims: Claims) -> Answers:
        """Prepare claims for kubelet, each by itself."""
        return await self._answer("prepare", claims, self._prepare)

    async def unprepare(self, claims: Claims) -> Answers:
        """Unprepare claims for kubelet, each by itself; this needs no API server."""
        return await self._answer("unprepare", claims, self._unprepare)

    async def _answer(
        self, command: str, claims: Claims, call: Callable[[ClaimName, float], Awaitable[ClaimAnswer]]
    ) -> Answers:
        self._calls += 1
        self._idle.clear()
        try:
            started = time.monotonic()
            deadline_s = started + LONGEST_WAIT_S
            answers = await asyncio.gather(*(_isolated(call, claim, deadline_s) for claim in claims))
            self._record(command, dict(zip(claims, answers, strict=True)), time.monotonic() - started)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
        self.slices.touch()
        return {
            claim.uid: msgspec.structs.replace(answer, error=answer.error[:MAX_ERROR_CHARACTERS])
            for claim, answer in zip(claims, answers, strict=True)
        }

    def _record(self, command: str, answers: Mapping[ClaimName, ClaimAnswer], took_s: float) -> None:
        self.durations.labels(command).observe(took_s)
        for claim, answer in answers.items():
            self.counts[command, not answer.error] += 1
            name = f"{claim.namespace}/{claim.name}"
            if answer.error:
                _log.warning(f"claim_not_{command}d", claim=name, error=answer.error)
            else:
                _log.info(f"claim_{command}d", claim=name, took_ms=round(took_s * 1000, 3))

    async def _prepare(self, claim: ClaimName, deadline_s: float) -> ClaimAnswer:
        subject = f"claim {claim.namespace}/{claim.name}"
        backoff = Backoff(RETRY_S, LAST_RETRY_S)
        while True:
            try:
                resource = await self._api.get_claim_document(claim.namespace, claim.name)
                pod = await self._pod(claim.namespace, resource) if resource is not None else None
                break
            except (*API_ERRORS, MalformedError) as error:
                delay_s = backoff.fail()
                if isinstance(error, ApiRefusedError):
                    delay_s = max(delay_s, error.retry_after_s)
                if time.monotonic() + delay_s >= deadline_s or not _is_passing(error):
                    return ClaimAnswer(error=f"{subject}: {_described(error)}", reason=error.reason)
            await asyncio.sleep(delay_s)
        if resource is None:
            return ClaimAnswer(error=f"{subject} does not exist", reason=Reason.CONFLICT)
        found = msgspec.Raw(resource)
        self._handovers.hurry(claim)

        def question() -> ClaimQuestion:
            return ClaimQuestion(
                prepare=Prepare(
                    claim=claim,
                    resource=found,
                    pod=NO_POD if pod is None else msgspec.Raw(pod),
                    wait_s=max(0.0, deadline_s - time.monotonic()),
                )
            )

        answer = await self._agent.ask(question, deadline_s)
        if answer.error:
            self.statuses.refuse(claim, answer.error)
        return answer

    async def _pod(self, namespace: str, claim: bytes) -> bytes | None:
        """Read the pod that a claim is for; the agent judges it."""
        try:
            pod = decode_state(claim).pod
        except MalformedError:
            return None
        return await self._api.get_pod_document(namespace, pod) if pod else None

    async def _unprepare(self, claim: ClaimName, deadline_s: float) -> ClaimAnswer:
        return await self._agent.ask(lambda: ClaimQuestion(unprepare=claim), deadline_s)

    async def _ask_now(self, question: ClaimQuestion) -> ClaimAnswer:
        return await self._agent.ask(lambda: question, time.monotonic())

    async def _offer(self) -> NoReturn:
        """Publish each change of the agent's offers, and its absence if that lasts.

        Slices of an earlier process are withdrawn then, because only the agent knows whether they still hold.
        Not before kubelet has registered the driver: it would fail the pods that come, and try again late.
        """
        await self._known_to_kubelet.wait()
        agent = self._agent
        while True:
            offers, away_since_s = agent.offers.value, agent.away_since_s.value
            left_s = None if away_since_s is None else away_since_s + self._agent_away_s - time.monotonic()
            away = left_s is not None and left_s <= 0
            if offers is not None:
                self.slices.offer(offers, agent_away=away)
                self._health.publish(health_of(offers, agent_away=away))
            elif away:
                self.slices.offer(Offers(node=self._node))
            with suppress(TimeoutError):
                async with asyncio.timeout(None if away else left_s):
                    await wait_for_first(
                        agent.offers.wait_for_change(offers), agent.away_since_s.wait_for_change(away_since_s)
                    )

    async def _watch_health(self, _request: None) -> AsyncGenerator[tuple[DeviceHealth, ...], None]:
        """Report all devices at once, after each change, and before kubelet forgets them."""
        while True:
            devices = self._health.value
            now_s = int(time.time())
            yield tuple(
                DeviceHealth(
                    pool=self._node,
                    device=device.device,
                    healthy=device.healthy,
                    message=device.message,
                    updated_s=now_s,
                    timeout_s=HEALTH_TIMEOUT_S,
                )
                for device in devices
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY_S):
                    await self._health.wait_for_change(devices)


def _is_passing(error: K8sRdmaError) -> bool:
    if isinstance(error, ApiRefusedError):
        return error.status in _PASSING
    return not isinstance(error, MalformedError)


def _described(error: K8sRdmaError) -> str:
    if isinstance(error, ApiRefusedError) and error.status == HTTPStatus.FORBIDDEN:
        return f"{error.message}; grant the driver the ClusterRole k8s-rdma-claims (deploy/rbac/claims.yaml)"
    return error.message


async def _isolated(
    call: Callable[[ClaimName, float], Awaitable[ClaimAnswer]], claim: ClaimName, deadline_s: float
) -> ClaimAnswer:
    """Call for one claim; a fault is its answer, so that the other claims of the call have theirs."""
    try:
        return await call(claim, deadline_s)
    except Exception:
        _log.exception("claim_failed", claim=f"{claim.namespace}/{claim.name}")
        return ClaimAnswer(error="a fault of the device plugin, see its log", reason=Reason.INTERNAL)


def health_of(offers: Offers, *, agent_away: bool) -> tuple[DeviceHealth, ...]:
    """Return the health of each PF, without a time: unhealthy while its link is down, or the agent away.

    Other problems of a PF are for its operator: the interfaces that pods have work.
    """
    found = []
    for pf in offers.pfs:
        problems = [] if pf.link_up else [*pf.problems] or ["its link is down"]
        if agent_away:
            problems.append("the k8s-rdma agent of its node cannot be reached")
        message = "; ".join(problems)
        found.append(
            DeviceHealth(
                pool=offers.node,
                device=pf.name,
                healthy=not message,
                message=message,
                updated_s=0,
                timeout_s=HEALTH_TIMEOUT_S,
            )
        )
    return tuple(found)
