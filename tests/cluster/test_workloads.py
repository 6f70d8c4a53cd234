"""examples/workloads: their pods come to nodes that keep their requests, from their annotations alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.controllers import controllers
from cluster.controllers import obstacle as no_controllers
from cluster.extenders import registration
from cluster.policies import apply_policies, until
from cluster.real import obstacle
from cluster.test_policies_injection import SINCE, created
from cluster.world import Cluster, cluster, documents, placement
from extender.node_server import PF0, PF1, pf, report
from injection_cases import ASKS, SCHEDULER, SLOT, Case
from webhook.test_injection import injected
from workloads import FILES, pods, workload

if TYPE_CHECKING:
    from cluster.control_plane import Json

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
DEFINITIONS = "K8S_RDMA_CRDS"
"""A folder with the CustomResourceDefinitions of the workloads: tests/cluster/README.md says which."""
PLAIN = [path for path in FILES if path.stem in {"deployment", "job", "indexed-job"}]


def scheduler(url: str) -> Json:
    """The second scheduler's configuration."""
    return {**registration(url), "profiles": [{"schedulerName": SCHEDULER}]}


def add_pfs(c: Cluster) -> None:
    """Two PFs of 1,000 Mb/s to each node, as in the demo."""
    for name, node in c.nodes.items():
        node.server.report = report(name, pf(PF0, vfs=64, mbps=1_000), pf(PF1, vfs=64, mbps=1_000))


def asked(pod: Json) -> int:
    """How many interfaces a pod of the examples asks for."""
    text = pod["metadata"].get("annotations", {}).get("k8s-rdma.io/interfaces", "[]")
    return sum(each.get("count", 1) for each in yaml.safe_load(text))


def definitions() -> list[Json]:
    """All of the folder."""
    files = sorted(Path(os.environ[DEFINITIONS]).glob("*.yaml"))
    return [definition for file in files for definition in documents(file)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_pods_of_the_workload_are_placed(path: Path, tmp_path: Path):
    """The test plays its controller: each pod is made of its template, and injected by the webhook's code."""
    made = [injected(pod) for pod in pods(workload(path))]
    async with cluster("stand-in", tmp_path, "w1", "w2", **{SLOT: "100"}) as c:
        add_pfs(c)
        extender = await c.running_extender()
        async with c.plane.scheduler(scheduler(extender.url)):
            for pod in made:
                await c.create(pod)
            for pod in made:
                if pod["spec"].get("schedulerName") == SCHEDULER:
                    bound = await c.bound(pod["metadata"]["name"])
                    assert len(placement(bound)) == asked(pod)
            assert max((await c.placed()).values()) <= 1_000


@pytest.mark.skipif(
    bool(obstacle() or no_controllers()), reason=f"no real cluster: {obstacle() or no_controllers()}"
)
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
async def test_controllers_of_kubernetes_make_pods_that_are_completed_and_placed(path: Path, tmp_path: Path):
    async with cluster("real", tmp_path, "w1", "w2", deadline_s=280, **{SLOT: "100"}) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: MutatingAdmissionPolicy v1 is of {SINCE} and later")
        add_pfs(c)
        await apply_policies(c, "inject")
        await apply_policies(c, "annotation")
        pod = Case(name="", annotations=ASKS).pod()

        async def in_force() -> bool:
            return (await created(c, pod))["schedulerName"] == SCHEDULER

        await until(in_force)
        extender = await c.running_extender()
        running = (
            "deployment-controller",
            "replicaset-controller",
            "job-controller",
            "serviceaccount-controller",
        )
        async with controllers(c.plane, *running), c.plane.scheduler(scheduler(extender.url)):
            for document in documents(path):
                group = {"Deployment": "apps/v1/", "Job": "batch/v1/"}.get(document["kind"])
                prefix = f"/apis/{group}" if group else "/api/v1/"
                url = f"{prefix}namespaces/default/{document['kind'].lower()}s"
                answer = await c.http.post(f"{url}?fieldValidation=Strict", json=document)
                assert answer.status_code == 201, answer.text
            expected = list(pods(workload(path)))
            for bound in await c.some_bound(len(expected)):
                limits = bound["spec"]["containers"][0]["resources"]["limits"]
                assert (bound["spec"]["schedulerName"], limits) == (SCHEDULER, {SLOT: "1"})
                assert len(placement(bound)) == asked(bound)


@pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}")
@pytest.mark.skipif(
    DEFINITIONS not in os.environ, reason=f"{DEFINITIONS} names no folder with the workloads' CRDs"
)
async def test_objects_are_valid_by_their_definitions(tmp_path: Path):
    async with cluster("real", tmp_path, deadline_s=280) as c:
        group = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        plurals = {}
        for definition in definitions():
            definition["spec"].pop("conversion", None)  # no server answers its webhook here
            answer = await c.http.post(group, json=definition)
            assert answer.status_code == 201, answer.text
            plurals[definition["spec"]["names"]["kind"]] = definition["spec"]["names"]["plural"]
        checked = [path for path in FILES if workload(path)["kind"] in plurals]
        assert len(checked) == len(FILES) - len(PLAIN), "a definition is missing"
        for path in checked:
            document = workload(path)
            url = f"/apis/{document['apiVersion']}/namespaces/default/{plurals[document['kind']]}"

            async def served(url: str = url) -> bool:
                return (await c.http.get(url)).status_code == 200

            await until(served)
            answer = await c.http.post(f"{url}?dryRun=All&fieldValidation=Strict", json=document)
            assert answer.status_code == 201, f"{path.name}: {answer.text}"
