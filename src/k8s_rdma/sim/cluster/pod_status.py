"""What a kubelet reports of a pod that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.objects import metadata, spec_of, status_of, timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from k8s_rdma.sim.cluster.objects import JsonObject
    from k8s_rdma.sim.cluster.sandbox import Sandbox

_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def running_status(pod: JsonObject, sandbox: Sandbox | None, node_ip: str, now: datetime) -> JsonObject:
    """The status patch of a pod whose sandbox is up: running, ready, with its addresses.

    sandbox: None for a pod in the host's network, which has the node's address.
    """
    ips = sandbox.ips if sandbox is not None else [node_ip]
    moment = timestamp(now)
    former = [ip["ip"] for ip in status_of(pod).get("podIPs") or [] if ip["ip"] not in ips]
    return {
        "phase": "Running",
        "conditions": [_condition(kind, pod, moment) for kind in _CONDITIONS],
        "hostIP": node_ip,
        "hostIPs": [{"ip": node_ip}],
        "podIP": ips[0],
        # The list is merged by address: former ones have to be told away.
        "podIPs": [*({"ip": ip, "$patch": "delete"} for ip in former), *({"ip": ip} for ip in ips)],
        "startTime": status_of(pod).get("startTime") or moment,
        "containerStatuses": [_container(container, moment) for container in spec_of(pod)["containers"]],
    }


def _condition(kind: str, pod: JsonObject, moment: str) -> JsonObject:
    generation = metadata(pod).get("generation", 1)
    return {
        "type": kind,
        "observedGeneration": generation,
        "status": "True",
        "lastTransitionTime": moment,
        "reason": None,
        "message": None,
    }


def _container(container: JsonObject, moment: str) -> JsonObject:
    return {
        "name": container["name"],
        "state": {"running": {"startedAt": moment}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "started": True,
    }
