"""Nodes as a scenario plays them: a Node object, a server of its state, and the kubelet that starts pods."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from extender.node_server import NodeServer
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.report import Allocation, Enforced, Interface, NodeReport, ReportedPod

if TYPE_CHECKING:
    from cluster.control_plane import Json

CAPACITY = {"cpu": "16", "memory": "64Gi", "pods": "110"}


def node_object(name: str, address: str, resources: dict[str, str]) -> Json:
    """A ready Node."""
    have = {**CAPACITY, **resources}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": have,
            "allocatable": have,
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@dataclass
class Node:
    """One node.

    keeps: UIDs of pods whose interfaces do not come home at once when the pod is gone. lingering: UIDs of
    pods that make use of their grace period.
    """

    server: NodeServer
    held: dict[str, Allocation] = field(default_factory=dict)
    keeps: set[str] = field(default_factory=set)
    lingering: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> NodeReport:
        """The report, as the agent's publisher asks for it."""
        return self.server.report

    async def wait_for_change(self, known: NodeReport | None) -> NodeReport:
        """As soon as it is another one."""
        while self.server.report is known:
            await self.changed.wait()
        return self.server.report

    def start(self, pod: Json) -> None:
        """Carry out a bound pod's placement, or a later generation of it, and report it."""
        uid = pod["metadata"]["uid"]
        text = pod["metadata"].get("annotations", {}).get(PLACEMENT_ANNOTATION)
        document = json.loads(text) if text is not None else {}
        held = self.held.get(uid)
        if document and (held is None or document.get("generation", 0) > held.generation):
            devices = [
                document["pools"][each["pool"]]["resource"]
                for each in document["interfaces"]
                if "pool" in each
            ]
            chosen = iter(self._choose(devices))
            placed = [{**each, **next(chosen)} if "pool" in each else each for each in document["interfaces"]]
            self.held[uid] = _allocation(pod, placed, document.get("generation", 0))
            self._report()

    def _choose(self, devices: list[str]) -> list[Json]:
        """As unluckily for bandwidth as kubelet may: as many as there are of one PF, then of the next."""
        free = {(pf.pci, name): number for pf in self.server.report.pfs for name, number in pf.pools.items()}
        for each in (each for held in self.held.values() for each in held.interfaces if each.pool):
            free[each.pf, each.pool] -= 1
        chosen: list[Json] = []
        for resource in devices:
            pf = max((pf for pf, name in free if name == resource), key=lambda pf: bool(free[pf, resource]))
            free[pf, resource] -= 1
            chosen.append({"pf": pf, "pool": resource})
        return chosen

    def release(self, uid: str) -> None:
        """Bring home the devices of a pod, and report it."""
        self.keeps.discard(uid)
        self.lingering.discard(uid)
        if self.held.pop(uid, None) is not None:
            self._report()

    def reserved(self) -> dict[str, int]:
        """Mb/s by PF."""
        sums: dict[str, int] = {}
        for allocation in self.held.values():
            for each in allocation.interfaces:
                sums[each.pf] = sums.get(each.pf, 0) + each.min_tx_rate
        return sums

    def _report(self) -> None:
        epoch, _, number = self.server.report.generation.partition(".")
        self.server.report = msgspec.structs.replace(
            self.server.report,
            generation=f"{epoch}.{int(number) + 1}",
            allocations=tuple(self.held.values()),
        )
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def _allocation(pod: Json, placed: list[Json], generation: int) -> Allocation:
    meta = pod["metadata"]
    interfaces = tuple(
        Interface(
            pf=each["pf"],
            vf=index,
            ifname=f"rdma{index}",
            mac="",
            min_tx_rate=each.get("min_tx_rate", 0),
            max_tx_rate=each.get("max_tx_rate", 0),
            set_min_tx_rate=each.get("min_tx_rate", 0),
            set_max_tx_rate=each.get("max_tx_rate", 0),
            enforced=Enforced(min=None, max=None),
            entry=index,
            pool=each.get("pool", ""),
        )
        for index, each in enumerate(placed)
    )
    return Allocation(
        pod=ReportedPod(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"]),
        container_id=f"c-{meta['uid']}",
        phase="attached",
        interfaces=interfaces,
        generation=generation,
    )
