"""An agent's publishers beside an API server that can be made to fail."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.cluster_world import Fault
from agent.passing_time import PassingTime
from extender.node_server import Held, pf
from extender.node_server import report as make_report
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.cluster.publisher import Publishing
from k8s_rdma.config.agent import AgentConfig, PublishConfig
from k8s_rdma.core.placement import Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.kube.client import connect
from k8s_rdma_demo.cluster.api import Api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import BUILT_IN, LEASES, NODES, Target, parse_resource_type
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from k8s_rdma.wire.report import NodeReport, PfReport

DEADLINE_S = 120
RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
RESOURCE = "k8s-rdma.io/vf"


class Told:
    """`Reports` with values that a test sets."""

    def __init__(self) -> None:
        self._report = make_report("w1", generation=1)
        self._change = asyncio.Event()

    def tell(self, *pfs: PfReport, held: Held | None = None, **more: Any) -> None:
        """Another report."""
        generation = int(self._report.generation.partition(".")[2]) + 1
        made = make_report("w1", *(pfs or self._report.pfs), generation=generation, held=held)
        self._report = type(made)(**{name: getattr(made, name) for name in made.__struct_fields__} | more)
        change, self._change = self._change, asyncio.Event()
        change.set()

    def now(self) -> NodeReport:
        return self._report

    async def wait_for_change(self, known: NodeReport | None) -> NodeReport:
        while self._report is known:
            await self._change.wait()
        return self._report


class Promises(NoCluster):
    """`PodCluster` of which a test says which pods there are."""

    def __init__(self) -> None:
        self._placements: dict[PodUid, Placement] = {}
        self._change = asyncio.Event()

    def promise(self, *uids: str) -> None:
        """These pods have a placement here now."""
        placement = Placement(node=NodeName("w1"), interfaces=())
        self._placements = {PodUid(uid): placement for uid in uids}
        change, self._change = self._change, asyncio.Event()
        change.set()

    def placements(self) -> Mapping[PodUid, Placement]:
        return self._placements

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        while self._placements == previous:
            await self._change.wait()
        return self._placements


@dataclass
class World:
    """The surroundings of a test; fault: as in `agent.cluster_world`."""

    store: Store
    registry: Registry
    told: Told = field(default_factory=Told)
    promises: Promises = field(default_factory=Promises)
    time: PassingTime = field(default_factory=PassingTime)
    fault: Fault | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    answered: int = 0

    def make_node(self) -> None:
        self.registry.create(Target(resource=NODES), {"metadata": {"name": "w1"}})

    def patch_node(self, **capacity: str | None) -> None:
        """Write the capacity of our resource, as kubelet may."""
        target = Target(resource=NODES, name="w1", subresource="status")
        given = {RESOURCE: capacity["vfs"]} if capacity["vfs"] is not None else {}
        self.registry.patch(target, lambda old: {**old, "status": {"capacity": given}})

    def remove(self, resource: Any, namespace: str = "") -> None:
        self.store.remove(resource, (namespace, "w1"))

    @property
    def rdma_node(self) -> dict[str, Any] | None:
        return self.store.get(RDMA_NODES, ("", "w1"))

    @property
    def lease(self) -> dict[str, Any] | None:
        return self.store.get(LEASES, ("k8s-rdma", "w1"))

    @property
    def generation(self) -> str | None:
        return ((self.rdma_node or {}).get("status") or {}).get("generation")

    @property
    def renewed(self) -> str | None:
        """The generation that the Lease names."""
        return self.lease["spec"]["holderIdentity"] if self.lease else None

    @property
    def vfs(self) -> str | None:
        node = self.store.get(NODES, ("", "w1")) or {}
        return (node.get("status") or {}).get("capacity", {}).get(RESOURCE)

    def asked(self, method: str, ending: str) -> int:
        return sum(1 for sent, path in self.requests if sent == method and path.endswith(ending))

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  it is others' requests that make it hold
            await asyncio.sleep(0.001)


@asynccontextmanager
async def publishing(directory: Path, *, node: bool = True, **publish: Any) -> AsyncIterator[World]:
    """The publishers run until the block ends; everything in it must be over within `DEADLINE_S`."""
    store = Store()
    world = World(store, Registry(store=store))
    api = Api(world.registry, (*BUILT_IN, RDMA_NODES))
    world.time.progress = lambda: (world.answered, len(world.requests), store.revision)
    if node:
        world.make_node()

    async def handle(request: Request) -> Response | Stream:
        world.requests.append((request.method, request.path))
        try:
            return (world.fault and world.fault(request)) or await api.handle(request)
        finally:
            world.answered += 1

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
    config = AgentConfig(node="w1", in_cluster=True, publish=PublishConfig(**publish))
    async with asyncio.timeout(DEADLINE_S), serving(service, "127.0.0.1", 0) as port:
        kubeconfig = write_kubeconfig(directory / "kubeconfig", f"http://127.0.0.1:{port}")
        client = connect(str(kubeconfig))
        publisher = Publishing(config, client, world.told, world.time.time(), cluster=world.promises)
        running = asyncio.create_task(publisher.run())
        try:
            yield world
        finally:
            running.cancel()
            await asyncio.wait([running])
            await client.close()


def with_foreign(count: int) -> PfReport:
    """A PF of four VFs, so many of them somebody else's."""
    return pf(foreign=[0] * count)


def body(request: Request) -> dict[str, Any]:
    return json.loads(request.body)
