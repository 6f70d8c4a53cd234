"""Caps of a running pod with a ResourceClaim: API server, agent, kernel and pod are real."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from e2e.test_claims import ask
from e2e.test_live_rates import MERGE, MOMENTS_S, PODS_URL, Cluster, cluster_of
from k8s_rdma.core.types import PodUid
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CapsRequest
from k8s_rdma.wire.claims import ClaimQuestion
from k8s_rdma_demo.cluster.sandboxes import PodRef
from resource_claims import claim, interface, prepare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from e2e.node import Node

    MakeNode = Callable[[int], Node]

BASE = ("400Mbit", "600Mbit")


async def create(c: Cluster, name: str) -> PodRef:
    """A pod whose claim of 400 Mb/s and a cap of 600 is prepared."""
    claims = [{"name": "net", "resourceClaimName": name}]
    containers = [{"name": "c", "image": "lab.local/busybox:1"}]
    spec = {"containers": containers, "nodeName": "w1", "resourceClaims": claims}
    made = await c.http.post(PODS_URL, json={"metadata": {"name": name}, "spec": spec})
    document = made.json()
    uid = document["metadata"]["uid"]
    wanted = interface("a", c.node.pfs[0].name, "400M", maxTxRate="600M", name="rdma0")
    allocated = claim(wanted, uid=f"claim-{name}", name=name)
    reserved = [{"resource": "pods", "name": name, "uid": uid}]
    allocated["status"] |= {"reservedFor": reserved}
    answer = await asyncio.to_thread(ask, c.node, ClaimQuestion(prepare=prepare(allocated, document)))
    assert answer.error == ""
    return PodRef(namespace="default", name=name, uid=PodUid(uid), annotations={})


async def annotate(c: Cluster, pod: PodRef, text: str | None) -> None:
    patch = {"metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: text}}}
    answer = await c.http.patch(f"{PODS_URL}/{pod.name}", json=patch, headers=MERGE)
    assert answer.status_code == 200, answer.text


async def decided(c: Cluster, pod: PodRef, state: str) -> str:
    """Wait for the status of the annotation as it is; its message."""
    while True:
        found: dict[str, Any] = (await c.http.get(f"{PODS_URL}/{pod.name}")).json()
        status = CapsRequest.read(found["metadata"].get("annotations") or {}).status()
        if status is not None and status.state == state:
            return status.message
        await asyncio.sleep(0.01)


def programmed(c: Cluster) -> set[tuple[str, str]]:
    """Rates of VFs that have a reservation."""
    return {rates for rates in c.node.rates().values() if rates[0] == BASE[0]}


@asynccontextmanager
async def claiming(node: Node) -> AsyncIterator[Cluster]:
    rules = [{"names": [node.pfs[0].name], "use": "claims"}]
    settings = {"hardware": {"pfs": rules, "all": True}, "cdiDir": str(node.directory / "cdi")}
    async with cluster_of(node, **settings) as c:
        yield c


def test_cap_of_a_claim_follows_the_annotation_through_sandboxes(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with claiming(node) as c:
            runtime = node.runtime(chained=True)
            pod = await create(c, "train")
            sandbox = await runtime.add(pod)
            assert programmed(c) == {BASE}
            await annotate(c, pod, '{"rdma0": 800}')
            await decided(c, pod, "programmed")
            assert programmed(c) == {("400Mbit", "800Mbit")}
            await annotate(c, pod, '{"rdma0": 300}')
            assert "below the 400 Mb/s" in await decided(c, pod, "refused")
            assert programmed(c) == {("400Mbit", "800Mbit")}
            assert {"RdmaRatesChanged", "RdmaRatesRefused"} <= c.events()
            await annotate(c, pod, '{"rdma0": 900}')
            await decided(c, pod, "programmed")
            await runtime.delete(sandbox)
            sandbox = await runtime.add(pod)
            await c.until(lambda: programmed(c) == {("400Mbit", "900Mbit")})
            await annotate(c, pod, None)
            await decided(c, pod, "programmed")
            assert programmed(c) == {BASE}
            await runtime.delete(sandbox)

    asyncio.run(scenario())


def test_cap_of_a_claim_is_the_old_or_the_new_one_whenever_the_agent_is_killed(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with claiming(node) as c:
            runtime = node.runtime(chained=True)
            pod = await create(c, "train")
            sandbox = await runtime.add(pod)
            before = BASE
            for moment_s, cap in zip(MOMENTS_S, (700, 800, 500, 900, 0), strict=True):
                await annotate(c, pod, f'{{"rdma0": {cap}}}')
                await asyncio.sleep(moment_s)
                node.kill_agent()
                after = ("400Mbit", f"{cap}Mbit" if cap else next(iter(programmed(c)))[1])
                assert programmed(c) <= {before, after}
                await asyncio.to_thread(node.start_agent)
                await decided(c, pod, "programmed")
                [before] = programmed(c)
                assert cap == 0 or before == after
            await runtime.delete(sandbox)

    asyncio.run(scenario())
