"""An extender among real sockets: an API server stand-in, nodes, and a scheduler's requests."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2

from extender.faulty_api import FaultyApi
from extender.node_server import NodeServer, node_servers
from extender.published import RDMA_NODES
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.extender.extender import BinderIdentity, Extender, boottime_s
from k8s_rdma.kube.client import Client
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.objects import ResourceType, parse_resource_type
from k8s_rdma_demo.plain_http import NO_TLS
from lightkube_client import lightkube_client
from policies import EVERYTHING_FILE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from k8s_rdma.kube.leader_election import LeaderElector

DEADLINE_S = 120
COSCHEDULING_GROUPS = parse_resource_type("scheduling.x-k8s.io/v1alpha1/podgroups/PodGroup/namespaced")
MERGE = {"Content-Type": "application/merge-patch+json"}
QUICK = {
    "source": "http",
    "poll_s": 0.02,
    "requeue_s": 0.02,
    "max_age_s": 1e-9,
    "stale_s": 3600.0,
    "node_timeout_s": 5.0,
    "node_watches": 0,
    "policy_file": EVERYTHING_FILE,
}
"""No state is too young to be asked for again, so that a test sees its own last change; no node is
asked without need. Pods may ask for everything."""


def pod_groups(version: str) -> ResourceType:
    """Return the kind PodGroup of Kubernetes in a version."""
    return parse_resource_type(f"scheduling.k8s.io/{version}/podgroups/PodGroup/namespaced")


def interfaces(*rates: int) -> str:
    """The request annotation for interfaces with these reservations, Mb/s."""
    return json.dumps([{"min_tx_rate": rate} for rate in rates])


@dataclass(slots=True)
class World:
    """The arrangements of a test, and its requests to the extender."""

    api: FaultyApi
    server: RunningApi
    http: httpx2.AsyncClient
    nodes: dict[str, NodeServer]
    port: int
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    extender: Extender = field(init=False)

    async def create_node(self, name: str, *addresses: str) -> None:
        listed = [{"type": "InternalIP", "address": address} for address in addresses]
        node = {"metadata": {"name": name}, "status": {"addresses": listed}}
        assert (await self.http.post("/api/v1/nodes", json=node)).status_code == 201

    async def create_pod(
        self,
        name: str,
        *rates: int,
        annotation: str | None = None,
        policy: str | None = None,
        topology: str | None = None,
        devices: Mapping[str, int] | None = None,
        gang: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create a pod that asks for interfaces with these rates, or has this request annotation.

        devices: of a device plugin's resources, all for its one container. gang: of which PodGroup it is.
        """
        meta: dict[str, Any] = {"name": name, "labels": dict(labels or {})}
        if annotations:
            meta["annotations"] = dict(annotations)
        if rates or annotation is not None:
            meta["annotations"] = {"rdma_interfaces_required": annotation or interfaces(*rates)}
        if policy is not None:
            meta.setdefault("annotations", {})["k8s-rdma.io/policy"] = policy
        if topology is not None:
            meta.setdefault("annotations", {})["k8s-rdma.io/topology"] = topology
        amounts = {resource: str(number) for resource, number in (devices or {}).items()}
        resources = {"limits": amounts, "requests": amounts} if amounts else {}
        container = {"name": "c", "image": "lab.local/busybox:1", "resources": resources}
        pod: dict[str, Any] = {"metadata": meta, "spec": {"containers": [container]}}
        if gang is not None:
            pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
        created = await self.http.post("/api/v1/namespaces/default/pods", json=pod)
        assert created.status_code == 201, created.text
        self.pods[name] = created.json()
        return self.pods[name]

    async def create_pod_group(self, name: str, count: int, version: str = "v1alpha2", **spec: Any) -> None:
        """Of Kubernetes' own API, a gang of so many; 0 is the policy of a group that is no gang."""
        policy = {"gang": {"minCount": count}} if count else {"basic": {}}
        group = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy, **spec}}
        await self._create(pod_groups(version), group)

    async def scale_pod_group(self, name: str, count: int) -> None:
        """Change the number of pods that a gang needs."""
        path = pod_groups("v1alpha2").path(namespace="default", name=name)
        patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": count}}}}
        assert (await self.http.patch(path, json=patch, headers=MERGE)).status_code == 200

    async def create_coscheduling_group(self, name: str, count: int) -> None:
        """Of the plug-in Coscheduling."""
        await self._create(COSCHEDULING_GROUPS, {"metadata": {"name": name}, "spec": {"minMember": count}})

    async def _create(self, kind: ResourceType, item: dict[str, Any]) -> None:
        created = await self.http.post(kind.path(namespace="default"), json=item)
        assert created.status_code == 201, created.text

    async def read_pod(self, name: str) -> dict[str, Any]:
        return (await self.http.get(f"/api/v1/namespaces/default/pods/{name}")).json()

    async def node_of(self, name: str) -> str | None:
        return (await self.read_pod(name))["spec"].get("nodeName")

    async def patch_pod(self, name: str, patch: dict[str, Any], sub: str = "") -> None:
        url = f"/api/v1/namespaces/default/pods/{name}{sub}"
        assert (await self.http.patch(url, json=patch, headers=MERGE)).status_code == 200

    async def finish_pod(self, name: str) -> None:
        await self.patch_pod(name, {"status": {"phase": "Succeeded"}}, "/status")

    async def delete_pod(self, name: str) -> None:
        url = f"/api/v1/namespaces/default/pods/{name}"
        assert (await self.http.delete(url, params={"gracePeriodSeconds": 0})).status_code == 200

    async def bind_by_hand(self, name: str, node: str, **annotations: str) -> None:
        meta = {"name": name, "annotations": {k.replace("_", "/"): v for k, v in annotations.items()}}
        url = f"/api/v1/namespaces/default/pods/{name}/binding"
        bound = await self.http.post(url, json={"metadata": meta, "target": {"kind": "Node", "name": node}})
        assert bound.status_code == 201, bound.text

    def args(self, name: str, *nodes: str) -> bytes:
        """The body of filter and prioritize, names only."""
        return json.dumps(
            {"Pod": self.pods[name], "Nodes": None, "NodeNames": list(nodes or self.nodes)}
        ).encode()

    async def filter(self, name: str, *nodes: str) -> dict[str, Any]:
        return json.loads(await self.extender.filter(self.args(name, *nodes)))

    async def fitting(self, name: str, *nodes: str) -> list[str]:
        return (await self.filter(name, *nodes))["NodeNames"]

    async def prioritize(self, name: str, *nodes: str) -> dict[str, int]:
        scores = json.loads(await self.extender.prioritize(self.args(name, *nodes)))
        return {entry["Host"]: entry["Score"] for entry in scores}

    async def bind(self, name: str, node: str) -> str:
        """Bind; the error's text."""
        return json.loads(await self.extender.bind(self.bind_args(name, node)))["Error"]

    def bind_args(self, name: str, node: str) -> bytes:
        """The body of bind."""
        meta = self.pods[name]["metadata"]
        args = {"PodName": name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        return json.dumps(args).encode()

    def metric(self, name: str) -> float:
        lines = self.extender.metrics.render().splitlines()
        return float(next(line for line in lines if line.startswith(f"k8s_rdma_extender_{name} ")).split()[1])

    def expect(self, **metrics: float) -> Callable[[], bool]:
        return lambda: all(self.metric(name) == value for name, value in metrics.items())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the world's deadline ends a wait in vain."""
    while not condition():  # noqa: ASYNC110  it has no event for tests
        await asyncio.sleep(0.002)


@asynccontextmanager
async def cluster(*names: str, group_versions: tuple[str, ...] = ("v1alpha2",)) -> AsyncIterator[World]:
    """API server and nodes, without an extender. group_versions: of PodGroups, that are served."""
    groups = map(pod_groups, group_versions)
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(ApiConfig(custom_resources=(RDMA_NODES, *groups, COSCHEDULING_GROUPS))) as server,
        node_servers(*names) as (port, nodes),
        httpx2.AsyncClient(base_url=server.url, trust_env=False, verify=NO_TLS) as http,
        lightkube_client(server.url) as client,
    ):
        real = Client(client, silence_s=DEADLINE_S)
        made = World(api=FaultyApi(real), server=server, http=http, nodes=nodes, port=port)
        for node in nodes.values():
            await made.create_node(node.name, node.address)
        yield made


@asynccontextmanager
async def extending(
    world: World,
    key: PlacementKeys | None = None,
    lease: LeaderElector | None = None,
    clock: Callable[[], float] = boottime_s,
    **settings: Any,
) -> AsyncIterator[World]:
    """An extender for the cluster, ready."""
    config = ExtenderConfig(node_port=world.port, **{**QUICK, **settings})
    identity = BinderIdentity(keys=FixedKeys(key), lease=lease)
    world.extender = Extender(config, world.api, identity, clock=clock)
    async with world.extender.running():
        await until(lambda: not world.extender.missing() or lease or not world.api.watching.is_set())
        yield world


@asynccontextmanager
async def world(
    *names: str,
    key: PlacementKeys | None = None,
    group_versions: tuple[str, ...] = ("v1alpha2",),
    **settings: Any,
) -> AsyncIterator[World]:
    """A cluster of these nodes with an extender. group_versions: as in `cluster`."""
    async with cluster(*names, group_versions=group_versions) as made, extending(made, key, **settings):
        yield made
