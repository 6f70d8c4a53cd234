"""The DRA driver's DaemonSet on a real kubelet, rolled by its controller while pods with claims start."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from claim_cases import claim, devices, request
from cluster.controllers import controllers
from cluster.kubelet import IMAGE as POD_IMAGE
from cluster.test_real_daemonset import IMAGE, image
from cluster.test_real_daemonset_rollout import (
    DAEMONSETS,
    PF,
    Rollout,
    build_dir,
    make_node,
    node,
    program,
    rollout,
)
from cluster.test_real_daemonset_rollout import pytestmark as marks
from cluster.test_real_dra import API, CLAIMS, WHY_NOT
from cluster.test_real_dra_restarts import slice_events
from cluster.test_real_kubelet import with_cdi
from e2e.real_pods import without_us

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [*marks, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]
UPDATES = 3


def routed(node: Node) -> Path:
    """The network of pods that the node reaches and that reach it, as probes of kubelet need."""
    path = without_us(node.runtime(chained=True).conflist)
    document = json.loads(path.read_text())
    [bridge] = document["plugins"]
    bridge |= {"isGateway": True, "ipam": bridge["ipam"] | {"routes": [{"dst": "0.0.0.0/0"}]}}
    path.write_text(json.dumps(document))
    return path


async def apply(it: Rollout, memory_mib: int) -> str:
    """Apply the chart with this request of the driver; the UID of its pod when that is the only one."""
    dra = {"enabled": True, "resources": {"requests": {"cpu": "1m", "memory": f"{memory_mib}Mi"}}}
    hardware = {"pfs": [{"names": [PF], "use": "claims"}]}
    agent = {"kernel": "virtual", "allowUnplaced": True, "cdiDir": f"{it.place}/cdi"}
    await it.apply(values={"dra": dra, "hardware": hardware}, agent={"config": agent})
    while True:
        found = (await it.c.http.get(f"{DAEMONSETS}/k8s-rdma-claims")).json()
        counts = [found["status"].get(key, 0) for key in ("updatedNumberScheduled", "numberAvailable")]
        observed = found["status"].get("observedGeneration") == found["metadata"]["generation"]
        if observed and counts == [1, 1] and len(uids := await drivers(it)) == 1:
            return uids[0]
        await asyncio.sleep(0.1)


async def drivers(it: Rollout) -> list[str]:
    component = "app.kubernetes.io/component"
    pods = await it.pods()
    return [pod["metadata"]["uid"] for pod in pods if pod["metadata"]["labels"].get(component) == "claims"]


async def update(it: Rollout, former: str) -> None:
    """Update the driver again and again."""
    for number in range(1, UPDATES + 1):
        uid = await apply(it, 64 + number)
        assert uid != former
        former = uid


async def start_pod(it: Rollout, name: str) -> None:
    made = await it.c.http.post(CLAIMS, json=claim(devices(request(bandwidth="10M")), name))
    assert made.status_code == 201, made.text
    container = {"name": "c", "image": POD_IMAGE, "imagePullPolicy": "Never"}
    await it.c.create_pod(
        name,
        containers=[container | {"resources": {"claims": [{"name": "net"}]}}],
        resourceClaims=[{"name": "net", "resourceClaimName": name}],
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=0,
    )
    await it.kubelet.running(name)


@pytest.mark.timeout(600)
async def test_pods_with_claims_start_while_the_drivers_daemonset_is_updated(node: Node, tmp_path: Path):
    async with rollout(node, tmp_path, {IMAGE: image()}) as it:
        it.kubelet.use(routed(node))
        async with controllers(it.c.plane, "resourceclaim-controller"):
            first = await apply(it, 64)
            async with slice_events(it.c.http) as changes:
                updating = asyncio.create_task(update(it, first))
                pods = 0
                while not updating.done():
                    await start_pod(it, name := f"p{pods}")
                    assert await it.holders() == {name}
                    await it.end_pods(name)
                    pods += 1
                await updating
            assert pods >= UPDATES
            assert "DELETED" not in changes
        events = (await it.c.http.get("/api/v1/namespaces/default/events")).json()["items"]
        assert "FailedPrepareDynamicResources" not in {event["reason"] for event in events}
        [slice_] = (await it.c.http.get(f"{API}/resourceslices")).json()["items"]
        assert slice_["spec"]["pool"]["generation"] == 1
