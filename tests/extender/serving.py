"""An extender that serves HTTP on a real socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from extender.world import QUICK, World, until
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.extender.extender import BinderIdentity
from k8s_rdma.extender.main import EVERYBODY, ExtenderAccess, ViewsPort, serve
from k8s_rdma.http_server import listen
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from k8s_rdma.kube.leader_election import LeaderElector

FILTER = "/scheduler/rdma_scheduling"
PRIORITIZE = "/scheduler/prioritize"
BIND = "/scheduler/bind"
PREEMPT = "/scheduler/preempt"


@dataclass(slots=True)
class Served:
    """A served extender. stop: ends it gracefully. done: it has ended. url: its address."""

    http: httpx2.AsyncClient
    port: int
    stop: asyncio.Event
    done: asyncio.Task[None]
    url: str

    async def post(self, path: str, body: bytes | str) -> httpx2.Response:
        return await self.http.post(path, content=body, headers={"Content-Type": "application/json"})

    async def ready(self) -> None:
        while (await self.http.get("/readyz")).status_code != 200:  # noqa: ASYNC110  that is the interface
            await asyncio.sleep(0.002)


@asynccontextmanager
async def served(  # noqa: PLR0917 - those of before keep their places
    world: World,
    key: PlacementKeys | None = None,
    lease: LeaderElector | None = None,
    access: ExtenderAccess = EVERYBODY,
    verify: ssl.SSLContext = NO_TLS,
    port: int = 0,
    views: ViewsPort | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve an extender for the cluster; entered at once, whether it is ready or not.

    access, verify: the server's side of TLS, and the client's. port: 0 for a free one.
    """
    config = ExtenderConfig(**{"node_port": world.port, **QUICK, **settings})
    stop = asyncio.Event()
    with listen("127.0.0.1", port) as listener:
        port = listener.getsockname()[1]
        authority = BinderIdentity(keys=FixedKeys(key), lease=lease)
        serving = serve(
            config, world.api, listener, stop=stop, identity=authority, access=access, views=views
        )
        done = asyncio.create_task(serving)
        try:
            base = f"{'https' if access.tls else 'http'}://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=30, verify=verify) as http:
                yield Served(http, port, stop, done, base)
        finally:
            stop.set()
            await done


__all__ = ["BIND", "FILTER", "PRIORITIZE", "Served", "served", "until"]
