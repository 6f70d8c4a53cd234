"""Pods by ResourceClaims through the real executable and agent: interfaces as prepared, or no pod."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from e2e.processes import pod
from e2e.test_rebuild_ledger import held, keep, lost, rebuild, spoilt
from k8s_rdma.core.ledger import ClaimUid, Ledger
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.deviceplugin.dra import ClaimsAgent
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.claims import (
    HEARTBEAT_S,
    LONGEST_WAIT_S,
    ClaimAnswer,
    ClaimName,
    ClaimQuestion,
    decode_answer,
    encode_line,
)
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.sandboxes import PodRef
from k8s_rdma_demo.kubelet.device_manager import in_background
from resource_claims import claim, interface, of_pod, prepare
from resource_claims import pod as pod_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.node import Node

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    """A node whose first PF is for claims."""
    node = make_node(4)
    rules = [{"names": [node.pfs[0].name], "use": "claims"}]
    node.settings = {
        "hardware": {"pfs": rules, "all": True},
        "cdiDir": str(node.directory / "cdi"),
    }
    node.start_agent()
    return node


def ask(node: Node, question: ClaimQuestion) -> ClaimAnswer:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(node.deadline_s)
        connection.connect(str(node.run_dir / CLAIMS_SOCKET))
        connection.sendall(encode_line(question))
        with connection.makefile("rb") as lines:
            return decode_answer(lines.readline())


def prepared(node: Node, name: str, *interfaces: dict[str, Any], uid: str = "") -> ClaimAnswer:
    """Have the claim of a pod prepared, which has the pod's name. uid: of another claim of that name."""
    document = of_pod(claim(*interfaces, uid=uid or f"claim-{name}", name=name), name)
    return ask(node, ClaimQuestion(prepare=prepare(document, pod_object(name, f"uid-{name}", name))))


def unprepared(node: Node, name: str) -> ClaimAnswer:
    return ask(node, ClaimQuestion(unprepare=ClaimName(namespace="default", name=name, uid=f"claim-{name}")))


def recorded(node: Node) -> Ledger:
    """The ledger on the disk of a node without an agent."""
    with closing(Receipts(node.directory / "state" / "ledger.db")) as receipts:
        return receipts.load()


def test_pod_without_annotation_gets_the_interfaces_of_its_claim(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        pf = node.pfs[0].name
        answer = prepared(node, "p", interface("a", pf, "400M", maxTxRate="600M"), interface("b", pf))
        assert [device.cdi for device in answer.devices] == [
            (f"k8s-rdma.io/claim=claim-p.{name}",) for name in "ab"
        ]
        sandbox = await runtime.add(pod("p"))
        links = {link["ifname"] for link in node.ip("link", "show", netns=sandbox.netns)}
        assert {"rdma0", "rdma1"} <= links
        assert ("400Mbit", "600Mbit") in node.rates().values()
        await runtime.delete(sandbox)
        other = prepared(node, "q", interface("a", pf, "700M"))
        assert "the claim needs 700 Mb/s; 600 of 1000 are unreserved" in other.error
        assert unprepared(node, "p") == ClaimAnswer()
        assert not prepared(node, "q", interface("a", pf, "700M")).error
        assert unprepared(node, "q") == ClaimAnswer()
        assert node.leftovers() == {}

    asyncio.run(scenario())


def test_prepared_claims_are_rebuilt_with_the_ledger_and_a_pod_of_unknown_ones_is_refused(node: Node) -> None:
    async def scenario() -> None:
        runtime, pf = node.runtime(chained=True), node.pfs[0].name
        prepared(node, "p", interface("a", pf, "400M", maxTxRate="600M"), interface("b", pf, mtu=1400))
        later = prepared(node, "q", interface("a", pf, "300M"))
        prepared(node, "r", interface("a", pf, "100M"))
        sandbox = await runtime.add(pod("p"))
        keep(node, runtime, sandbox)
        before = held(node), node.kernel_state()
        node.kill_agent()
        ledger = recorded(node)
        spoilt(node, lost)
        (node.run_dir / "claims" / "uid-r").write_bytes(b"")
        refused = node.start("agent", node.config("agent", node.document() | node.settings))
        assert refused.wait(node.deadline_s) == 2
        done = rebuild(node)
        assert done.returncode == 1
        assert "prepared for pod default/p: request a: VF 0 of" in done.stdout
        assert "its prepared claims are lost, so it starts no more; delete it" in done.stdout
        rebuilt = recorded(node)
        [former], [receipt] = ledger.receipts.values(), rebuilt.receipts.values()
        # The pod may have changed its VFs' attributes by now, so that those at home are unknown.
        unknown = [replace(each, home=replace(each.home, attributes=None)) for each in former.interfaces]
        assert list(receipt.interfaces) == unknown
        assert rebuilt.claims == ledger.without_claim(ClaimUid("claim-r")).claims
        (node.directory / "agent.log").unlink()
        node.start_agent()
        assert (held(node), node.kernel_state()) == before
        assert prepared(node, "q", interface("a", pf, "300M")) == later
        assert "300 of 1000 are unreserved" in prepared(node, "s", interface("a", pf, "400M")).error
        other = await runtime.add(pod("q"))
        with pytest.raises(CniError, match="are lost from the ledger; delete the pod"):
            await runtime.add(pod("r"))
        await runtime.delete(sandbox)
        sandbox = await runtime.add(pod("p"))
        assert held(node)[sandbox.container_id][1] == next(iter(before[0].values()))[1]
        for name, started in (("p", sandbox), ("q", other)):
            await runtime.delete(started)
            assert unprepared(node, name) == ClaimAnswer()
        assert node.leftovers() == {}

    asyncio.run(scenario())


def test_pod_with_a_prepared_claim_does_not_start_without_the_agent(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        prepared(node, "p", interface("a", node.pfs[0].name, "400M"))
        node.kill_agent()
        with pytest.raises(CniError, match="the k8s-rdma agent of this node cannot be reached"):
            await runtime.add(pod("p"))
        plain = await runtime.add(pod("plain"))
        node.start_agent()
        sandbox = await runtime.add(pod("p"))
        assert "rdma0" in {link["ifname"] for link in node.ip("link", "show", netns=sandbox.netns)}
        await runtime.delete(plain)
        await runtime.delete(sandbox)
        assert unprepared(node, "p") == ClaimAnswer()
        assert node.leftovers() == {}

    asyncio.run(scenario())


def test_claim_waits_for_a_pod_that_ends_and_is_refused_at_once_beside_one_that_stays(node: Node) -> None:
    """The API server shows which pods stay; the node has no sign that a pod was deleted by force."""

    async def create(http: httpx2.AsyncClient, name: str) -> PodRef:
        spec = {"nodeName": "w1", "containers": [{"name": "c", "image": "lab.local/busybox:1"}]}
        made = await http.post(PODS, json={"metadata": {"name": name}, "spec": spec})
        return PodRef(namespace="default", name=name, uid=made.json()["metadata"]["uid"], annotations={})

    def question(of: PodRef, wait_s: float) -> ClaimQuestion:
        document = claim(interface("a", node.pfs[0].name, "700M"), uid=f"claim-{of.name}", name=of.name)
        document["status"]["reservedFor"] = [{"resource": "pods", "name": of.name, "uid": of.uid}]
        return ClaimQuestion(prepare=prepare(document, wait_s=wait_s))

    async def scenario(http: httpx2.AsyncClient) -> None:
        first = await create(http, "first")
        assert not ask(node, question(first, 0)).error
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(first)
        second = await create(http, "second")
        began_s = time.monotonic()
        refused = await asyncio.to_thread(ask, node, question(second, LONGEST_WAIT_S))
        assert "the claim needs 700 Mb/s; 300 of 1000 are unreserved" in refused.error
        assert time.monotonic() - began_s < LONGEST_WAIT_S
        await http.request("DELETE", f"{PODS}/first", json={"gracePeriodSeconds": 0})
        waiting = asyncio.create_task(asyncio.to_thread(ask, node, question(second, 40)))
        done, _ = await asyncio.wait([waiting], timeout=2)
        assert not done
        await runtime.delete(sandbox)
        assert unprepared(node, "first") == ClaimAnswer()
        assert not (await waiting).error
        assert unprepared(node, "second") == ClaimAnswer()
        assert node.leftovers() == {}

    async def beside_an_api_server() -> None:
        async with (
            asyncio.timeout(120),
            serving_api() as api,
            httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
        ):
            kubeconfig = write_kubeconfig(node.directory / "kubeconfig", api.url)
            node.kill_agent()
            node.settings["kubeconfig"] = str(kubeconfig)
            await asyncio.to_thread(node.start_agent)
            await scenario(http)

    asyncio.run(beside_an_api_server())


LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"
MAC = "02:00:00:00:00:77"


def test_mac_of_a_claim_is_a_lease_while_it_is_prepared(node: Node) -> None:
    wanted, everything = interface("a", node.pfs[0].name, mac=MAC), {"allow": ["*"]}
    policies = {"policies": [{"name": "all", "namespaces": ["*"], **everything}]}
    (node.directory / "policies.json").write_text(json.dumps(policies))

    async def leases(http: httpx2.AsyncClient) -> dict[str, str]:
        items = (await http.get(LEASES)).json()["items"]
        return {item["metadata"]["name"]: item["spec"]["holderIdentity"] for item in items}

    async def scenario(http: httpx2.AsyncClient) -> None:
        await http.post("/api/v1/nodes", json={"metadata": {"name": "w1"}})
        assert not (await asyncio.to_thread(prepared, node, "p", wanted)).error
        assert await leases(http) == {"addresses.mac.02-00-00-00-00-77": "w1"}
        assert await asyncio.to_thread(unprepared, node, "p") == ClaimAnswer()
        while await leases(http):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        another = {"metadata": {"name": "addresses.mac.02-00-00-00-00-77"}, "spec": {"holderIdentity": "w2"}}
        assert (await http.post(LEASES, json=another)).is_success
        refused = await asyncio.to_thread(prepared, node, "q", wanted)
        assert f"MAC {MAC} is in use on node w2" in refused.error
        assert node.leftovers() == {}

    async def beside_an_api_server() -> None:
        crd = yaml.safe_load((ROOT / "deploy/crds/rdmanodes.yaml").read_text())
        async with (
            asyncio.timeout(120),
            serving_api() as api,
            httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
        ):
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            assert (await http.post(path, json=crd)).is_success
            kubeconfig = write_kubeconfig(node.directory / "kubeconfig", api.url)
            node.kill_agent()
            node.settings["policyFile"] = str(node.directory / "policies.json")
            await asyncio.to_thread(node.start_agent)
            refused = await asyncio.to_thread(prepared, node, "p", wanted)
            assert f"MAC {MAC}: whether another node has it is not known" in refused.error
            node.kill_agent()
            node.settings["kubeconfig"] = str(kubeconfig)
            await asyncio.to_thread(node.start_agent)
            await scenario(http)

    asyncio.run(beside_an_api_server())


def test_agent_that_is_stopped_is_away_until_it_goes_on(node: Node) -> None:
    async def until(agent: ClaimsAgent, *, away: bool) -> None:
        async with asyncio.timeout(node.deadline_s):
            while (agent.away_since_s.value is not None) != away:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)

    async def scenario() -> None:
        agent = ClaimsAgent(node.run_dir / CLAIMS_SOCKET, silence_s=HEARTBEAT_S + 2)
        async with in_background(agent.follow()):
            await until(agent, away=False)
            node.agent.send_signal(signal.SIGSTOP)
            try:
                await until(agent, away=True)
            finally:
                node.agent.send_signal(signal.SIGCONT)
            await until(agent, away=False)

    asyncio.run(scenario())
