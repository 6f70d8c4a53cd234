"""Deployments as the API server takes them: faults by their fields, and fields that stay."""

from __future__ import annotations

from typing import Any

import pytest

from demo.cluster.workload_objects import APPS, deployment, made, template


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"selector": None}, "spec.selector: Required value"),
        ({"selector": {"matchLabels": {"app": "no"}}}, "`selector` does not match template `labels`"),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1"),
        (
            {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}},
            "spec.template.spec.containers: Required value",
        ),
        (
            {"template": template() | {"spec": template()["spec"] | {"restartPolicy": "Never"}}},
            "spec.template.spec.restartPolicy",
        ),
    ],
    ids=["no-selector", "another-selector", "negative", "no-containers", "never-restarted"],
)
async def test_wrong_deployment_is_refused_by_its_field(cluster: Any, changed: Any, field: str) -> None:
    async with cluster() as c:
        answer = await c.http.post(f"{APPS}/deployments", json=deployment(**{"replicas": 2} | changed))
        assert answer.status_code == 422
        assert field in answer.json()["message"]


@pytest.mark.anyio
async def test_selector_of_a_deployment_cannot_change(cluster: Any) -> None:
    async with cluster() as c:
        created = await made(c, deployment(2))
        created["spec"]["selector"] = {"matchLabels": {"app": "web", "more": "x"}}
        created["spec"]["template"]["metadata"]["labels"]["more"] = "x"
        answer = await c.http.put(f"{APPS}/deployments/web", json=created)
        assert answer.status_code == 422
        assert "field is immutable" in answer.json()["message"]
