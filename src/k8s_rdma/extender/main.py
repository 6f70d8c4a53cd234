"""The process `k8s-rdma extender`.

What it knows of a large cluster is a million objects that stay. The garbage collector would go through all
of them again and again while they are read in, which takes a quarter of a start, and later whenever it
looks for old garbage: half a second in which nobody is answered. So it is told to leave alone what is kept.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from math import ceil
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import process
from k8s_rdma.config.files import port_of
from k8s_rdma.config.namespace_policies import load_policies
from k8s_rdma.config.placement_keys import extender_keys
from k8s_rdma.extender.app import EVERYBODY, Access, ExtenderApp, access_of
from k8s_rdma.extender.extender import BinderIdentity, Extender, boottime_s
from k8s_rdma.extender.http_poller import security_of
from k8s_rdma.extender.metrics import counted
from k8s_rdma.http_server import HttpServer, Limits, listen
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.kube.api import AbsentApi, ClusterApi, LeaseApi
from k8s_rdma.kube.client import connect, require_kubeconfig
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.process import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.wire.placement_keys import KeySource


def check(config: ExtenderConfig) -> None:
    """Read everything that the configuration names, as the process does when it starts.

    MalformedError names the field and the file. Where no kubeconfig is named none is looked for: it depends
    on where the process runs.
    """
    load_policies(config.policy_file)
    extender_keys(config.placement_key_file)
    access_of(config)
    security_of(config)
    port_of(config, os.environ)
    if config.api and config.kubeconfig is not None:
        require_kubeconfig(config.kubeconfig)


_YOUNG = 50_000
"""Objects made beyond those freed, before the young ones are looked at; the interpreter's own is 700. A
filter of 5,000 nodes makes some ten thousand, all of which are freed without the collector."""


def collect_seldom() -> None:
    """While much is being read in, and from then on."""
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)


def freeze_heap() -> None:
    """Exclude the objects that exist now from garbage collection; reference counts still free them."""
    gc.collect()
    gc.freeze()


LIMITS = Limits(keep_alive_s=300, request_timeout_s=60, send_timeout_s=60)
"""An idle connection stays for longer than Go's client keeps it (90 s): that one must be the one that closes,
since it does not repeat a POST that meets a connection closed at the same moment. Full nodes are 50 MB."""

_POLL_S = 0.1
_log = structlog.get_logger()


def run(config: ExtenderConfig) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot start."""
    process.configure_logging("extender")
    collect_seldom()
    return_large_buffers()
    keys, access = extender_keys(config.placement_key_file), access_of(config)
    _allow_many_connections()
    with (
        listen(config.listen, port_of(config, os.environ)) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_until_signalled(config, keys, listener, access))


async def serve(  # noqa: PLR0913  each is a part of its own, and tests leave most of them out
    config: ExtenderConfig,
    api: ClusterApi,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    identity: BinderIdentity | None = None,
    access: Access = EVERYBODY,
    when_known: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop` is set; then finish the requests under way and what is in doubt, and close.

    when_known: called once, when the caches are filled.
    """
    extender = Extender(config, api, identity)
    async with extender.running(), asyncio.TaskGroup() as tasks:
        shutdown_s = ceil(config.shutdown_s)
        app = ExtenderApp(extender, config, access)
        server = HttpServer(app, limits=LIMITS, shutdown_s=shutdown_s, tls=access.tls)
        serving = tasks.create_task(server.serve(listener))
        host, port = listener.getsockname()[:2]
        knowing = tasks.create_task(_wait_until_ready(extender, when_known))
        _log.info("extender_ready", address=host, port=port, tls=access.tls is not None)
        await stop.wait()
        knowing.cancel()
        stopped_at = boottime_s()
        server.should_exit = True
        await serving
        await extender.binder.binding_writer.finish(stopped_at + config.shutdown_s - boottime_s())
    _log.info("extender_stopped")


async def _wait_until_ready(extender: Extender, on_ready: Callable[[], None]) -> None:
    while extender.missing():  # noqa: ASYNC110  it ends in many places
        await asyncio.sleep(_POLL_S)
    on_ready()


async def _until_signalled(
    config: ExtenderConfig, keys: KeySource, listener: socket.socket, access: Access
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
            when_known=freeze_heap,
        )


@asynccontextmanager
async def _api(
    config: ExtenderConfig, failures: Counter[tuple[str, ...]]
) -> AsyncIterator[tuple[ClusterApi, LeaderElector | None]]:
    """The API server, and the Lease where this process binds."""
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
