"""The registrations in examples/scheduler, as they are but for addresses, with the extenders they are for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster.world import MOUNT, cluster, documents, placement
from k8s_rdma.config.devices import SLOT_RESOURCE

if TYPE_CHECKING:
    from cluster.control_plane import Json
    from cluster.extenders import Extender
    from cluster.nodes import Node

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples" / "scheduler"
VFS = "k8s-rdma.io/vf"
DEVICES = {MOUNT: "10000", SLOT_RESOURCE: "1000", VFS: "4"}


def example(name: str, extender: Extender) -> Json:
    """A registration, with the extender's address here."""
    (document,) = documents(EXAMPLES / f"{name}.yaml")
    for each in document["extenders"]:
        each["urlPrefix"] = each["urlPrefix"].replace("http://127.0.0.1:8888", extender.url)
    return {**document, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("every-pod", {}),
        ("recommended", {"managed": True}),
        ("recommended", {"resources": {SLOT_RESOURCE: "1"}}),
        ("preemption", {"resources": {VFS: "1"}}),
        ("second-scheduler", {"managed": True, "schedulerName": "rdma-scheduler"}),
    ],
)
async def test_pod_is_placed_by_the_registration(kind: str, tmp_path: Path, name: str, spec: dict[str, Any]):
    async with cluster(kind, tmp_path, "w1", **DEVICES) as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(example(name, extender)):
            await c.create_pod("p", 1_000, **spec)
            assert len(placement(await c.bound("p"))) == 1


FILTER_ONLY = yaml.safe_load((EXAMPLES / "extender-filter-only.yaml").read_text())


@pytest.mark.parametrize("settings", [{"binder": "scheduler"}, FILTER_ONLY], ids=["with-api", "without-api"])
async def test_scheduler_binds_if_the_extender_only_filters(
    kind: str, tmp_path: Path, settings: dict[str, Any]
):
    async with cluster(kind, tmp_path, "w1", "w2") as c:
        if settings == FILTER_ONLY:
            settings = {**settings, "kubeconfig": None}
        extender = await c.running_extender(**settings)
        async with c.plane.scheduler(example("filter-only", extender)):
            for name in ("p0", "p1"):
                await c.create_pod(name, 8_000)
                pod = await c.bound(name)
                assert placement(pod) == []
                agent_places(c.nodes[pod["spec"]["nodeName"]], pod)
            assert {await c.node_of(name) for name in ("p0", "p1")} == {"w1", "w2"}
            await c.create_pod("more", 8_000)
            await c.event("more", "FailedScheduling", "RDMA Scheduler Extension")
            await asyncio.sleep(1)
            assert await c.node_of("more") is None


def agent_places(node: Node, pod: Json) -> None:
    """A pod without a placement gets an interface that its node's agent finds."""
    uid = pod["metadata"]["uid"]
    node.server.holds(**{uid: 8_000})


async def test_pod_of_another_scheduler_never_comes(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **DEVICES) as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(example("second-scheduler", extender)):
            await c.create_pod("theirs", 1_000, managed=True)
            await c.create_pod("ours", 1_000, managed=True, schedulerName="rdma-scheduler")
            await c.bound("ours")
            assert await c.node_of("theirs") is None
