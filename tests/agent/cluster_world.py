"""The agent's cluster beside an API server that can be made to fail, and time that passes on command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx2

from factories import PF0 as PF
from k8s_rdma.agent.cluster.api_cluster import ApiCluster, ClusterTerms
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.informer import Time
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from k8s_rdma_demo.cluster.api import Api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import EVENTS, PODS
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.store import Store
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 120
HISTORY = 50
KEY = PlacementKeys.shared(b"a key")
NODE = NodeName("w1")
URL = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}

Fault = Callable[[Request], Response | None]


def placed(rate: int, generation: int = 0) -> Placement:
    interfaces = (PlacedInterface(pf=PF, min_tx_rate_mbps=rate),)
    return Placement(node=NODE, interfaces=interfaces, generation=generation)


@dataclass
class Clock:
    """Seconds that passed because a test said so; a pause lasts until others had a turn.

    goes_on: cleared, it holds up pauses of a second and more.
    """

    seconds: float = 1000.0
    paused: list[float] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    def time(self) -> Time:
        return Time(monotonic=lambda: self.seconds, now=self.now, pause=self.pause)

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        await asyncio.sleep(0)
        if seconds >= 1:
            await self.goes_on.wait()


@dataclass
class World:
    """The surroundings of a test.

    fault: asked for every request; its answer, if it has one, is the server's.
    """

    cluster: ApiCluster
    store: Store
    http: httpx2.AsyncClient
    clock: Clock
    fault: Fault | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def run_pod(
        self,
        name: str = "p",
        *,
        node: str = NODE,
        phase: str = "Pending",
        claims: list[dict[str, str]] | None = None,
        **meta: Any,
    ) -> Pod:
        """A pod bound to the node; the pod as the runtime would tell it."""
        containers = [{"name": "c", "image": "lab.local/busybox:1"}]
        spec = {"containers": containers, "nodeName": node, "resourceClaims": claims or []}
        made = await self.http.post(URL, json={"metadata": {"name": name, **meta}, "spec": spec})
        assert made.status_code == 201, made.text
        if phase != "Pending":
            await self.patch(f"{URL}/{name}/status", {"status": {"phase": phase}})
        return Pod(namespace="default", name=name, uid=PodUid(made.json()["metadata"]["uid"]))

    async def bind(self, pod: Pod, *, rate: int, generation: int = 0) -> Placement:
        """Create a Binding as an extender without a key does."""
        placement = placed(rate, generation)
        annotations = {PLACEMENT_ANNOTATION: encode(placement, pod.uid, None)}
        binding = {"metadata": {"name": pod.name, "annotations": annotations}, "target": {"name": NODE}}
        bound = await self.http.post(f"{URL}/{pod.name}/binding", json=binding)
        assert bound.status_code == 201, bound.text
        return placement

    async def promise(
        self, pod: Pod, *, key: PlacementKeys | None = KEY, rate: int = 100, generation: int = 0
    ) -> Placement:
        placement = placed(rate, generation)
        await self.annotate(pod, {PLACEMENT_ANNOTATION: encode(placement, pod.uid, key)})
        return placement

    async def annotate(self, pod: Pod, annotations: dict[str, str | None]) -> None:
        await self.patch(f"{URL}/{pod.name}", {"metadata": {"annotations": annotations}})

    async def patch(self, path: str, patch: dict[str, Any]) -> None:
        patched = await self.http.patch(path, json=patch, headers=MERGE)
        assert patched.status_code == 200, patched.text

    async def delete(self, pod: Pod) -> None:
        gone = await self.http.request("DELETE", f"{URL}/{pod.name}", json={"gracePeriodSeconds": 0})
        assert gone.status_code == 200, gone.text

    def pod(self, name: str = "p") -> dict[str, Any]:
        """The object; empty when it is gone."""
        return self.store.get(PODS, ("default", name)) or {}

    def events(self) -> list[dict[str, Any]]:
        return self.store.items(EVENTS, "default")

    def asked(self, method: str, ending: str) -> int:
        """How many requests there were of that kind."""
        return sum(1 for sent, path in self.requests if sent == method and path.endswith(ending))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Give others their turns until it holds."""
        while not holds():  # noqa: ASYNC110  it is others' requests that make it hold
            await asyncio.sleep(0.001)

    def outrun_watches(self) -> None:
        """Write more at once than the server remembers: every watch ends with 410."""
        for number in range(HISTORY + 1):
            self.store.put(EVENTS, {"metadata": {"namespace": "other", "name": "e"}, "count": number})

    async def settled(self) -> None:
        """Wait until pending events are written, because an event that is reported after them is."""
        marker = await self.run_pod(f"marker-{len(self.requests)}")
        self.cluster.placed_anew(marker, "marker")
        await self.until(lambda: any(each["involvedObject"]["uid"] == marker.uid for each in self.events()))


@asynccontextmanager
async def world(
    directory: Path, *, key: PlacementKeys | None = KEY, stuck_after_s: float | None = None
) -> AsyncIterator[World]:
    """It runs until the block ends; everything in it must be over within `DEADLINE_S`."""
    store, clock = Store(history_limit=HISTORY), Clock()
    api = Api(Registry(store=store))

    async def handle(request: Request) -> Response | Stream:
        made.requests.append((request.method, request.path))
        return (made.fault and made.fault(request)) or await api.handle(request)

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
    async with asyncio.timeout(DEADLINE_S), serving(service, "127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}"
        client = connect(str(write_kubeconfig(directory / "kubeconfig", url)))
        cluster = ApiCluster(
            client, ClusterTerms(node=NODE, keys=FixedKeys(key), stuck_after_s=stuck_after_s), clock.time()
        )
        async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=NO_TLS) as http:
            made = World(cluster, store, http, clock)
            running = asyncio.create_task(cluster.run())
            try:
                yield made
            finally:
                running.cancel()
                await asyncio.wait([running])


def refusal(status: int, message: str = "no") -> Response:
    document = {"kind": "Status", "status": "Failure", "message": message, "reason": "x", "code": status}
    return Response(status=status, body=json.dumps(document).encode())
