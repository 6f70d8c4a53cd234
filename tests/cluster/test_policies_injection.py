"""deploy/policies/inject.yaml in a real API server, of 1.36 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.policies import apply_policies, until
from cluster.real import obstacle
from cluster.world import Cluster, cluster
from injection_cases import ASKS, CASES, Case

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
SINCE = (1, 36)


async def created(c: Cluster, pod: Json) -> Json:
    """The specification that the API server would give a pod."""
    pod["spec"]["automountServiceAccountToken"] = False  # its volume has a random name
    answer = await c.http.post("/api/v1/namespaces/default/pods?dryRun=All", json=pod)
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers, answer.headers["warning"]
    return answer.json()["spec"]


async def test_policy_injects_the_resources_of_the_table(tmp_path: Path):
    async with cluster("real", tmp_path, deadline_s=280) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: MutatingAdmissionPolicy v1 is of {SINCE} and later")
        expected = [await created(c, case.injected()) for case in CASES]
        await apply_policies(c, "inject")
        first = Case(name="", annotations=ASKS, slots=("main",))

        async def in_force() -> bool:
            return (await created(c, first.pod()))["schedulerName"] == first.scheduler

        await until(in_force)
        for case, spec in zip(CASES, expected, strict=True):
            assert await created(c, case.pod()) == spec, case.name
            assert await created(c, case.injected()) == spec, f"{case.name}: injected twice"
