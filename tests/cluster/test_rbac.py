"""The manifests' roles suffice for every other scenario; here, the report if one lacks a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.world import Cluster, cluster

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = pytest.mark.anyio

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = f"{RBAC}/clusterroles/k8s-rdma-extender"
OF_LEASES = f"{RBAC}/namespaces/kube-system/roles/k8s-rdma-extender"


async def role_without(c: Cluster, resource: str, verb: str, role: str = ROLE) -> Json:
    """Take a verb away; the rules as they were."""
    before = (await c.http.get(role)).json()["rules"]
    rules = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}
        if resource in rule["resources"]
        else rule
        for rule in before
    ]
    assert rules != before
    await c.patch(role, {"rules": [rule for rule in rules if rule["verbs"]]})
    return before


async def test_pod_is_not_bound_without_the_verb_for_it(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        before = await role_without(c, "pods/binding", "create")
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("p", 1_000)
            told = await c.event("p", "FailedScheduling", "pods/binding")
            user = "system:serviceaccount:kube-system:k8s-rdma-extender"
            assert f'User "{user}" cannot create resource "pods/binding" in API group ""' in told
            await c.patch(ROLE, {"rules": before})
            await c.bound("p")


@pytest.mark.parametrize(
    ("role", "resource", "verb"),
    [
        *((ROLE, resource, verb) for resource in ("pods", "nodes") for verb in ("list", "watch")),
        (ROLE, "poddisruptionbudgets", "list"),
        *((OF_LEASES, "leases", verb) for verb in ("get", "create", "patch")),
    ],
    ids=lambda value: value.rpartition("/")[2],
)
async def test_extender_reports_missing_rights(
    kind: str, tmp_path: Path, role: str, resource: str, verb: str
):
    async with cluster(kind, tmp_path, "w1") as c:
        before = await role_without(c, resource, verb, role)
        extender = c.extender()
        await extender.start()

        async def told() -> bool:
            text = extender.program.log.read_text()
            return f'cannot {verb} resource \\"{resource}\\"' in text

        await extender.program.until(told)
        await c.patch(role, {"rules": before})
        await extender.ready()


async def test_waiting_pods_are_not_woken_without_the_verb_to_touch_nodes(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        await role_without(c, "nodes", "patch")
        node = c.nodes["w1"]
        async with c.plane.scheduler(registration(extender.url)):
            first = (await c.create_pod("first", 8_000))["metadata"]["uid"]
            await c.bound("first")
            node.keeps.add(first)
            await c.create_pod("second", 8_000)
            await c.event("second", "FailedScheduling")
            await c.delete_pod("first")
            await c.gone("first")
            node.release(first)

            async def told() -> bool:
                return 'cannot patch resource \\"nodes\\"' in extender.program.log.read_text()

            await extender.program.until(told)
