"""The recordings that hold the stand-in's allocator to kube-scheduler are of the real one."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.allocations import API, CASES, AllocationRecorder, classes, comparable, kept, recordings, write
from cluster.real import Real, obstacle, real
from cluster.test_dra_examples import SCHEDULER, SINCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
RECORD = "K8S_RDMA_RECORD"
DEADLINE_S = 120


@asynccontextmanager
async def recorder(directory: Path) -> AsyncIterator[AllocationRecorder]:
    async with asyncio.timeout(DEADLINE_S), real(directory) as plane, plane.client() as http:
        if plane.release < SINCE:
            pytest.skip(f"Kubernetes {plane.release}: capacities of claims are of {SINCE} and later")
        await create_default_namespace(plane)
        async with plane.scheduler(SCHEDULER):
            yield AllocationRecorder(http)


async def create_default_namespace(plane: Real) -> None:
    async with plane.client() as http:
        await http.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})


async def test_allocations_are_those_of_the_recordings(tmp_path: Path):
    found: dict[str, Json] = {}
    async with recorder(tmp_path) as r:
        made = [kept(await r.create(f"{API}/deviceclasses", each)) for each in classes()]
        for name, case in CASES.items():
            found[name] = {"classes": made, **await r.record(name, case)}
    if os.environ.get(RECORD):
        for name, recording in found.items():
            write(name, recording)
    assert {name: comparable(each) for name, each in found.items()} == {
        name: comparable(each) for name, each in recordings().items()
    }
