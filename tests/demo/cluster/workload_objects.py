"""Deployments, ReplicaSets and pods as the API server has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demo.cluster.conftest import Cluster


def template(image: str = "a:1", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }


def replica_set(name: str, replicas: int, available: int | None = None, **meta: Any) -> dict[str, Any]:
    counted = replicas if available is None else available
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(),
        },
        "status": {"replicas": replicas, "readyReplicas": counted, "availableReplicas": counted},
    }


def names(objects: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def deployment(replicas: int = 3, *, image: str = "a:1", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image),
            **spec,
        },
    }


APPS = "/apis/apps/v1/namespaces/default"


async def made(c: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    plural = f"{document['kind'].lower()}s"
    answer = await c.http.post(f"{APPS}/{plural}", json=document)
    assert answer.status_code == 201, answer.text
    return answer.json()
