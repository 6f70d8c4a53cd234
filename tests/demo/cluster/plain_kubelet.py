"""A kubelet of plugins that the tests install, and pods of its node."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

from demo.cluster.api_paths import PODS_URL
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import KubeletConfig


def with_changes(config: KubeletConfig, **changes) -> KubeletConfig:
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return KubeletConfig(**(fields | changes))


@asynccontextmanager
async def kubelet(c, config, **changes):
    async with running_kubelet(c.api.url, with_changes(config, **changes)) as running:
        yield running


def running(pod: dict) -> bool:
    return pod.get("status", {}).get("phase") == "Running"


async def event(c, reason: str) -> str:
    """The message of the first event for that reason, once there is one."""
    params = {"watch": "1", "fieldSelector": f"reason={reason}"}
    async with c.http.stream("GET", "/api/v1/events", params=params, timeout=None) as answer:
        return json.loads(await anext(answer.aiter_lines()))["object"]["message"]


async def delete(c, grace_s: int | None = None) -> None:
    options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json=options)
    assert answer.is_success


def on_node(make_pod, name: str = "p1", **spec) -> dict:
    return make_pod(name, nodeName="node-1", **spec)


def has_address(address: str):
    return lambda pod: pod["status"].get("podIP") == address
