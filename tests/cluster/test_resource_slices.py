"""A node's ResourceSlices in the API server, which has rules of its own for writes."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import msgspec
import pytest

from cluster.control_plane import Json, write_kubeconfig
from cluster.real import EMULATED, obstacle, real
from cluster.relay import Relay, relaying
from cluster.standin import stand_in
from deviceplugin.conftest import world
from deviceplugin.offered_pf import offer
from deviceplugin.test_claims_process import node_beside
from k8s_rdma.core.types import NodeName
from k8s_rdma.deviceplugin.resource_slices import TOUCHED, SlicePublisher
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.resource_slice import slice_specs
from k8s_rdma_demo.cluster.resource_slices import CONSUMABLE_CAPACITY, TAINTS
from k8s_rdma_demo.kubelet.device_manager import in_background
from process_status import processor_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from deviceplugin.plugin_process import World
    from k8s_rdma.wire.claims import PfOffer

__all__ = ["world"]

pytestmark = pytest.mark.anyio

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODE = NodeName("w1")
KUBECONFIG = "publisher.kubeconfig"
SINCE = (1, 36)
DEADLINE_S = 60
OTHERS = 1_000
CHANGE_S, REST_S = 50e-6, 3.0
"""Less than it takes to decode one event; for how long the process is measured at rest."""


@dataclass
class Published:
    """A publisher beside an API server."""

    publisher: SlicePublisher
    client: Client
    http: httpx2.AsyncClient

    def offer(self, *pfs: PfOffer, agent_away: bool = False) -> None:
        self.publisher.offer(Offers(node=NODE, pfs=pfs), agent_away=agent_away)

    async def specs(self) -> list[Json]:
        return [each["spec"] for each in (await self.http.get(SLICES)).json()["items"]]

    async def devices(self) -> dict[str, Json]:
        return {device["name"]: device for spec in await self.specs() for device in spec["devices"]}

    async def names(self) -> set[str]:
        return set(await self.devices())

    async def until(self, holds: Callable[[], Awaitable[object]]) -> None:
        while not await holds():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.05)

    async def until_published(self, *names: str) -> dict[str, Json]:
        async def there() -> bool:
            return await self.names() == set(names) and not self.publisher.problem

        await self.until(there)
        return await self.devices()

    async def put_back(self, *names: str) -> None:
        """Have kubelet start, and wait until its deletion is undone; no other object was written then."""
        selector = f"spec.nodeName={NODE},spec.driver={DRIVER}"
        answer = await self.http.delete(SLICES, params={"fieldSelector": selector})
        assert answer.status_code == 200, answer.text
        await self.until_published(*names)


@asynccontextmanager
async def publishing(
    kind: str, directory: Path, *gates_off: str, emulated: str = ""
) -> AsyncIterator[Published]:
    if kind == "real":
        opened = real(directory, tuple(f"{gate}=false" for gate in gates_off), emulated=emulated)
    else:
        opened = stand_in(directory, frozenset(gates_off))
    async with asyncio.timeout(DEADLINE_S), opened as plane:
        if plane.release < SINCE:
            pytest.skip(f"Kubernetes {plane.release}: capacities are shared from {SINCE} on")
        kubeconfig = write_kubeconfig(directory / KUBECONFIG, plane, plane.admin_token)
        client = connect(str(kubeconfig))
        http = client._client._client._client  # with the same credentials
        made = await http.post("/api/v1/nodes", json={"metadata": {"name": NODE}})
        assert made.status_code == 201, made.text
        publisher = SlicePublisher(client, NODE)
        try:
            async with in_background(publisher.run()):
                yield Published(publisher, client, http)
        finally:
            await client.close()


async def test_fields_that_the_api_server_adds_and_rewrites_are_not_written_again(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        p.offer(offer(), offer("f1", link_up=False, vfs=2_000))
        devices = await p.until_published("f0", "f1")
        assert devices["f1"]["taints"][0]["timeAdded"]
        assert devices["f1"]["capacity"]["vfs"]["value"] == "2k"
        await p.put_back("f0", "f1")
        assert p.publisher.writes == 2


async def test_full_pf_does_not_block_the_others(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        p.offer(offer(), offer("f1", vfs=0), offer("f2", bandwidth_mbps=0))
        devices = await p.until_published("f0", "f2")
        assert devices["f2"]["capacity"]["bandwidth"]["value"] == "0"


async def test_slice_goes_with_its_node_and_counts_its_generations(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        p.offer(offer())
        await p.until_published("f0")
        p.offer(offer(), offer("f1"))
        await p.until_published("f0", "f1")
        [found] = (await p.http.get(SLICES)).json()["items"]
        node = (await p.http.get(f"/api/v1/nodes/{NODE}")).json()
        [owner] = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, node["metadata"]["uid"])
        assert found["spec"]["pool"] == {"name": NODE, "generation": 2, "resourceSliceCount": 1}


async def test_many_pfs_are_slices_of_one_generation(kind: str, tmp_path: Path):
    pfs = [offer(f"f{index}", link_up=False) for index in range(65)]
    async with publishing(kind, tmp_path) as p:
        p.offer(*pfs)
        await p.until_published(*(pf.name for pf in pfs))
        assert [len(spec["devices"]) for spec in await p.specs()] == [64, 1]
        p.offer(*pfs[:-1], offer("f64"))

        async def next_generation() -> bool:
            pools = [spec["pool"] for spec in await p.specs()]
            return pools == [{"name": NODE, "generation": 2, "resourceSliceCount": 2}] * 2

        await p.until(next_generation)
        p.offer(*pfs[:3])
        await p.until_published("f0", "f1", "f2")
        p.offer()
        await p.until_published()
        assert await p.specs() == []


async def test_agent_that_is_away_gets_no_new_pods(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        p.offer(offer(), agent_away=True)
        devices = await p.until_published("f0")
        [taint] = devices["f0"]["taints"]
        assert (taint["key"], taint["effect"]) == ("k8s-rdma.io/agent-away", "NoSchedule")


async def test_no_slice_is_ever_published_without_consumable_capacity(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path, CONSUMABLE_CAPACITY) as p:
        before = (await p.http.get(SLICES)).json()["metadata"]["resourceVersion"]
        stream = {"watch": "true", "resourceVersion": before, "timeoutSeconds": "2"}
        events = asyncio.create_task(p.http.get(SLICES, params=stream))
        for attempt in (1, 2, 3):
            p.publisher.problem = ""
            p.offer(offer(mtu=attempt))

            async def named() -> bool:
                return "DRAConsumableCapacity" in p.publisher.problem

            await p.until(named)
        assert p.publisher.writes == 0
        assert "ADDED" not in (await events).text


async def test_process_without_consumable_capacity_says_so_and_is_not_ready(
    kind: str, tmp_path: Path, world: World
):
    async with publishing(kind, tmp_path, CONSUMABLE_CAPACITY) as p:
        await check_nothing_is_published(p, tmp_path, world)


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
@pytest.mark.parametrize("release", EMULATED)
async def test_process_says_so_of_releases_that_have_consumable_capacity_off(
    release: str, tmp_path: Path, world: World
):
    async with publishing("real", tmp_path, emulated=release) as p:
        await check_nothing_is_published(p, tmp_path, world)


async def check_nothing_is_published(p: Published, directory: Path, world: World) -> None:
    """The process names the gate in its log and is not ready; it has not written, and there is no slice."""
    async with node_beside(world, directory / KUBECONFIG, p.http) as node:
        await node.register()
        [logged] = await node.plugin.logged("slices_not_published")
        assert "it needs the feature gate DRAConsumableCapacity" in logged["error"]
        ready = await node.plugin.get("/readyz")
        assert ready.status_code == 503
        assert logged["error"] in ready.text
        figures = await node.figures()
        assert (figures["claims_up",], figures["slice_writes_total",]) == (0, 0)
        assert await p.specs() == []


async def test_without_taints_pfs_that_would_have_one_are_left_out(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path, TAINTS) as p:
        p.offer(offer(), offer("f1", link_up=False))
        await p.until_published("f0")
        p.offer(offer(), offer("f1"))
        await p.until_published("f0", "f1")
        assert p.publisher.writes <= 4


async def test_two_drivers_that_differ_take_turns_slowly(kind: str, tmp_path: Path):
    """As while an update runs: each writes its own view; the last one is the one that stays."""
    async with publishing(kind, tmp_path) as p:
        other = SlicePublisher(p.client, NODE)
        p.offer(offer())
        await p.until_published("f0")
        async with in_background(other.run()):
            other.offer(Offers(node=NODE, pfs=(offer("g0"),)))

            async def turns() -> bool:
                return p.publisher.writes >= 4

            await p.until(turns)
            assert other.writes <= 5
        await p.until_published("f0")


async def test_driver_gets_no_slice_of_other_nodes(kind: str, tmp_path: Path, world: World):
    """The process neither receives their changes nor works for them."""
    async with publishing(kind, tmp_path) as p, relayed(p, tmp_path) as (relay, kubeconfig):
        await create_others(p)
        async with node_beside(world, kubeconfig, p.http) as node:
            await node.register()
            await node.plugin.logged("slices_published")
            to_publish, pid = relay.bytes_passed, node.plugin.process.pid
            before_s, started_s = processor_s(pid), time.monotonic()
            whole = await change_others(p)
            changed_s, took_s = processor_s(pid) - before_s, time.monotonic() - started_s
            beyond = relay.bytes_passed - to_publish
            before_s = processor_s(pid)
            await asyncio.sleep(REST_S)
            rest_s = (processor_s(pid) - before_s) * took_s / REST_S
        assert to_publish < len(whole) / 10
        assert beyond < 10 * len(whole) / OTHERS, "at most bookmarks, and its own slice's event"
        assert changed_s - rest_s < OTHERS * CHANGE_S, (changed_s, rest_s)


async def create_others(p: Published) -> None:
    """Create a slice of each other node."""
    [spec] = slice_specs(Offers(node=NODE, pfs=(offer(),)), agent_away=False, with_taints=True)
    for number in range(OTHERS):
        made = {"nodeName": f"n{number}", "pool": spec["pool"] | {"name": f"n{number}", "generation": 1}}
        body = {"metadata": {"name": f"n{number}"}, "spec": spec | made}
        answer = await p.http.post(SLICES, json=body)
        assert answer.status_code == 201, answer.text


async def change_others(p: Published) -> str:
    """Change each of these slices; the text that a watch of all slices has then."""
    version = (await p.http.get(SLICES)).json()["metadata"]["resourceVersion"]
    for number in range(OTHERS):
        patch = {"metadata": {"annotations": {TOUCHED: "now"}}}
        merge = {"Content-Type": "application/merge-patch+json"}
        answer = await p.http.patch(f"{SLICES}/n{number}", json=patch, headers=merge)
        assert answer.status_code == 200, answer.text
    stream = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "1"}
    whole = (await p.http.get(SLICES, params=stream)).text
    assert whole.count("MODIFIED") == OTHERS
    return whole


@asynccontextmanager
async def relayed(p: Published, directory: Path) -> AsyncIterator[tuple[Relay, Path]]:
    """A kubeconfig of the API server by way of a relay, which counts."""
    url = httpx2.URL(p.http.base_url)

    async def port() -> int | None:
        return url.port

    async with relaying(port) as relay:
        kubeconfig = directory / "relayed.kubeconfig"
        text = (directory / KUBECONFIG).read_text()
        kubeconfig.write_text(text.replace(f":{url.port}", f":{relay.port}"))
        yield relay, kubeconfig


async def test_annotation_of_a_slice_leaves_the_rest_unchanged(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        p.offer(offer())
        await p.until_published("f0")
        p.publisher.touch()

        async def annotated() -> bool:
            items = (await p.http.get(SLICES)).json()["items"]
            return TOUCHED in (items[0]["metadata"].get("annotations") or {})

        await p.until(annotated)
        await p.put_back("f0")
        assert p.publisher.writes == 2


async def test_api_server_without_the_api_is_named(tmp_path: Path):
    async with stand_in(tmp_path, frozenset()) as plane:
        path = write_kubeconfig(tmp_path / "k", plane, plane.admin_token)
        client = connect(str(path))
        client._client._client._client.base_url = f"{plane.url}/none"  # every path is unknown there
        publisher = SlicePublisher(client, NODE)
        async with asyncio.timeout(DEADLINE_S), in_background(publisher.run()):
            while "claims need Kubernetes 1.36" not in publisher.problem:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.05)
        await client.close()


async def test_claim_and_pod_are_read_whole_in_one_line(kind: str, tmp_path: Path):
    async with publishing(kind, tmp_path) as p:
        if kind == "real":
            await p.http.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        request = {"name": "a", "exactly": {"deviceClassName": "rdma"}}
        document = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        made = (await p.http.post(path, json=document)).json()
        read = await p.client.get_claim_document("default", "c")
        assert read is not None
        assert b"\n" not in read
        assert msgspec.json.decode(read) == made
        assert await p.client.get_claim_document("default", "none") is None
        assert await p.client.get_pod_document("default", "none") is None
