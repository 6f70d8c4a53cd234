"""How the API server stand-in applies a pod's PriorityClass."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PODS = "/api/v1/namespaces/default/pods"


def pod(**spec: str) -> dict[str, object]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


@pytest.mark.parametrize(
    ("policy", "told"), [({}, "PreemptLowerPriority"), ({"preemptionPolicy": "Never"}, "Never")]
)
async def test_pod_has_the_priority_of_its_class(cluster, policy, told):
    async with cluster() as c:
        made = await c.http.post(CLASSES, json={"metadata": {"name": "high"}, "value": 1000, **policy})
        assert made.status_code == 201, made.text
        spec = (await c.http.post(PODS, json=pod(priorityClassName="high"))).json()["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (1000, told)


async def test_pod_of_a_class_that_is_not_there_is_refused(cluster):
    async with cluster() as c:
        answer = await c.http.post(PODS, json=pod(priorityClassName="high"))
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
        assert answer.json()["message"] == 'pods "p" is forbidden: no PriorityClass with name high was found'
