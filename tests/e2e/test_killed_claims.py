"""Agent and driver, as processes, killed in the midst of their work for a pod by ResourceClaims.

The test acts as kubelet and runtime do: each call is repeated until it succeeds, a failed ADD is followed by
DEL and another sandbox. `HYPOTHESIS_PROFILE=explore` kills 100 times.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from e2e.node import Node
from e2e.test_both_ways import offered
from k8s_rdma.kube.grpc_calls import AioRpcError, call, connect
from k8s_rdma.wire.claims import DRIVER, ClaimAnswer, ClaimName
from k8s_rdma.wire.dra import PREPARE, UNPREPARE
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import AttachError
from k8s_rdma_demo.cluster.sandboxes import PodRef, Sandbox
from resource_claims import api_with_node, claim, interface
from resource_claims import pod as pod_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from k8s_rdma.wire.protobuf import Method
    from k8s_rdma_demo.cluster.cni_runtime import CniRuntime

KILLS = 100 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 4
LONGEST_S = 30 * KILLS + 60
RETRY_S = 0.05
VICTIMS = ("agent", "driver", "agent and driver")
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"

pytestmark = pytest.mark.timeout(LONGEST_S + 60)


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    """A node whose first PF is for claims."""
    node = make_node(4)
    node.settings |= {
        "hardware": {"pfs": [{"names": [node.pfs[0].name], "use": "claims"}], "all": True},
        "cdiDir": str(node.directory / "cdi"),
    }
    node.start_agent()
    return node


@dataclass
class Kubelet:
    """Kubelet, runtime and API server of a node with a driver."""

    node: Node
    http: httpx2.AsyncClient
    kubeconfig: Path

    def __post_init__(self) -> None:
        self.runtime: CniRuntime = self.node.runtime(chained=True)
        self.start_driver()

    def start_driver(self) -> None:
        directory = str(self.node.directory)
        document = {
            "resources": [],
            "runDir": str(self.node.run_dir),
            "port": None,
            "node": "w1",
            "kubeconfig": str(self.kubeconfig),
            "claims": {"registryDir": directory, "pluginsDir": directory, "uid": "u"},
        }
        self.driver = self.node.start("device-plugin", self.node.config("device-plugin", document))

    async def create(self, name: str) -> Pod:
        """A pod with an allocated claim of two interfaces."""
        pf = self.node.pfs[0].name
        found = claim(interface("a", pf, "200M", maxTxRate="300M"), interface("b", pf), name=name)
        made = await self._post(CLAIMS, {"metadata": {"name": name}, "spec": found["spec"]})
        container = {"name": "c", "image": "registry.invalid/c:1"}
        document = pod_object(name, "", name, containers=[container])
        created = await self._post(PODS, {"metadata": {"name": name}, "spec": document["spec"]})
        uid = created["metadata"]["uid"]
        reserved = [{"resource": "pods", "name": name, "uid": uid}]
        status = {"status": {**found["status"], "reservedFor": reserved}}
        head = {"Content-Type": "application/merge-patch+json"}
        patched = await self.http.patch(f"{CLAIMS}/{name}/status", json=status, headers=head)
        assert patched.status_code == 200, patched.text
        ref = PodRef(namespace="default", name=name, uid=uid, annotations={"other": "x"})
        return Pod(self, ref, ClaimName(namespace="default", name=name, uid=made["metadata"]["uid"]))

    async def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        made = await self.http.post(path, json=document)
        assert made.status_code == 201, made.text
        return made.json()

    async def kill(self, victim: str, after_s: float) -> None:
        """Kill processes after that time, and start them again."""
        await asyncio.sleep(after_s)
        if "driver" in victim:
            self.driver.kill()
            await asyncio.to_thread(self.driver.wait)
            self.start_driver()
        if "agent" in victim:
            await asyncio.to_thread(self.node.kill_agent)
            await asyncio.to_thread(self.node.start_agent)


@dataclass
class Pod:
    kubelet: Kubelet
    ref: PodRef
    claim: ClaimName
    answer: ClaimAnswer | None = None
    sandbox: Sandbox | None = None

    def steps(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "prepare": self.prepare,
            "add": self.add,
            "delete": self.delete,
            "unprepare": lambda: self._until_answered(UNPREPARE),
        }

    async def prepare(self) -> None:
        self.answer = await self._until_answered(PREPARE)
        assert await self._until_answered(PREPARE) == self.answer

    async def add(self) -> None:
        runtime = self.kubelet.runtime
        while self.sandbox is None:
            try:
                self.sandbox = await runtime.add(self.ref)
            except AttachError as error:
                self.sandbox = error.leftover
                await self.delete()
        shown = self.kubelet.node.ip("link", "show", netns=self.sandbox.netns)
        assert {"rdma0", "rdma1"} <= {link["ifname"] for link in shown}
        assert ("200Mbit", "300Mbit") in self.kubelet.node.rates().values()

    async def delete(self) -> None:
        while self.sandbox is not None:
            try:
                await self.kubelet.runtime.delete(self.sandbox)
                self.sandbox = None
            except CniError:
                await asyncio.sleep(RETRY_S)

    async def _until_answered(self, method: Method[Any, Mapping[str, ClaimAnswer]]) -> ClaimAnswer:
        socket = self.kubelet.node.directory / DRIVER / "dra-u.sock"
        while True:
            try:
                async with connect(socket) as channel:
                    [answer] = (await call(channel, method, (self.claim,), timeout_s=45)).values()
                if not answer.error:
                    return answer
            except AioRpcError:  # the driver is not there
                pass
            await asyncio.sleep(RETRY_S)


@asynccontextmanager
async def kubelet_of(node: Node) -> AsyncIterator[Kubelet]:
    async with asyncio.timeout(LONGEST_S), api_with_node(node.directory) as (http, kubeconfig):
        yield Kubelet(node, http, kubeconfig)


def addresses(node: Node, pod: Pod) -> list[dict[str, Any]]:
    assert pod.sandbox is not None
    return node.ip("address", "show", "scope", "global", netns=pod.sandbox.netns)


def left(node: Node) -> dict[str, Any]:
    """All that is not as before the first pod."""
    claims = offered(node).claims
    return node.leftovers() | {
        "prepared": [(found.claim.uid, vf.pci, vf.mac) for found in claims for vf in found.interfaces],
        "marks": sorted(path.name for path in (node.run_dir / "claims").glob("*")),
        "specifications": sorted(path.name for path in (node.directory / "cdi").glob("*")),
    }


def test_no_vf_is_lost_whenever_processes_are_killed(node: Node) -> None:
    seed = secrets.randbits(32)
    sys.stdout.write(f"seed {seed}\n")
    drawn = Random(seed)

    async def scenario() -> None:
        async with kubelet_of(node) as kubelet:
            neighbour = await kubelet.create("neighbour")
            await neighbour.prepare()
            await neighbour.add()
            before = left(node)
            inside = addresses(node, neighbour)
            took_s: dict[str, float] = {}
            for number in range(KILLS + 1):
                pod = await kubelet.create(f"p{number}")
                failing = drawn.choice(list(pod.steps())) if number else ""
                for name, step in pod.steps().items():
                    started_s = time.monotonic()
                    if name == failing:
                        after_s, victim = drawn.uniform(0, 1.2 * took_s[name]), drawn.choice(VICTIMS)
                        await asyncio.gather(step(), kubelet.kill(victim, after_s))
                    else:
                        await step()
                    took_s.setdefault(name, time.monotonic() - started_s)
                assert left(node) == before, f"{pod.ref.name}: {failing}"
            assert addresses(node, neighbour) == inside
            for step in ("delete", "unprepare"):
                await neighbour.steps()[step]()
            assert left(node) == {"prepared": [], "marks": [], "specifications": []}

    asyncio.run(scenario())
