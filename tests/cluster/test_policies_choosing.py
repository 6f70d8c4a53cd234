"""deploy/policies/choose-scheduler.yaml in a real API server, of 1.36 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.policies import apply_policies, until
from cluster.real import obstacle
from cluster.world import Cluster, cluster

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
SINCE = (1, 36)


def pod(annotation: str | None, **spec: str) -> Json:
    annotations = {} if annotation is None else {"rdma_interfaces_required": annotation}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "registry.invalid/c:1"}], **spec},
    }


async def scheduler_of(c: Cluster, document: Json) -> str:
    """Whose the API server would make this pod."""
    given = await c.http.post("/api/v1/namespaces/default/pods?dryRun=All", json=document)
    assert given.status_code == 201, given.text
    return given.json()["spec"]["schedulerName"]


async def test_pod_that_asks_for_interfaces_is_the_second_schedulers_unless_it_names_another(tmp_path: Path):
    async with cluster("real", tmp_path, deadline_s=280) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: MutatingAdmissionPolicy v1 is of {SINCE} and later")
        await apply_policies(c, "choose-scheduler")

        async def in_force() -> bool:
            return await scheduler_of(c, pod("[{}]")) == "rdma-scheduler"

        await until(in_force)
        assert await scheduler_of(c, pod("[{}]", schedulerName="default-scheduler")) == "rdma-scheduler"
        assert await scheduler_of(c, pod("[{}]", schedulerName="another")) == "another"
        assert await scheduler_of(c, pod("[{}]", nodeName="w1")) == "default-scheduler"
        for empty in (None, "", "[]"):
            assert await scheduler_of(c, pod(empty)) == "default-scheduler"
