"""Pods with priorities, and the scheduler's questions about evicting them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from extender.world import World, interfaces, until

if TYPE_CHECKING:
    from collections.abc import Mapping


async def create(
    w: World,
    name: str,
    *rates: int,
    priority: int = 0,
    vfs: int | None = None,
    labels: dict[str, str] | None = None,
    namespace: str = "default",
    devices: Mapping[str, int] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Create a pod that asks for these interfaces, and for as many counted VFs, or these devices."""
    meta: dict[str, Any] = {"name": name, "labels": labels or {"name": name}}
    if rates:
        meta["annotations"] = {"rdma_interfaces_required": interfaces(*rates)}
    asked = devices or {"k8s-rdma.io/vf": len(rates) if vfs is None else vfs}
    counted = {resource: str(number) for resource, number in asked.items()}
    container = {"name": "c", "image": "lab.local/busybox:1", "resources": {"limits": counted}}
    pod = {
        "metadata": meta,
        "spec": {
            "containers": [container],
            "priority": priority,
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }
    created = await w.http.post(f"/api/v1/namespaces/{namespace}/pods", json=pod)
    assert created.status_code == 201, created.text
    w.pods[name] = created.json()
    return w.pods[name]


async def place(w: World, name: str, node: str, *rates: int, **more: Any) -> None:
    """Create a pod and bind it."""
    await create(w, name, *rates, **more)
    assert await w.fitting(name, node) == [node]
    assert await w.bind(name, node) == ""


def uid(w: World, name: str) -> str:
    return w.pods[name]["metadata"]["uid"]


async def preempt(w: World, name: str, whole: bool = False, **nodes: list[str]) -> dict[str, list[str]]:
    """The names of the victims by node, of those that these were given for."""
    return {node: names for node, (names, _) in (await counted(w, name, whole=whole, **nodes)).items()}


async def counted(
    w: World, name: str, whole: bool = False, violations: int = 0, **nodes: list[str]
) -> dict[str, tuple[list[str], int]]:
    """As `preempt`, with the number of violated budgets."""
    await until(lambda: w.extender.preempting.budgets.synced)
    return await asked(w, name, whole=whole, violations=violations, **nodes)


async def asked(
    w: World, name: str, whole: bool = False, violations: int = 0, **nodes: list[str]
) -> dict[str, tuple[list[str], int]]:
    """As `counted`, whether disruption budgets are known or not."""
    full = {
        node: {"Pods": [await w.read_pod(each) for each in names], "NumPDBViolations": violations}
        for node, names in nodes.items()
        if whole
    }
    meta = {
        node: {"Pods": [{"UID": uid(w, each)} for each in names], "NumPDBViolations": violations}
        for node, names in nodes.items()
    }
    args = {
        "Pod": w.pods[name],
        "NodeNameToVictims": full if whole else None,
        "NodeNameToMetaVictims": None if whole else meta,
    }
    reply = json.loads(await w.extender.preempt(json.dumps(args).encode()))
    assert list(reply) == ["NodeNameToMetaVictims"]
    names_by_uid = {pod["metadata"]["uid"]: each for each, pod in w.pods.items()}
    return {
        node: ([names_by_uid[pod["UID"]] for pod in each["Pods"]], each["NumPDBViolations"])
        for node, each in reply["NodeNameToMetaVictims"].items()
    }


async def nominate(w: World, name: str, node: str | None) -> None:
    """Write the pod's status as kube-scheduler does."""
    await w.patch_pod(name, {"status": {"nominatedNodeName": node}}, "/status")
    w.pods[name] = await w.read_pod(name)
