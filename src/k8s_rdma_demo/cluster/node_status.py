"""The node object: registered once, ready while the network plugins report success.

containerd calls STATUS of the plugins about every 5 s.

Source: `pkg/kubelet/kubelet_node_status.go`, `nodestatus/setters.go`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma_demo.cluster.client import ApiError
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.objects import JsonObject, condition_of, status_of, timestamp
from k8s_rdma_demo.cluster.resources import NODES

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.node_devices import NodeDevices, NodeServices
    from k8s_rdma_demo.kubelet.device_manager import DeviceManager

_CONFLICT = 409
_NOT_FOUND = 404
_RETRY_S = 1.0
_CAPACITY = {"cpu": "16", "memory": "65806876Ki", "pods": "110"}
_log = structlog.get_logger()


async def register_node(services: NodeServices) -> None:
    """Have the Node object there and its address known; an API server that does not answer is waited for."""
    while True:
        try:
            node = await _registered(services)
        except ApiError as error:
            _log.warning("node.not_registered", node=services.config.node, error=error.message)
            await asyncio.sleep(_RETRY_S)
            continue
        services.node_ip = services.config.node_ip or _internal_ip(node) or services.node_ip
        return


async def watch_network(services: NodeServices, group: asyncio.TaskGroup) -> None:
    """Ask the plugins now, report, and go on asking in the background."""
    await _check_runtime(services)
    await _report(services)
    group.create_task(_poll_runtime(services))


async def watch_devices(services: NodeServices, manager: DeviceManager) -> NoReturn:
    """Report at every change of how many devices there are."""
    while True:
        reported = manager.capacity()
        await _report(services)
        await manager.wait_for(lambda: manager.capacity() != reported)  # noqa: B023


async def _poll_runtime(services: NodeServices) -> NoReturn:
    while True:
        await asyncio.sleep(services.config.status_interval_s)
        await _check_runtime(services)
        await _report(services)


async def _check_runtime(services: NodeServices) -> None:
    try:
        await services.runtime.status()
    except CniError as error:
        why = f"Network plugin returns error: {error}"
        services.network_error = f"NetworkReady=false reason:NetworkPluginNotReady message:{why}"
    else:
        services.network_error = ""


async def _report(services: NodeServices) -> None:
    """Write the Ready condition and what is allocatable where they are not what they should be."""
    key = ("", services.config.node)
    try:
        node = await services.client.get(NODES, key)
        desired = _ready(services)
        reported = condition_of(node, "Ready") or {}
        patch: JsonObject = {}
        if (reported.get("status"), reported.get("message")) != (desired["status"], desired["message"]):
            patch["conditions"] = [desired]
        patch |= _resource_changes(node, services.devices)
        if patch:
            await services.client.patch_status(NODES, key, patch)
    except ApiError as error:
        _log.warning("node.not_reported", node=services.config.node, error=error.message)


async def _registered(services: NodeServices) -> JsonObject:
    key = ("", services.config.node)
    try:
        return await services.client.get(NODES, key)
    except ApiError as error:
        if error.code != _NOT_FOUND or not services.config.register:
            raise
    try:
        return await services.client.create(NODES, _node(services))
    except ApiError as error:
        if error.code != _CONFLICT:
            raise
    return await services.client.get(NODES, key)


def _node(services: NodeServices) -> JsonObject:
    name = services.config.node
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "conditions": [_ready(services)],
            "addresses": [
                {"type": "InternalIP", "address": services.config.node_ip or services.node_ip},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def _resource_changes(node: JsonObject, devices: NodeDevices | None) -> JsonObject:
    """Return the changes that make all capacity allocatable, and remove what left the capacity.

    Of plugins' resources the devices are the capacity, the healthy ones of them allocatable.
    Source: `nodestatus.MachineInfo`. Nothing is reserved for the system.
    """
    status = status_of(node)
    reported_capacity, reported_allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    of_plugins, healthy = devices.status() if devices is not None else ({}, {})
    capacity = reported_capacity | of_plugins
    allocatable = capacity | healthy
    removed = dict.fromkeys(name for name in reported_allocatable if name not in capacity)
    changes = {
        "capacity": _differing(capacity, reported_capacity),
        "allocatable": _differing(allocatable, reported_allocatable) | removed,
    }
    return {name: changed for name, changed in changes.items() if changed}


def _differing(desired: JsonObject, found: JsonObject) -> JsonObject:
    return {name: value for name, value in desired.items() if found.get(name) != value}


def _ready(services: NodeServices) -> JsonObject:
    now = timestamp(services.config.clock())
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    if services.network_error:
        message = f"container runtime network not ready: {services.network_error}"
        return {"type": "Ready", "status": "False", **times, "reason": "KubeletNotReady", "message": message}
    message = "kubelet is posting ready status"
    return {"type": "Ready", "status": "True", **times, "reason": "KubeletReady", "message": message}


def _internal_ip(node: JsonObject) -> str:
    addresses = status_of(node).get("addresses") or []
    return next((a["address"] for a in addresses if a["type"] == "InternalIP"), "")
