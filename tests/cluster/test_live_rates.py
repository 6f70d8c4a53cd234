"""Rates of running pods by their annotation: kubectl's edit, the extender's decision, the node's report."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.typed import Shell, obstacle
from cluster.world import Cluster, cluster
from documents import ROOT
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, decode_rates_status, digest

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json
    from k8s_rdma.wire.rates_status import RatesStatus

pytestmark = pytest.mark.anyio
ANNOTATION = "rdma_interfaces_required"


def status_of(pod: Json) -> RatesStatus | None:
    annotations = pod["metadata"]["annotations"]
    text = annotations.get(RATES_STATUS_ANNOTATION)
    status = decode_rates_status(text) if text else None
    return status if status and status.request == digest(annotations[ANNOTATION]) else None


async def change(c: Cluster, name: str, mbps: int) -> None:
    patch = {"metadata": {"annotations": {ANNOTATION: json.dumps([{"min_tx_rate": mbps}])}}}
    await c.patch(f"/api/v1/namespaces/default/pods/{name}", patch)


async def reached(c: Cluster, name: str, state: str) -> RatesStatus:
    pod = await c.when(name, lambda pod: (found := status_of(pod)) is not None and found.state == state)
    status = status_of(pod)
    assert status is not None
    return status


async def test_rates_change_within_the_extenders_rights_and_free_room_for_others(kind: str, tmp_path: Path):
    key = tmp_path / "placement.key"
    key.write_bytes(b"a key of this test, long enough")
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender(placementKeyFile=str(key))
        async with c.plane.scheduler(registration(extender.url)):
            for name, mbps in (("gold", 5_000), ("silver", 4_000)):
                await c.create_pod(name, mbps)
                await c.bound(name)
            await change(c, "gold", 7_000)
            refused = await reached(c, "gold", "refused")
            assert "others leave 6000 of 10000 Mb/s" in refused.message
            await change(c, "silver", 2_000)
            assert (await reached(c, "silver", "programmed")).generation == 1
            assert (await reached(c, "gold", "programmed")).generation == 1
            assert set((await c.placed()).values()) == {9_000}
            assert c.nodes["w1"].reserved() == dict.fromkeys(c.nodes["w1"].reserved(), 9_000)
            await c.create_pod("bronze", 1_000)
            await c.bound("bronze")


TYPED = re.compile(
    r"^<!-- run by tests/cluster/test_live_rates.py -->\n```console\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@pytest.mark.skipif(bool(obstacle("kubectl")), reason=str(obstacle("kubectl")))
async def test_kubectl_alone_changes_rates_as_the_page_shows(tmp_path: Path):
    [block] = TYPED.findall((ROOT / "docs" / "live-rates.md").read_text())
    annotate, get, answer = block.splitlines()
    key = tmp_path / "placement.key"
    key.write_bytes(b"a key of this test, long enough")
    async with cluster("real", tmp_path, "w1") as c:
        extender = await c.running_extender(placementKeyFile=str(key))
        shell = Shell.at(c.plane, tmp_path)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("gold", 500)
            await c.bound("gold")
            await shell.types(annotate.removeprefix("$ "))
            await reached(c, "gold", "programmed")
            printed = json.loads(await shell.types(get.removeprefix("$ ")))
    assert printed == json.loads(answer) | {"state": "programmed"}
