"""Requests of pods, configurations, results, and a cluster that knows pods and remembers reports."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from k8s_rdma.agent.cluster.api_cluster import CapsRequests, Consumers
    from k8s_rdma.core.ledger import Pod, Receipt
    from k8s_rdma.errors import K8sRdmaError


POD = PodUid("uid-p")


def conf(version: str, **keys: object) -> dict[str, object]:
    return {"cniVersion": version, "name": "net", "type": "k8s-rdma-cni", **keys}


def ordinary(version: str, sandbox: str = "/run/netns/x") -> dict[str, Any]:
    """The result of the plugin that gives a pod its `eth0`."""
    family = {"version": "4"} if version in ("0.3.0", "0.3.1", "0.4.0") else {}
    return {
        "cniVersion": version,
        "interfaces": [{"name": "cni0"}, {"name": "eth0", "mac": "0a:00:00:00:00:99", "sandbox": sandbox}],
        "ips": [{**family, "interface": 1, "address": "10.244.0.7/24", "gateway": "10.244.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {},
    }


def told(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the addresses of each interface in a result, by its name."""
    names = [each["name"] for each in result["interfaces"]]
    found: dict[str, list[str]] = {name: [] for name in names}
    for ip in result.get("ips", ()):
        found[names[ip["interface"]]].append(ip["address"])
    return found


def requests(*interfaces: dict[str, object]) -> dict[str, str]:
    return {"rdma_interfaces_required": json.dumps(interfaces)}


def placed_by_the_extender(*interfaces: PlacedInterface) -> dict[str, str]:
    placement = Placement(node=NodeName("w1"), interfaces=interfaces)
    return {PLACEMENT_ANNOTATION: encode(placement, PodUid("uid-p"), None)}


class KnowingCluster:
    """The API server's part of `agent.cluster`, with these annotations; it remembers all reports."""

    def __init__(self, annotations: dict[str, str]) -> None:
        self._annotations = annotations
        self.asked: list[Pod] = []
        self.given: list[Receipt] = []
        self.moved: list[str] = []
        self.ignored: list[str] = []
        self.errors: list[K8sRdmaError] = []
        self.caps: list[tuple[str, bool]] = []
        self.rates: list[tuple[str, bool]] = []
        self.decided: list[tuple[PodUid, str]] = []

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        self.asked.append(pod)
        return self._annotations

    async def identified(self, pod: Pod) -> Pod:
        return pod

    def placements(self) -> Mapping[PodUid, Placement]:
        return {}

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        raise NotImplementedError

    async def wait_listed(self) -> None:
        pass

    def lasting_pods(self) -> Set[PodUid]:
        return frozenset()

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:
        raise NotImplementedError

    async def wait_for_caps(self, previous: CapsRequests | None) -> CapsRequests:
        raise NotImplementedError

    def caps_decided(self, pod: Pod, status: str) -> None:
        self.decided.append((pod.uid, status))

    def attached(self, receipt: Receipt, results: object) -> None:
        self.given.append(receipt)

    def annotation_ignored(self, pod: Pod, why: str) -> None:
        self.ignored.append(why)

    def placed_anew(self, pod: Pod, why: str) -> None:
        self.moved.append(why)

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        self.errors.append(error)

    def cap_altered(self, pod: Pod, what: str, *, restored: bool) -> None:
        self.caps.append((what, restored))

    def rates_changed(self, pod: Pod, change: str, *, refused: bool) -> None:
        self.rates.append((change, refused))

    async def run(self) -> None: ...


class PlacingCluster(KnowingCluster):
    """A cluster whose extender places pods."""

    def __init__(self) -> None:
        super().__init__({})
        self.known: dict[PodUid, Placement] = {}
        self._change = asyncio.Event()

    def place(self, placement: Placement, uid: PodUid = POD) -> None:
        self.known = {**self.known, uid: placement}
        change, self._change = self._change, asyncio.Event()
        change.set()

    def placements(self) -> Mapping[PodUid, Placement]:
        return self.known

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        while self.known == previous:
            await self._change.wait()
        return self.known
