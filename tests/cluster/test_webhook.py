"""The webhook and its configuration of the chart, called by a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.real import obstacle
from cluster.test_policies_injection import created
from cluster.webhook import FIRST, running_webhook
from cluster.world import cluster
from injection_cases import ASKS, CASES, REFUSED, SIDECAR, Case

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]


async def test_webhook_injects_the_resources_of_the_table(tmp_path: Path):
    async with cluster("real", tmp_path, deadline_s=280) as c:
        expected = [await created(c, case.injected()) for case in CASES]
        async with running_webhook(c, tmp_path):
            for case, spec in zip(CASES, expected, strict=True):
                assert await created(c, case.pod()) == spec, case.name
            for name, annotations, message in REFUSED:
                pod = Case(name=name, annotations={**ASKS, **annotations}, spec=SIDECAR).pod()
                answer = await c.http.post("/api/v1/namespaces/default/pods?dryRun=All", json=pod)
                assert (answer.status_code, message in answer.text) == (422, True), answer.text
        assert (await created(c, FIRST.pod()))["schedulerName"] == "default-scheduler", "nobody answers"
