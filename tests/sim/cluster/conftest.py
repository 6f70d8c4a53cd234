"""What the tests of the cluster's stand-ins share: a served API, a real client, objects, the recordings."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from k8s_rdma.sim.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma.sim.cluster.kubeconfig import kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_S = 30
RECORDINGS = Path(__file__).parents[2] / "recordings"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A served API with two clients: lightkube, and plain HTTP."""

    api: RunningApi
    client: AsyncClient
    http: httpx2.AsyncClient


@asynccontextmanager
async def _cluster(config: ApiConfig | None = None) -> AsyncIterator[Cluster]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(config) as api,
        AsyncClient(config=KubeConfig.from_dict(kubeconfig(api.url)), trust_env=False) as client,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        yield Cluster(api, client, http)


@pytest.fixture
def cluster():
    """`async with cluster() as c`: everything in it has to be done by a deadline."""
    return _cluster


def _pod(name: str = "p1", *, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": namespace}
    if annotations := spec.pop("annotations", None):
        meta["annotations"] = annotations
    if labels := spec.pop("labels", None):
        meta["labels"] = labels
    containers = [{"name": "c", "image": "lab.local/busybox:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 30, **spec},
    }


def _node(name: str = "node-1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **meta},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.10.0.1"}]},
    }


@pytest.fixture
def make_pod():
    return _pod


@pytest.fixture
def make_node():
    return _node


@pytest.fixture
def recording():
    """The recording of that name, e.g. `extender/filter-node-names-001-filter`."""

    def load(name: str) -> dict[str, Any]:
        return json.loads((RECORDINGS / f"{name}.json").read_text())

    return load
