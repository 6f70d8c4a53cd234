"""The control plane that stands in: in this process, for every run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import yaml

from k8s_rdma_demo.cluster.api import Access, ApiConfig, serving_api
from k8s_rdma_demo.cluster.command import SYSTEM_NAMESPACES, load_scheduler_config
from k8s_rdma_demo.cluster.scheduler import scheduling

if TYPE_CHECKING:
    from cluster.control_plane import ControlPlane, Json


@dataclass
class StandIn:
    """`ControlPlane` of the API server and scheduler stand-ins."""

    url: str
    admin_token: str
    directory: Path
    ca_file: Path | None = None
    release: tuple[int, int] = (1, 36)
    computes_budgets: bool = False
    restart_api: Callable[..., Awaitable[None]] | None = None

    @asynccontextmanager
    async def scheduler(self, configuration: Json) -> AsyncIterator[None]:
        path = self.directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        async with scheduling(self.url, load_scheduler_config(path), self.admin_token):
            yield

    async def add_crd(self, manifest: Json) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        headers = {"Authorization": f"Bearer {self.admin_token}"}
        async with httpx2.AsyncClient(base_url=self.url, headers=headers, trust_env=False) as http:
            made = await http.post(path, json=manifest)
            assert made.status_code == 201, made.text


@asynccontextmanager
async def stand_in(directory: Path, gates_off: frozenset[str] = frozenset()) -> AsyncIterator[ControlPlane]:
    """The stand-ins, until the block ends. gates_off: feature gates that are off."""
    access = Access()
    config = ApiConfig(access=access, gates_off=gates_off, namespaces=SYSTEM_NAMESPACES)
    async with serving_api(config) as api:
        yield StandIn(api.url, access.token_for(), directory)
