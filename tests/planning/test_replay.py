"""A run of the real extender, replayed through snapshots: the same nodes, scores, PFs and limits."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
import yaml

from extender.node_server import PF0, PF1, pf, rates, report
from extender.published import PublishedNode
from extender.world import World, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.placement import Placement
from k8s_rdma.core.types import NodeName, PodUid, Strategy
from k8s_rdma.kube.client import Client
from k8s_rdma.kube.documents import Documents
from k8s_rdma.planning.planned_cluster import PlannedCluster, workload_of
from k8s_rdma.planning.snapshot import VERSION, Snapshot, decode_snapshot, encode_snapshot, take_snapshot
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_own
from k8s_rdma_demo.cluster.command import kubeconfig
from lightkube_client import lightkube_client

pytestmark = pytest.mark.anyio

NODES = ("w1", "w2", "w3", "w4")
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CONFIG = "/api/v1/namespaces/k8s-rdma/configmaps"
RECORDED = Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json"
RATES = (0, 1_000, 2_500, 4_000, 7_000)


async def publish(w: World) -> None:
    """Publish the nodes' reports, as their agents write them to the API server."""
    async with lightkube_client(w.server.url) as client:
        for name, node in w.nodes.items():
            await PublishedNode(Client(client, silence_s=60.0), NodeName(name)).say(node.report)


async def configure(w: World, strategy: Strategy, limit_mbps: int) -> None:
    settings = {
        "strategy": strategy.value,
        "limits": [{"namespace": "default", "reservedMbps": limit_mbps}],
        "vfResource": "k8s-rdma.io/vf",
    }
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    assert (await w.http.post(CLASSES, json=urgent)).status_code == 201
    document = {"metadata": {"name": "k8s-rdma-extender"}, "data": {"extender.yaml": yaml.dump(settings)}}
    assert (await w.http.post(CONFIG, json=document)).status_code == 201


def taken(server: str, directory: Path) -> Snapshot:
    path = directory / "kubeconfig"
    path.write_text(yaml.dump(kubeconfig(server)))
    with Documents(str(path)) as api:
        snapshot = take_snapshot(api, "k8s-rdma")
    return decode_snapshot(encode_snapshot(snapshot), "cluster.json")


@pytest.mark.parametrize("strategy", Strategy)
async def test_every_decision_of_a_run_is_that_of_the_snapshot_before_it(strategy: Strategy, tmp_path: Path):
    rng = random.Random(strategy.value)
    decisions = refusals = limited = 0
    limit = NamespaceLimit(namespace="default", reserved_mbps=70_000)
    async with world(*NODES, strategy=strategy, limits=(limit,)) as w:
        for number, node in enumerate(w.nodes.values()):
            weighted = {"rates": rates(weights=100)} if number % 2 else {}
            node.report = report(
                node.name, pf(PF0, vfs=6, numa_node=0, **weighted), pf(PF1, vfs=3, mbps=25_000, numa_node=1),
                held={f"foreign-{number}": [500, 500]},
            )  # fmt: skip
        await publish(w)
        await configure(w, strategy, 70_000)
        for number in range(24):
            wanted = [rng.choice(RATES) for _ in range(rng.choice([1, 1, 2, 3]))]
            policy = rng.choice([None, None, "same-pf", "spread-pfs", "same-numa"])
            pod = await w.create_pod(f"p{number}", *wanted, policy=policy)
            uid = pod["metadata"]["uid"]
            planned = PlannedCluster.from_snapshot(await asyncio.to_thread(taken, w.server.url, tmp_path))
            assert not planned.unreadable
            workload = workload_of(planned.pods[PodUid(uid)])
            fits = {
                name: planned.cluster.fit(workload.request, planned.cluster.state(name))
                for name in planned.cluster
            }
            fitting = {name: found.score for name, found in fits.items() if found is not None}
            refusal = planned.limit_refusal("default", workload.request)

            answer = await w.filter(f"p{number}")
            if refusal:
                assert not answer["NodeNames"]
                assert all(refusal in why for why in (answer["FailedNodes"] or {}).values())
                limited += 1
                await w.delete_pod(f"p{number}")
                continue
            assert sorted(answer["NodeNames"] or ()) == sorted(fitting)
            refusals += len(NODES) - len(fitting)
            if not fitting:
                continue
            highest = max(fitting.values())
            assert await w.prioritize(f"p{number}", *fitting) == {
                name: min(9, score // 100) + (score == highest) for name, score in fitting.items()
            }
            best = planned.cluster.best(workload.request)
            assert best is not None
            assert not await w.bind(f"p{number}", best)
            text = (await w.read_pod(f"p{number}"))["metadata"]["annotations"][PLACEMENT_ANNOTATION]
            written = decode_own(text, uid=PodUid(uid), node=best, keys=None).placement
            found = planned.cluster.place(workload.request, best)
            assert isinstance(found, Placement)
            assert (found.interfaces, found.policy) == (written.interfaces, written.policy)
            decisions += 1
            if rng.random() < 0.2:
                await w.delete_pod(f"p{number}")
        assert decisions >= 10
        assert refusals
        if os.environ.get("K8S_RDMA_RECORD_SNAPSHOT") and strategy is Strategy.BINPACK:
            await w.create_pod("waits", 40_000, 40_000)
            snapshot = await asyncio.to_thread(taken, w.server.url, tmp_path)
            RECORDED.parent.mkdir(exist_ok=True)
            RECORDED.write_bytes(encode_snapshot(snapshot))
