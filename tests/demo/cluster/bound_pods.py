"""Pods by lightkube and by plain HTTP, and their bindings."""

from __future__ import annotations

from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from demo.cluster.api_paths import PODS_URL

MERGE = {"Content-Type": "application/merge-patch+json"}


def binding(node: str = "node-1", **meta: object) -> dict:
    return {"metadata": {"name": "p1", **meta}, "target": {"kind": "Node", "name": node}}


async def bound_pod(c, make_pod, **spec):
    created = await c.http.post(PODS_URL, json=make_pod(**spec))
    assert created.status_code == 201, created.text
    assert (await c.http.post(f"{PODS_URL}/p1/binding", json=binding())).status_code == 201
    return created.json()


def lightkube_pod(name: str = "p1", **meta: object) -> Pod:
    container = Container(name="c", image="lab.local/busybox:1")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", **meta), spec=PodSpec(containers=[container])
    )
