"""Pods that their owners make as long as the API server takes: their cost is their own."""

from __future__ import annotations

import json
import signal
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front
from cluster.policies import token_of, written
from cluster.real import obstacle
from cluster.relay import service_of
from cluster.world import Cluster, cluster
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = pytest.mark.anyio

ANNOTATIONS_BYTES = 262_144
ASKS = json.dumps([{"min_tx_rate": 1_000}])
POD = "/api/v1/namespaces/default/pods"


async def pad_annotations(c: Cluster, name: str) -> None:
    """As far as the API server lets the pod's owner."""
    annotations = (await c.pod(name))["metadata"]["annotations"]
    length = ANNOTATIONS_BYTES - sum(len(key) + len(value) for key, value in annotations.items())
    await c.patch(f"{POD}/{name}", {"metadata": {"annotations": {"pad": "x" * (length - len("pad"))}}})


def large(name: str, length: int) -> Json:
    """A pod that no scheduler takes, and that asks for an interface; with a variable of that length."""
    container = {"name": "c", "image": "registry.invalid/c:1", "env": [{"name": "E", "value": "x" * length}]}
    meta = {"name": name, "namespace": "default", "annotations": {"rdma_interfaces_required": ASKS}}
    spec = {"containers": [container], "schedulerName": "nobody"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}


async def longest(c: Cluster) -> int:
    """How long the variable of a pod with a name of seven letters may be; leaves pods of up to that length.

    A pod that is almost as long as etcd takes cannot be deleted, as that writes to it first.
    """
    fits, too_long = 1_000_000, 2_000_000
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        answer = await c.http.post(POD, json=large(str(middle), middle))
        if answer.status_code == 201:
            fits = middle
        else:
            assert "too large" in answer.text
            too_long = middle
    return fits


async def test_fail_over_is_no_longer_when_pods_are_as_long_as_they_may_be(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
):
    """The property `seconds` is how long it took."""
    async with cluster(kind, tmp_path, "w1") as c:
        leader, standby = c.extender("one"), c.extender("two")
        await leader.start()
        await leader.ready()
        await standby.start()
        async with service_of(leader, standby) as url, c.plane.scheduler(registration(url)):
            await c.create(large("largest", await longest(c)))
            await c.create_pod("padded", 1_000, schedulerName="nobody")
            await pad_annotations(c, "padded")
            began = monotonic()
            await leader.end(signal.SIGKILL)
            await c.create_pod("after", 1_000)
            await c.bound("after")
            record_property("seconds", round(monotonic() - began, 1))


async def test_pod_without_room_for_its_binding_has_an_event_with_the_reason(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        pod = large("largest", await longest(c) - len("default-scheduler"))
        del pod["spec"]["schedulerName"]
        async with c.plane.scheduler(registration(extender.url)):
            await c.create(pod)
            assert "make it shorter" in await c.event("largest", "FailedScheduling", "longer than etcd takes")
            await c.create_pod("other", 10_000)
            await c.bound("other")
            assert await c.node_of("largest") is None


async def test_pod_that_is_padded_after_filter_is_bound_when_it_is_so_no_more(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with front(extender) as service:
            service.before["bind"] = partial(pad_annotations, c, "p")
            async with c.plane.scheduler(registration(service.url)):
                await c.create_pod("p", 1_000)
                assert "262144" in await c.event("p", "FailedScheduling", "metadata.annotations")
                assert await c.node_of("p") is None
                await c.patch(f"{POD}/p", {"metadata": {"annotations": {"pad": None}}})
                await c.bound("p")


async def test_bound_pod_that_its_owner_pads_is_updated_finished_and_released(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("padded", 8_000)
            await c.bound("padded")
            await pad_annotations(c, "padded")
            await c.patch(f"{POD}/padded", {"metadata": {"labels": {"still": "written"}}})
            await c.patch(f"{POD}/padded/status", {"status": {"phase": "Running"}})
            await c.create_pod("next", 8_000)
            await c.event("next", "FailedScheduling", "RDMA Scheduler Extension")
            await c.patch(f"{POD}/padded/status", {"status": {"phase": "Succeeded"}})
            await c.delete_pod("padded")
            await c.bound("next")


@pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}")
async def test_binding_fits_in_no_pod_that_the_fence_does_not_fit_in(tmp_path: Path):
    """Because of this, a new leader takes such a pod for fenced (`extender.leadership`)."""
    async with cluster("real", tmp_path, "w1") as c:
        token = await token_of(c, "k8s-rdma-extender", namespace="kube-system")
        most = await longest(c)
        interface = PlacedInterface(pf="0000:01:00.0", min_tx_rate_mbps=1, max_tx_rate_mbps=0)
        placement = Placement(node="w1", interfaces=(interface,))
        refused = []
        for slack in range(0, 99, 3):
            path = f"{POD}/{(name := f'slack{slack:02}')}"
            pod = await c.create(large(name, most - 5 * slack))
            text = encode(placement, pod["metadata"]["uid"], None)
            fence = {"metadata": {"annotations": {"k8s-rdma.io/fence": "0123456789ab"}}}
            why = await written(c, token, "PATCH", path, fence)
            meta = {"name": name, "annotations": {PLACEMENT_ANNOTATION: text}}
            target = {"kind": "Node", "name": "w1"}
            binding = {"kind": "Binding", "apiVersion": "v1", "metadata": meta, "target": target}
            bound = await c.http.post(f"{path}/binding", json=binding)
            refused.append(("too large" in why, "too large" in bound.text))
        assert (True, True) in refused
        assert (True, False) not in refused
