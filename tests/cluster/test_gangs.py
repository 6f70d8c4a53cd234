"""Gangs, by kube-scheduler's own plug-in: all of one are bound, or no pod, also if bandwidth is short."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.control_plane import write_kubeconfig
from cluster.controllers import controllers
from cluster.controllers import obstacle as no_controllers
from cluster.extenders import Extender, registration
from cluster.real import GANGS, obstacle, real
from cluster.test_preemption import FOUR, VFS, classes, pod, preempting
from cluster.world import Cluster, cluster, documents
from extender.node_server import PF0, pf, report
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.pod_groups import served_versions
from k8s_rdma.wire.pod_spec import LABEL
from test_gang_examples import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json


pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(obstacle()), reason="no real cluster")]

ALPHA = (1, 36)
API = "scheduling.k8s.io/v1alpha2"


async def gang(c: Cluster, name: str, rate: int, *, size: int = 4, count: int = 4) -> None:
    """So many pods of a group of which `count` are to be bound together."""
    await group(c, name, {"gang": {"minCount": count}})
    for number in range(size):
        await c.create_pod(f"{name}-{number}", rate, schedulingGroup={"podGroupName": name})


async def group(c: Cluster, name: str, policy: Json, **spec: Any) -> None:
    """A PodGroup."""
    if c.plane.release != ALPHA:
        pytest.skip(f"{API} is served by Kubernetes 1.36")
    meta = {"name": name, "namespace": "default"}
    await c.create(
        {
            "kind": "PodGroup",
            "apiVersion": API,
            "metadata": meta,
            "spec": {"schedulingPolicy": policy, **spec},
        }
    )


async def bound_of(c: Cluster, name: str) -> int:
    pods = (await c.http.get("/api/v1/namespaces/default/pods")).json()["items"]
    ours = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
    return sum(bool(pod["spec"].get("nodeName")) for pod in ours)


async def filtered(extender: Extender, count: int) -> None:
    """Wait until the extender has been asked about so many pods more."""
    async with httpx2.AsyncClient(base_url=extender.url, trust_env=False) as http:
        first = await requests_of(http)
        while await requests_of(http) < first + count:  # noqa: ASYNC110  another process counts
            await asyncio.sleep(0.05)


async def requests_of(http: httpx2.AsyncClient) -> int:
    text = (await http.get("/metrics")).text
    return sum(int(n) for n in re.findall(r'decisions_total\{reason="\w+",verb="filter"\} (\d+)', text))


async def test_no_pod_of_a_gang_is_bound_if_bandwidth_is_for_all_but_one(tmp_path: Path):
    async with cluster("gangs", tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await gang(c, "a", 3_000)
            await filtered(extender, 40)
            assert await bound_of(c, "a") == 0


async def test_second_of_two_gangs_follows_whole_when_the_first_ends(tmp_path: Path):
    async with cluster("gangs", tmp_path, "w1", "w2") as c:
        extender = await c.running_extender()
        await asyncio.gather(gang(c, "a", 3_000), gang(c, "b", 3_000))
        async with c.plane.scheduler(registration(extender.url)):
            await c.some_bound(4)
            first, second = ("a", "b") if await bound_of(c, "a") else ("b", "a")
            await filtered(extender, 40)
            assert (await bound_of(c, first), await bound_of(c, second)) == (4, 0)
            for number in range(4):
                await c.delete_pod(f"{first}-{number}")
            for number in range(4):
                await c.bound(f"{second}-{number}")


@pytest.mark.parametrize(("rate", "bound"), [(3_000, 4), (4_000, 0)])
async def test_pod_without_interfaces_is_bound_with_its_gang_or_not_at_all(
    tmp_path: Path, rate: int, bound: int
):
    async with cluster("gangs", tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await gang(c, "a", rate, size=3, count=4)
            await c.create_pod("a-launcher", schedulingGroup={"podGroupName": "a"})
            await (c.some_bound(bound) if bound else filtered(extender, 40))
            assert await bound_of(c, "a") == bound


async def test_label_of_coscheduling_is_ignored_if_its_api_is_not_served(tmp_path: Path):
    async with cluster("real", tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("p", 1_000, labels={LABEL: "none"})
            await c.bound("p")


async def test_group_that_is_disrupted_together_goes_whole(tmp_path: Path):
    """kube-scheduler chooses one pod of it, by the VFs that it counts."""
    plane = partial(real, gates=(*GANGS, "WorkloadAwarePreemption"), served=(API,))
    async with cluster(plane, tmp_path, "w1", **FOUR) as c:
        await classes(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            await group(c, "a", {"gang": {"minCount": 2}}, disruptionMode="PodGroup")
            for number in range(4):
                await pod(c, f"a-{number}", "low", 2_500, schedulingGroup={"podGroupName": "a"})
            await c.some_bound(4)
            await pod(c, "high", "high", 2_500)
            await c.bound("high")
            assert [await c.pod(f"a-{number}") for number in range(4)] == [None] * 4


@pytest.mark.skipif(bool(no_controllers()), reason=f"no real cluster: {no_controllers()}")
@pytest.mark.parametrize("fits", [True, False])
async def test_job_is_a_gang_by_the_pod_group_that_its_controller_makes(tmp_path: Path, *, fits: bool):
    """Kubernetes 1.36 does so for indexed Jobs whose pods run all at a time; `spec.scheduling` is of 1.37."""
    [job] = documents(EXAMPLES / "gangs" / "job.yaml")
    plane = partial(real, gates=(*GANGS, "WorkloadWithJob"), served=(API,))
    async with cluster(plane, tmp_path, "w1") as c:
        c.nodes["w1"].server.report = report("w1", pf(PF0, vfs=64, mbps=800 if fits else 799))
        extender = await c.running_extender()
        running = controllers(c.plane, "job-controller")
        async with running, c.plane.scheduler(registration(extender.url)):
            made = await c.http.post("/apis/batch/v1/namespaces/default/jobs", json=job)
            assert made.status_code == 201, made.text
            if fits:
                await c.some_bound(4)
            else:
                await filtered(extender, 40)
                assert await bound_of(c, "train") == 0
        [found] = (await c.http.get(f"/apis/{API}/podgroups")).json()["items"]
        assert found["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
        assert found["metadata"]["ownerReferences"][0]["kind"] == "Job"


@pytest.mark.parametrize(("kind", "versions"), [("gangs", ("v1alpha2",)), ("real", ())])
async def test_version_of_pod_groups_is_found_by_discovery(
    tmp_path: Path, kind: str, versions: tuple[str, ...]
):
    """Kubernetes 1.36 serves v1alpha2 if its options say so, and no version otherwise."""
    async with cluster(kind, tmp_path) as c:
        admin = write_kubeconfig(tmp_path / "admin.kubeconfig", c.plane, c.plane.admin_token)
        with Documents(str(admin)) as api:
            assert served_versions(api) == versions
