"""deploy/policies/extender.yaml in a real API server: rights of a taken token of the extender's account.

Every scenario on a real API server has this policy (`cluster.world`): they show the extender's needs.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cluster.policies import SINCE, grant_everything, token_of, until, written
from cluster.real import obstacle
from cluster.world import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
EXTENDER = "k8s-rdma-extender"
TIME = "20260101T000000.000000Z"
NODE, POD = "/api/v1/nodes/w1", "/api/v1/namespaces/kube-system/pods/privileged"
PRIVILEGED = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "privileged", "namespace": "kube-system"},
    "spec": {
        "nodeName": "w1",
        "containers": [
            {"name": "c", "image": "registry.invalid/c:1", "securityContext": {"privileged": True}}
        ],
    },
}
EVIL = {"spec": {"containers": [{**PRIVILEGED["spec"]["containers"][0], "image": "registry.invalid/evil:1"}]}}
OF_POD = (
    "the extender writes nothing of a pod but the annotation or label k8s-rdma.io/fence and the annotations "
    "k8s-rdma.io/placement and k8s-rdma.io/rates-status"
)
OF_NODE = "the extender writes nothing of a Node but the annotation or label k8s-rdma.io/capacity-freed"
OF_STATUS = (
    "a scheduler writes nothing of a pod's status but its own conditions, nominatedNodeName and claims"
)


@asynccontextmanager
async def with_token(directory: Path, granted: bool = False) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster with the policy in force, and a token of the extender's; granted: all that RBAC has."""
    async with cluster("real", directory, "w1") as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: ValidatingAdmissionPolicy is of {SINCE} and later")
        token = await token_of(c, EXTENDER, namespace="kube-system")
        if granted:
            await grant_everything(c, EXTENDER, "kube-system")
        await until(lambda: in_force(c, token))
        yield c, token


async def in_force(c: Cluster, token: str) -> bool:
    """Whether a Binding is refused for its annotation, which comes before that there is no such pod."""
    path = "/api/v1/namespaces/default/pods/none/binding"
    refused = await written(c, token, "POST", path, binding("none", annotations={"a": "b"}))
    return "no annotation but" in refused


def binding(name: str, **metadata: Any) -> Json:
    target = {"kind": "Node", "name": "w1"}
    return {"kind": "Binding", "apiVersion": "v1", "metadata": {"name": name, **metadata}, "target": target}


async def test_token_of_the_extender_changes_no_pod_and_no_node(tmp_path: Path):
    async with with_token(tmp_path) as (c, token):
        await c.create(PRIVILEGED)
        for path, patch in (
            (POD, {"metadata": {"annotations": {"k8s-rdma.io/fence": "0123456789ab"}}}),
            (POD, {"metadata": {"labels": {"k8s-rdma.io/fence": "0123456789ab"}}}),
            (POD, {"metadata": {"annotations": {"k8s-rdma.io/placement": '{"interfaces": []}'}}}),
            (POD, {"metadata": {"annotations": {"k8s-rdma.io/rates-status": "{}"}}}),
            (NODE, {"metadata": {"annotations": {"k8s-rdma.io/capacity-freed": TIME}}}),
            (NODE, {"metadata": {"labels": {"k8s-rdma.io/capacity-freed": TIME}}}),
        ):
            assert await written(c, token, "PATCH", path, patch) == ""
        for path, patch, told in (
            (POD, EVIL, OF_POD),
            (POD, {"metadata": {"labels": {"app": "victim"}}}, OF_POD),
            (POD, {"metadata": {"annotations": {"a": "b"}}}, OF_POD),
            (POD, {"metadata": {"finalizers": ["example.com/x"]}}, OF_POD),
            (POD, {"metadata": {"annotations": {"k8s-rdma.io/fence": "x"}}}, OF_POD),
            (POD, {"metadata": {"annotations": {"k8s-rdma.io/placement": None}}}, OF_POD),
            (NODE, {"metadata": {"labels": {"a": "b"}}}, OF_NODE),
            (NODE, {"metadata": {"annotations": {"k8s-rdma.io/capacity-freed": "x"}}}, OF_NODE),
            (NODE, {"spec": {"unschedulable": True}}, OF_NODE),
            (NODE, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, OF_NODE),
        ):
            assert told in await written(c, token, "PATCH", path, patch), patch


async def test_token_of_the_extender_only_binds_with_a_placement(tmp_path: Path):
    async with with_token(tmp_path) as (c, token):
        await c.create_pod("p", schedulerName="nobody")
        path = "/api/v1/namespaces/default/pods/p/binding"
        for metadata, told in (
            ({"annotations": {"a": "b"}}, "binds with no annotation but k8s-rdma.io/placement"),
            ({"labels": {"app": "victim"}}, "binds with no labels but those of the Node's topology"),
        ):
            assert told in await written(c, token, "POST", path, binding("p", **metadata))
        placed = binding("p", annotations={"k8s-rdma.io/placement": '{"interfaces": []}'})
        assert await written(c, token, "POST", path, placed) == ""


async def test_account_of_a_second_scheduler_writes_status_of_pods_as_a_scheduler(tmp_path: Path):
    """The policy alone: the role here is wider than any of ours."""
    async with with_token(tmp_path, granted=True) as (c, token):
        await c.create(PRIVILEGED)
        status = f"{POD}/status"
        await c.create_pod("waits", schedulerName="nobody")
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        said = {"status": {"conditions": [waits], "nominatedNodeName": "w1"}}
        pending = "/api/v1/namespaces/default/pods/waits/status"
        assert await written(c, token, "PATCH", pending, said) == ""
        for patch in (
            {"status": {"phase": "Failed"}},
            {"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"metadata": {"labels": {"app": "victim"}}},
        ):
            assert OF_STATUS in await written(c, token, "PATCH", status, patch), patch
        assert OF_POD in await written(c, token, "PATCH", POD, EVIL)
        assert OF_NODE in await written(c, token, "PATCH", f"{NODE}/status", {"status": {"phase": "Pending"}})
        unused = await written(c, token, "POST", f"{POD}/eviction", {"metadata": {"name": "privileged"}})
        assert "the extender has no use for CREATE of pods/eviction" in unused
        assert await written(c, token, "DELETE", POD) == "", "a scheduler preempts"
