"""Every file of examples/gangs/: a gang is bound with all pods or not at all, as `whatif` says beforehand.

No JobSet, Kueue, LeaderWorkerSet or Kubernetes 1.37 runs here: the test plays their controllers, on
stand-ins of API server and kube-scheduler, with PodGroups of v1beta1. The extender is the process.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.extenders import registration
from cluster.test_version_skew import pod_groups
from cluster.world import cluster, placement
from extender.node_server import PF0, pf, report
from injection_cases import SLOT
from k8s_rdma.config.manifests import documents
from k8s_rdma.planning.manifest_workloads import read_workloads
from webhook.test_injection import injected
from workloads import pods, templates

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = sorted((EXAMPLES / "gangs").iterdir())
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
PLACED = {
    "job.yaml": (4, 800),
    "jobset.yaml": (4, 800),
    "kueue.yaml": (2, 800),
    "leaderworkerset.yaml": (4, 600),
    "pod-group.yaml": (3, 450),
}
"""The pods with interfaces, and the sum of their reservations in Mb/s."""
GANGS = {"leaderworkerset.yaml": 2}
"""The number of gangs, of equal size, if there are more than one."""

of_each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def made(path: Path) -> tuple[list[Json], list[Json]]:
    """The PodGroups and the pods that there are in the end, whoever makes them."""
    found = list(documents(path.read_text()))
    [first, *_] = found
    if first["kind"] == "PodGroup":
        return [first], list(pods(found[-1]))
    if first["kind"] == "Pod":
        name = first["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        return [group(name, len(found))], [in_group(each, name) for each in found]
    number = sum(count for count, _ in templates(first))
    name = first["metadata"]["name"]
    mode = first["spec"]["scheduling"].get("disruptionMode")
    gangs = GANGS.get(path.name, 1)
    names = [name] if gangs == 1 else [f"{name}-{index}" for index in range(gangs)]
    size = number // gangs
    return (
        [group(each, size, mode) for each in names],
        [in_group(pod, names[index // size]) for index, pod in enumerate(pods(first))],
    )


def group(name: str, number: int, mode: Json | None = None) -> Json:
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": number}}}
    return {"metadata": {"name": name}, "spec": {**spec, **({"disruptionMode": mode} if mode else {})}}


def in_group(pod: Json, name: str) -> Json:
    changed = copy.deepcopy(pod)
    changed["spec"]["schedulingGroup"] = {"podGroupName": name}
    changed["metadata"]["namespace"] = "default"
    return changed


def requesting(pods: list[Json]) -> Iterator[str]:
    for pod in pods:
        if "k8s-rdma.io/interfaces" in pod["metadata"].get("annotations", {}):
            yield pod["metadata"]["name"]


@pytest.mark.anyio
@pytest.mark.parametrize("fits", [True, False])
@of_each_file
async def test_all_pods_of_a_gang_are_bound_or_none(path: Path, tmp_path: Path, *, fits: bool):
    number, mbps = PLACED[path.name]
    pod_groups_made, found = made(path)
    gangs = len(pod_groups_made)
    async with cluster("stand-in", tmp_path, "w1", **{SLOT: "100"}) as c:
        link_mbps = mbps if fits else mbps - 1
        c.nodes["w1"].server.report = report("w1", pf(PF0, vfs=64, mbps=link_mbps))
        await c.plane.add_crd(pod_groups("v1beta1"))
        for each in pod_groups_made:
            assert (await c.http.post(GROUPS, json=each)).status_code == 201
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            for pod in found:
                changed = injected(pod)
                changed["spec"].pop("schedulerName", None)
                await c.create(changed)
            names = list(requesting(found))
            assert len(names) == number
            size = number // gangs
            room_for = number if fits else number - size
            await c.some_bound(room_for + len(found) - number if fits else room_for)
            by_gang = [names[first : first + size] for first in range(0, number, size)]
            bound = [[await c.node_of(name) is not None for name in gang] for gang in by_gang]
            assert sum(map(all, bound)) == room_for // size
            for gang, is_bound in zip(by_gang, bound, strict=True):
                assert len(set(is_bound)) == 1
                for name in gang:
                    if is_bound[0]:
                        assert len(placement(await c.bound(name))) == 1
                    else:
                        await c.event(name, "FailedScheduling", "")
                        assert await c.node_of(name) is None


@of_each_file
def test_whatif_takes_the_pods_for_the_same_gangs(path: Path):
    found = read_workloads(path.read_text()).workloads
    parts = [part for each in found for part in each.by_gang()]
    assert len({part.gang for part in parts}) == GANGS.get(path.name, 1)
    assert all(part.gang for part in parts)
    assert sum(each.count for each in found) == PLACED[path.name][0]


def test_readme_has_the_files():
    readme = (EXAMPLES / "README.md").read_text()
    assert not [path.name for path in FILES if f"| `gangs/{path.name}` |" not in readme]
