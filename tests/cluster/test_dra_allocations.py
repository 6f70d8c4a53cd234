"""kube-scheduler allocates claims as recorded, and so does the stand-in, which is held to the recordings."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest

from cluster.allocations import (
    API,
    CASES,
    PODS,
    AllocationRecorder,
    classes,
    comparable,
    recordings,
    write,
)
from cluster.real import real
from cluster.standin import stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
RECORD = "K8S_RDMA_RECORD"
DEADLINE_S = 120
SINCE = (1, 36)
SCHEDULER: Json = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


@asynccontextmanager
async def recorder(kind: str, directory: Path) -> AsyncIterator[AllocationRecorder]:
    """A scheduler, the classes, and a namespace for pods."""
    opened = real(directory) if kind == "real" else stand_in(directory)
    async with asyncio.timeout(DEADLINE_S), opened as plane:
        if plane.release < SINCE:
            pytest.skip(f"Kubernetes {plane.release}: capacities of claims are of {SINCE} and later")
        async with httpx2.AsyncClient(
            base_url=plane.url,
            headers={"Authorization": f"Bearer {plane.admin_token}"},
            verify=ssl.create_default_context(cafile=plane.ca_file) if plane.ca_file else True,
            trust_env=False,
        ) as http:
            await http.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
            made = AllocationRecorder(http)
            for device_class in classes():
                await made.create(f"{API}/deviceclasses", device_class)
            async with plane.scheduler(SCHEDULER):
                yield made


async def test_allocations_are_those_of_the_recordings(kind: str, tmp_path: Path):
    async with recorder(kind, tmp_path) as r:
        found = {name: await r.record(name, case) for name, case in CASES.items()}
    if kind == "real" and os.environ.get(RECORD):
        for name, recording in found.items():
            write(name, recording)
    assert allocations(found) == allocations(recordings())
    if kind == "real":  # the stand-in's API server fills in no defaults
        assert comparable(found) == comparable(recordings())


def allocations(documents: dict[str, Json]) -> dict[str, list[Json]]:
    return {
        name: [comparable(pod["allocations"]) for pod in document["pods"]]
        for name, document in documents.items()
    }


async def test_pod_is_refused_in_the_same_words(kind: str, tmp_path: Path):
    async with recorder(kind, tmp_path) as r:
        await r.record("unknown-capacity", CASES["unknown-capacity"])
        pod = (await r.http.get(f"{PODS}/unknown-capacity-0")).json()
    [condition] = pod["status"]["conditions"]
    assert condition["message"] == (
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: "
        "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
