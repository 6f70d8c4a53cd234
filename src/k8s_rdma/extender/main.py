"""The process `k8s-rdma extender` and its HTTP application: who may ask, how much memory bodies may take.

The state of a large cluster is a million long-lived objects. The garbage collector would go through all of
them again and again while they are read in, which takes a quarter of a start, and later with every full
collection: half a second without an answer to any request. So the objects that stay are frozen (`gc.freeze`).

Answers that a scheduler understands are always 200: it takes anything else for a failure of the extender and
shows no more than the status. So a document of filter or bind with a fault in its pod is answered with
`Error`, which `kubectl describe pod` shows. 400 is for bodies that are no JSON, and for faults of prioritize
and preempt, whose answers have no such field; 413 for too long ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import structlog
import uvloop

from k8s_rdma import process
from k8s_rdma.config.namespace_policies import load_policies
from k8s_rdma.config.placement_keys import extender_keys
from k8s_rdma.config.ports import port_of
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.counted_api import counted
from k8s_rdma.extender.extender import BinderIdentity, Extender, boottime_s
from k8s_rdma.extender.http_poller import security_of
from k8s_rdma.http_server import ConnectionLimits, HttpServer, listen
from k8s_rdma.http_server.asgi import (
    CONTENT_TYPE,
    JSON,
    Answer,
    Receive,
    Scope,
    Send,
    ServerTls,
    Tokens,
    error_answer,
    json_answer,
    tls_context,
    tokens_of,
)
from k8s_rdma.http_server.bodies import Bodies, BodyError, ClientGoneError
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.kube.api import AbsentApi, ClusterApi
from k8s_rdma.kube.client import connect, require_kubeconfig
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.process import stop_on_signals
from k8s_rdma.wire.http_error import Error
from k8s_rdma.wire.json import Buffer, Document, is_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from k8s_rdma.config.extender import ExtenderConfig, ViewsConfig
    from k8s_rdma.kube.published_api import LeaseApi
    from k8s_rdma.wire.placement_keys import KeySource

Verb: TypeAlias = Callable[[Buffer], Awaitable[Document]]
View: TypeAlias = Callable[["Scope"], Awaitable[Answer]]

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths for kubelet's probes, which have neither certificate nor token."""

_WITH_ERROR = frozenset({"filter", "bind"})
"""Verbs whose answers have a field `Error`, which the scheduler shows."""

_UNAUTHORIZED = {"www-authenticate": "Bearer"}

_LAST = {"connection": "close"}
"""Header of answers to a scheduler, once its body is read, while this process may promise nothing. A Service
chooses the replica when a connection begins: one that stays open stays with a process that leads no more."""

_YOUNG = 50_000
"""The surplus of objects made over those freed that starts a young collection; the interpreter's default is
700. A filter of 5,000 nodes makes some ten thousand objects, and all are freed without the collector."""

_MIDDLE = 100
"""The young collections after which what survived them is collected; the interpreter's default is 10. A start
makes a million objects that stay: so it has twenty young collections, and goes through each object once."""

LIMITS = ConnectionLimits(keep_alive_s=300, request_timeout_s=60, send_timeout_s=60)
"""An idle connection stays for longer than Go's client keeps it (90 s): that one must be the one that closes,
since it does not repeat a POST that meets a connection closed at the same moment. Full nodes are 50 MB."""

_REPLICA_LIMITS = replace(LIMITS, keep_alive_s=2)
"""A replica keeps connections while pods come one after another: a pod takes three requests. One that hangs
later cannot close what is idle then, and each of these connections would cost a pod the scheduler's
`httpTimeout`. A POST that meets the close costs its pod a second, kube-scheduler's backoff."""

_POLL_S = 0.1
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderAccess:
    """The proofs by which clients are admitted; without any, everybody is.

    tls, tokens: the present ones; None for plain HTTP, and for no tokens. certificates: whether clients may
    show one. If both are configured, either will do: kube-scheduler can show a certificate and no token.
    """

    tls: ServerTls | None = None
    tokens: Callable[[], Tokens] | None = None
    certificates: bool = False

    def admits(self, scope: Scope) -> bool:
        """Report whether the request's client may ask."""
        if not self.certificates and self.tokens is None:
            return True
        if self.certificates and "client_cert_name" in scope.get("extensions", {}).get("tls", {}):
            return True
        return self.tokens is not None and self.tokens().accept(scope["headers"])

    def demand(self) -> str:
        """The message for a client that is not admitted."""
        named = " with one of clientNames" if self.tls is not None and self.tls.client_names else ""
        proofs = [
            *([f"a client certificate of clientCaFile{named}"] if self.certificates else []),
            *(["`Authorization: Bearer` and a token of tokenFile"] if self.tokens is not None else []),
        ]
        return f"it takes {' or '.join(proofs)}"


EVERYBODY = ExtenderAccess()


def access_of(config: ExtenderConfig) -> ExtenderAccess:
    """Read the configured access; MalformedError names the field whose file is unusable.

    Certificates are asked for, not demanded, by TLS itself, because kubelet's probes have no certificate.
    """
    tls = config.tls
    return ExtenderAccess(
        tls=None if tls is None else tls_context(tls, demand=False),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
        certificates=tls is not None and tls.client_ca_file is not None,
    )


def views_access_of(views: ViewsConfig) -> ExtenderAccess:
    """Read the tokens of the port for viewers; MalformedError names the field whose file is unusable."""
    return ExtenderAccess(tokens=tokens_of(views.token_file, field="views.tokenFile"))


class ExtenderApp:
    """The paths, as an ASGI application: verbs take POST, everything else GET and HEAD."""

    def __init__(
        self,
        extender: Extender,
        config: ExtenderConfig,
        access: ExtenderAccess = EVERYBODY,
        *,
        read_only: bool = False,
    ) -> None:
        """read_only: whether there are no verbs."""
        self._access = access
        self._metrics = extender.metrics
        self._ready = extender.readiness.ready
        self._bodies = Bodies(
            config.max_body_bytes,
            bound="maxBodyBytes",
            advice="register the extender with nodeCacheCapable: true, so that the scheduler sends names "
            "instead of whole node objects",
        )
        self._verbs: dict[str, tuple[str, Verb]] = {
            config.filter_path: ("filter", extender.filter),
            config.prioritize_path: ("prioritize", extender.prioritize),
            config.preempt_path: ("preempt", extender.preempt),
        }
        if config.binder == "extender":
            self._verbs[config.bind_path] = "bind", extender.bind
        if read_only:
            self._verbs.clear()
        self._not_ours = config.bind_path if config.binder == "scheduler" else None

        async def readyz(_scope: Scope) -> Answer:
            if missing := extender.missing():
                return Answer(f"not there yet: {', '.join(missing)}\n", status=503)
            warning = extender.warning()
            return Answer(f"ok\nwarning: {warning}\n" if warning else "ok\n")

        self._views: dict[str, View] = {
            "/": self._index,
            "/healthz": _healthz,
            "/readyz": readyz,
            "/metrics": self._show_metrics,
            **extender.views.routes(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, method = scope["path"], scope["method"]
        if path in self._verbs and method == "POST":
            answer = await self._post(scope, receive)
        elif path in self._views and method in ("GET", "HEAD"):
            answer = await self._answer_get(scope)
        else:
            answer = self._misdirected(path, method)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer_get(self, scope: Scope) -> Answer:
        if scope["path"] not in OPEN_PATHS and not self._access.admits(scope):
            error = Error(reason="unauthorized", message=self._access.demand())
            return error_answer(401, error, headers=_UNAUTHORIZED)
        return await self._views[scope["path"]](scope)

    async def _post(self, scope: Scope, receive: Receive) -> Answer | None:
        """Return a verb's answer, unless the client has disconnected."""
        began = monotonic()  # uvloop's clock has whole milliseconds
        name, verb = self._verbs[scope["path"]]
        with self._metrics.under_way(name):
            answer, outcome = await self._respond(name, verb, scope, receive)
        self._metrics.count(name, outcome, monotonic() - began)
        return answer

    async def _respond(
        self, name: str, verb: Verb, scope: Scope, receive: Receive
    ) -> tuple[Answer | None, str]:
        if not self._access.admits(scope):
            return _refuse(name, 401, self._access.demand(), headers=_UNAUTHORIZED), "unauthorized"
        try:
            async with self._bodies.reading(scope, receive) as body:
                answered = await verb(body)
            return Answer(answered, content_type=JSON, headers=self._connection()), "answered"
        except ClientGoneError:
            return None, "client_gone"
        except BodyError as error:
            return _refuse(name, error.status, str(error)), error.outcome
        except MalformedError as error:
            status = 200 if name in _WITH_ERROR and is_document(error) else 400
            return _refuse(name, status, error.message, headers=self._connection()), "malformed"

    def _connection(self) -> dict[str, str]:
        return {} if self._ready() else _LAST

    def _misdirected(self, path: str, method: str) -> Answer:
        allowed = "POST" if path in self._verbs else "GET, HEAD" if path in self._views else None
        if allowed is None:
            message = f"there is no path {path}; there are {', '.join(self._paths())}"
            if path == self._not_ours:
                message = (
                    f"{path}: the scheduler binds (binder: scheduler), and must have no bindVerb registered"
                )
            if method == "POST":  # the scheduler shows no more than the status
                _log.warning("request_refused", verb=None, status=404, error=message)
            return error_answer(404, Error(reason="not_found", message=message))
        error = Error(reason="method_not_allowed", message=f"{path} takes {allowed}, not {method}")
        return error_answer(405, error, headers={"allow": allowed})

    def _paths(self) -> list[str]:
        verbs = [f"{path} (POST, {name})" for path, (name, _) in self._verbs.items()]
        return verbs + [path for path in self._views if path != "/"]

    async def _index(self, _scope: Scope) -> Answer:
        return Answer("k8s-rdma: scheduler extender\n\n" + "".join(f"{path}\n" for path in self._paths()))

    async def _show_metrics(self, _scope: Scope) -> Answer:
        return Answer(self._metrics.render(), content_type=CONTENT_TYPE)


async def _healthz(_scope: Scope) -> Answer:
    """Answer as long as the process lives: a restart does not help a replica that waits for a Lease."""
    return Answer("ok\n")


def _refuse(verb: str, status: int, message: str, *, headers: dict[str, str] | None = None) -> Answer:
    _log.warning("request_refused", verb=verb, status=status, error=message)
    return json_answer({"Error": f"{verb}: {message}"}, status=status, headers=headers)


def check(config: ExtenderConfig) -> None:
    """Read everything that the configuration names, as the process does when it starts.

    MalformedError names the field and the file. If the configuration names no kubeconfig, it is not read,
    because its place depends on the process's environment.
    """
    load_policies(config.policy_file)
    extender_keys(config.placement_key_file)
    access_of(config)
    if config.views is not None:
        views_access_of(config.views)
    security_of(config)
    port_of(config, os.environ)
    if config.api and config.kubeconfig is not None:
        require_kubeconfig(config.kubeconfig)


def collect_seldom() -> None:
    """While much is being read in, and from then on."""
    _, _, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, _MIDDLE, old)


def freeze_heap() -> None:
    """Exclude the objects that exist now from garbage collection; reference counts still free them.

    Only the youngest are collected before: hardly any of the others is garbage, and to look through them
    takes 0.2 s for 100,000 pods, just when the first requests come.
    """
    gc.collect(0)
    gc.freeze()


def run(config: ExtenderConfig) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError if it cannot start."""
    process.configure_logging("extender")
    collect_seldom()
    return_large_buffers()
    keys, access = extender_keys(config.placement_key_file), access_of(config)
    _allow_many_connections()
    with (
        listen(config.listen, port_of(config, os.environ)) as listener,
        ViewsPort.opened(config.views) as views,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_until_signalled(config, keys, listener, access, views))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewsPort:
    """The port for viewers, and who may use it."""

    listener: socket.socket
    access: ExtenderAccess

    @classmethod
    @contextmanager
    def opened(cls, views: ViewsConfig | None) -> Iterator[ViewsPort | None]:
        """Listen until the block ends, if it is configured."""
        if views is None:
            yield None
            return
        access = views_access_of(views)
        with listen(views.listen, views.port) as listener:
            yield cls(listener=listener, access=access)


async def serve(  # noqa: PLR0913  each is a part of its own, and tests leave most of them out
    config: ExtenderConfig,
    api: ClusterApi,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    identity: BinderIdentity | None = None,
    access: ExtenderAccess = EVERYBODY,
    views: ViewsPort | None = None,
    when_known: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop` is set; then finish the requests under way and what is in doubt, and close.

    when_known: called once, when the caches are filled.
    """
    extender = Extender(config, api, identity)
    async with extender.running(), asyncio.TaskGroup() as tasks:
        shutdown_s = ceil(config.shutdown_s)
        app = ExtenderApp(extender, config, access)
        limits = _REPLICA_LIMITS if config.elects_leader else LIMITS
        servers = [HttpServer(app, limits=limits, shutdown_s=shutdown_s, tls=access.tls)]
        serving = [tasks.create_task(servers[0].serve(listener))]
        if views is not None:
            viewed = ExtenderApp(extender, config, views.access, read_only=True)
            servers.append(HttpServer(viewed, shutdown_s=shutdown_s))
            serving.append(tasks.create_task(servers[1].serve(views.listener)))
        host, port = listener.getsockname()[:2]
        knowing = tasks.create_task(_wait_until_ready(extender, when_known))
        _log.info("extender_ready", address=host, port=port, tls=access.tls is not None)
        await stop.wait()
        knowing.cancel()
        stopped_at = boottime_s()
        for server in servers:
            server.stop()
        await asyncio.gather(*serving)
        await extender.pod_writer.finish(stopped_at + config.shutdown_s - boottime_s())
    _log.info("extender_stopped")


async def _wait_until_ready(extender: Extender, on_ready: Callable[[], None]) -> None:
    while extender.missing():  # noqa: ASYNC110  it ends in many places
        await asyncio.sleep(_POLL_S)
    on_ready()


async def _until_signalled(
    config: ExtenderConfig,
    keys: KeySource,
    listener: socket.socket,
    access: ExtenderAccess,
    views: ViewsPort | None,
) -> None:
    failures: Counter[tuple[str, ...]] = Counter()
    async with _api(config, failures) as (api, lease):
        identity = BinderIdentity(keys=keys, lease=lease, api_failures=failures)
        await serve(
            config,
            api,
            listener,
            stop=stop_on_signals(),
            identity=identity,
            access=access,
            views=views,
            when_known=freeze_heap,
        )


@asynccontextmanager
async def _api(
    config: ExtenderConfig, failures: Counter[tuple[str, ...]]
) -> AsyncIterator[tuple[ClusterApi, LeaderElector | None]]:
    """Connect to the API server; yield it, and the Lease if this process elects a leader."""
    if not config.api:
        yield AbsentApi(), None
        return
    client = connect(config.kubeconfig, timeout_s=config.api_timeout_s)
    try:
        yield client, _lease(config, counted(client, failures))
    finally:
        await client.close()


def _lease(config: ExtenderConfig, api: LeaseApi) -> LeaderElector | None:
    if not config.elects_leader:
        return None
    terms = LeaderElectionConfig(
        namespace=config.lease_namespace,
        name=config.lease_name,
        holder=f"{socket.gethostname()}_{uuid.uuid4()}",
        lease_s=config.lease_s,
    )
    return LeaderElector(api, terms, boottime_s)


def _allow_many_connections() -> None:
    """Raise the soft limit of open files: one connection stays open to every node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
