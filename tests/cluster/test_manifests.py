"""The chart's objects in a real API server: taken to the letter, and enough for a second scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.processes import running
from cluster.real import obstacle, programs_of, real
from cluster.server_side_apply import Applied
from cluster.world import cluster, placement
from deploy.rendering.chart import documents, render
from deploy.rendering.manifests import MANIFESTS

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import ControlPlane, Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
NAMESPACE = "k8s-rdma"
NEWEST = (1, 30)
"""The first release with all that the manifests use; the chart leaves out the parts that older ones lack."""

VALUES: dict[str, Json] = {
    "defaults": {},
    "host network": {"extender": {"mode": "host-network"}},
    "service": {
        "extender": {"mode": "service", "replicas": 2, "tlsSecretName": "tls", "clusterIP": "10.96.0.88"},
        "node": {
            "agent": {"config": {"stuckAfterS": 60, "publish": {"vfResource": "k8s-rdma.io/vf"}}},
            "server": {"tls": {"secretName": "tls", "clientCa": True}, "tokensSecretName": "tokens"},
            "cni": {"network": "alone", "plugin": {"ipam": {"type": "host-local"}}},
        },
    },
    "uninstalling": {"node": {"uninstall": True}},
}

CLAIMS: Json = {"dra": {"enabled": True}, "node": {"server": {"tokensSecretName": "tokens"}}}
WITH_CLAIMS = (1, 36)


def rendered(plane: ControlPlane, values: Json) -> list[Json]:
    major, minor = plane.release
    return documents(render(values, kubernetes=f"v{major}.{minor}.0"))


async def test_api_server_takes_all_objects_to_the_letter(tmp_path: Path):
    async with real(tmp_path) as plane, plane.client() as http:
        applied = Applied(http)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await applied.apply(namespace)
        of_claims = [CLAIMS] if plane.release >= WITH_CLAIMS else []
        for values in (*VALUES.values(), *of_claims):
            for each in rendered(plane, values):
                await applied.apply(each, dry_run=True)
        if plane.release >= NEWEST:
            for path in sorted(MANIFESTS.rglob("[!k]*.yaml")):
                for each in filter(None, yaml.safe_load_all(path.read_text())):
                    await applied.apply(each, dry_run=True)


async def test_pod_of_the_second_scheduler_is_bound_with_its_placement(tmp_path: Path):
    async with cluster("real", tmp_path, "w1", **{"k8s-rdma.io/slot": "10"}) as c:  # which the policy adds
        values = {"extender": {"config": {"source": "http", "nodePort": c.node_port}}}
        applied, objects = Applied(c.http), rendered(c.plane, values)
        await applied.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for each in objects:
            await applied.apply(each)
        account = await c.account("k8s-rdma-extender", NAMESPACE)
        (files,) = (each["data"] for each in objects if "scheduler.yaml" in each.get("data", {}))

        key = tmp_path / "placement.key"
        key.write_text("a key for placements")
        settings = yaml.safe_load(files["extender.yaml"])
        extender = await c.running_extender(
            **settings | {"kubeconfig": str(account), "placementKeyFile": str(key), "policyFile": None}
        )
        scheduler = yaml.safe_load(files["scheduler.yaml"])
        scheduler["clientConnection"] = {"kubeconfig": str(account)}
        scheduler["extenders"][0]["urlPrefix"] = f"{extender.url}/scheduler"
        config = tmp_path / "scheduler.yaml"
        config.write_text(yaml.safe_dump(scheduler))
        program = programs_of(c.plane) / "kube-scheduler"
        async with running(tmp_path / "kube-scheduler.log", program, f"--config={config}", "--secure-port=0"):
            await c.create_pod("p", 3_000, schedulerName="rdma-scheduler")
            await c.create_pod("ordinary", schedulerName="rdma-scheduler")
            pod = await c.bound("p")
            assert [each["min_tx_rate"] for each in placement(pod)] == [3_000]
            await c.bound("ordinary")
            log = (tmp_path / "kube-scheduler.log").read_text()
            assert "forbidden" not in log
