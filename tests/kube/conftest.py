"""A served API with the client under test, and API servers that misbehave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from k8s_rdma.kube.client import Client, connect
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.http_server import Handler, HttpService, Response, serving
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


DEADLINE_S = 120


@dataclass(frozen=True, slots=True)
class Cluster:
    """A served API, the client under test, and plain HTTP to arrange things."""

    api: RunningApi
    client: Client
    http: httpx2.AsyncClient

    async def create_pod(self, name: str = "p1", **meta: Any) -> str:
        """Create a pod; returns its UID."""
        containers = [{"name": "c", "image": "lab.local/busybox:1"}]
        pod = {"metadata": {"name": name, **meta}, "spec": {"containers": containers}}
        created = await self.http.post("/api/v1/namespaces/default/pods", json=pod)
        assert created.status_code == 201, created.text
        return created.json()["metadata"]["uid"]

    async def create_node(self, name: str = "w1", *addresses: tuple[str, str]) -> None:
        """Create a node with addresses of these types."""
        listed = [{"type": kind, "address": address} for kind, address in addresses]
        node = {"metadata": {"name": name}, "status": {"addresses": listed}}
        assert (await self.http.post("/api/v1/nodes", json=node)).status_code == 201


@pytest.fixture
def cluster(tmp_path: Path):
    """`async with cluster() as c`."""

    @asynccontextmanager
    async def start(config: ApiConfig | None = None) -> AsyncIterator[Cluster]:
        async with (
            asyncio.timeout(DEADLINE_S),
            serving_api(config) as api,
            connected(tmp_path, api.url) as client,
            httpx2.AsyncClient(base_url=api.url, trust_env=False, verify=NO_TLS) as http,
        ):
            yield Cluster(api, client, http)

    return start


@asynccontextmanager
async def connected(path: Path, url: str, **limits: float) -> AsyncIterator[Client]:
    client = connect(str(write_kubeconfig(path / "kubeconfig", url)), **limits)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def answering(tmp_path: Path):
    """`async with answering(handler) as client`: an API server that answers as the handler says."""

    @asynccontextmanager
    async def start(handle: Handler, **limits: float) -> AsyncIterator[Client]:
        service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
        async with (
            asyncio.timeout(DEADLINE_S),
            serving(service, "127.0.0.1", 0) as port,
            connected(tmp_path, f"http://127.0.0.1:{port}", **limits) as client,
        ):
            yield client

    return start
