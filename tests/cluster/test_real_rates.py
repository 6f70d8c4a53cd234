"""Rates of running pods on a real control plane, down to a kernel.

Delivered to an agent without credentials; caps of claims by an agent with the rights that policies leave it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from caps_cases import BAD
from cluster.control_plane import write_kubeconfig
from cluster.extenders import registration
from cluster.nodes import node_object
from cluster.policies import apply_policies, pod_of, token_of, until
from cluster.publishers import AGENT, prepare
from cluster.real import obstacle
from cluster.test_live_rates import ANNOTATION, reached
from cluster.test_policies_annotation import answer, with_caps
from cluster.world import cluster
from e2e.conftest import build_dir, make_node, program
from e2e.test_claims import ask
from e2e.test_rest import URL, serve
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CapsRequest
from k8s_rdma.wire.claims import ClaimQuestion
from k8s_rdma_demo.cluster.sandboxes import PodRef
from resource_claims import claim, interface
from resource_claims import prepare as preparing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.world import Cluster
    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
POD = "/api/v1/namespaces/default/pods/gold"
PF = "enp1s0f0"


def ref(pod: Json) -> PodRef:
    meta = pod["metadata"]
    return PodRef(namespace="default", name=meta["name"], uid=meta["uid"], annotations=meta["annotations"])


async def ask_for(c: Cluster, least: int, most: int) -> None:
    rates = json.dumps([{"min_tx_rate": least, "max_tx_rate": most}])
    await c.patch(POD, {"metadata": {"annotations": {ANNOTATION: rates}}})


async def test_extender_delivers_rates_to_an_agent_without_credentials(
    make_node: Callable[[int], Node], tmp_path: Path
):
    node, key = make_node(4), tmp_path / "key"
    key.write_text("a key of this test, long enough")
    node.settings = {"placementKeyFile": str(key)}
    with httpx2.Client(base_url=URL, trust_env=False) as http:
        await asyncio.to_thread(node.start_agent)
        await asyncio.to_thread(serve, node, http)
    async with cluster("real", tmp_path, deadline_s=100) as c:
        await c.create(node_object("w1", "127.0.0.1", {}))
        extender = await c.running_extender(placementKeyFile=str(key), nodePort=54005)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("gold", 500)
            runtime = node.runtime(chained=False)
            sandbox = await runtime.add(ref(await c.bound("gold")))
            vf = next(at for at, rates in node.rates().items() if rates[0] == "500Mbit")
            await ask_for(c, 700, 800)
            assert (await reached(c, "gold", "programmed")).generation == 1
            assert node.rates()[vf] == ("700Mbit", "800Mbit")
            await ask_for(c, 2_000, 0)
            assert "1000 Mb/s" in (await reached(c, "gold", "refused")).message
            node.kill_agent()
            await extender.end()
            await ask_for(c, 300, 900)
            await extender.start()
            await asyncio.to_thread(node.start_agent)
            assert (await reached(c, "gold", "programmed")).generation == 2
            assert node.rates()[vf] == ("300Mbit", "900Mbit")
            await runtime.delete(sandbox)


async def create_train(c: Cluster, node: Node) -> PodRef:
    """Create a pod whose claim of 400 Mb/s, with a cap of 600, the agent has prepared."""
    claims = [{"name": "net", "resourceClaimName": "c"}]
    await c.create_pod(
        "gold", nodeName="w1", resourceClaims=claims, annotations={CLAIM_CAPS_ANNOTATION: "{}"}
    )
    pod = await c.bound("gold")
    asked = interface("a", PF, "400M", maxTxRate="600M", name="rdma0")
    allocated = claim(asked, uid="claim-uid", name="c")
    allocated["status"]["reservedFor"] = [{"resource": "pods", "name": "gold", "uid": pod["metadata"]["uid"]}]
    said = await asyncio.to_thread(ask, node, ClaimQuestion(prepare=preparing(allocated, pod)))
    assert said.error == ""
    return ref(pod)


async def decided(c: Cluster, state: str) -> str:
    """Wait for the status of the caps as they are; its message."""

    def status(pod: Json) -> Any:
        return CapsRequest.read(pod["metadata"]["annotations"]).status()

    pod = await c.when("gold", lambda pod: (found := status(pod)) is not None and found.state == state)
    return str(status(pod).message)


async def annotate(c: Cluster, text: str) -> None:
    await c.patch(POD, {"metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: text}}})


async def test_caps_of_claims_are_decided_within_the_policies(
    make_node: Callable[[int], Node], tmp_path: Path
):
    node = make_node(4)
    async with cluster("real", tmp_path, deadline_s=100) as c:
        await prepare(c)
        await c.create(node_object("w1", "127.0.0.1", {}))
        for name in ("own-node", "claim-caps"):
            await apply_policies(c, name)
        await until(lambda: _refused(c))
        token = await token_of(c, AGENT, await pod_of(c, AGENT, "w1"))
        node.settings = {
            "kubeconfig": str(write_kubeconfig(tmp_path / "agent.kubeconfig", c.plane, token)),
            "publish": {"rdmaNode": True},
            "hardware": {"pfs": [{"names": [PF], "use": "claims"}], "all": True},
            "cdiDir": str(tmp_path / "cdi"),
        }
        await asyncio.to_thread(node.start_agent)
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(await create_train(c, node))
        vf = next(at for at, rates in node.rates().items() if rates[0] == "400Mbit")
        assert node.rates()[vf] == ("400Mbit", "600Mbit")
        await annotate(c, '{"rdma0": 800}')
        assert await decided(c, "programmed") == ""
        assert node.rates()[vf] == ("400Mbit", "800Mbit")
        await annotate(c, '{"rdma0": 300}')
        assert "below the 400 Mb/s" in await decided(c, "refused")
        assert node.rates()[vf] == ("400Mbit", "800Mbit")
        await annotate(c, '{"rdma0": 900}')
        await decided(c, "programmed")
        assert node.rates()[vf] == ("400Mbit", "900Mbit")
        await runtime.delete(sandbox)


async def _refused(c: Cluster) -> str:
    text, _ = BAD[0]
    return (await answer(c, with_caps(text)))[0]
