"""Addresses in a cluster: of two nodes one holds it, whichever way their pods ask for it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, Verbs, call
from agent.passing_time import PassingTime
from agent.pods import requests
from extender.published import RDMA_NODES
from extender.world import until
from factories import PF0, PF1
from fakes.machine import FakePf
from k8s_rdma.agent.cluster.held_addresses import WAIT_S, HeldAddresses, UnknownAddresses
from k8s_rdma.agent.node import Node
from k8s_rdma.core.macs import macs_of, requested_addresses
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.request import Request as PodRequest
from k8s_rdma.core.types import LinkType, NodeName, PfUse
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.scheduler_cache import AddressCheck
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.wire.address_leases import lease_name
from k8s_rdma.wire.claims import ClaimName
from k8s_rdma_demo.cluster.api import Api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import BUILT_IN, LEASES, NODES, Target
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.store import Store
from resource_claims import claim, interface, of_pod, pod, prepare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


pytestmark = pytest.mark.anyio

MAC, GUID = "02:00:00:00:00:77", "02:00:00:ff:fe:00:00:77"
NAMESPACE = "k8s-rdma"
DEADLINE_S = 120


@dataclass
class Agent:
    """An agent of a node, with the Leases of its addresses."""

    machine: Machine
    node: Node
    verbs: Verbs
    held: HeldAddresses

    async def prepare(self, uid: str = "u1", pod_name: str = "p", **config: Any) -> None:
        document = of_pod(claim(interface("a", **config), uid=uid, name=uid), pod_name)
        for result in document["status"]["allocation"]["devices"]["results"]:
            result["pool"] = self.machine.node
        of = pod(pod_name, f"uid-{pod_name}", uid, nodeName=self.machine.node)
        assert self.machine.claim_commands is not None
        await self.machine.claim_commands.prepare(prepare(document, of))

    async def unprepare(self, uid: str = "u1") -> None:
        assert self.machine.claim_commands is not None
        await self.machine.claim_commands.unprepare(ClaimName(namespace="default", name=uid, uid=uid))

    async def add(self, container: str = "c1", name: str = "p", *interfaces: dict[str, Any]) -> None:
        netns = self.machine.sandboxes[self.machine.sandbox(container)]
        stdin = self.machine.stdin(requests(*interfaces) if interfaces else {})
        await self.verbs.add(call("ADD", container, f"uid-{name}", name=name), netns, stdin)

    async def delete(self, container: str = "c1", name: str = "p") -> None:
        await self.verbs.delete(call("DEL", container, f"uid-{name}", name=name), "net")

    async def compare(self) -> None:
        await self.held.compare(lambda: requested_addresses(self.node.ledger))


@dataclass
class World:
    """An API server and the nodes of a cluster. fails: it answers 503."""

    directory: Path
    client: Client
    store: Store
    registry: Registry
    agents: AsyncExitStack
    time: PassingTime = field(default_factory=PassingTime)
    fails: bool = False

    def agent(self, name: str, link_type: LinkType = LinkType.ETHERNET) -> Agent:
        """Start the agent of a node; `f0` is for claims."""
        if self.store.get(NODES, ("", name)) is None:
            self.registry.create(Target(resource=NODES), {"metadata": {"name": name}})
        pfs = tuple(
            FakePf(name=f"f{index}", pci=pci, vfs=4, link_type=link_type)
            for index, pci in enumerate((PF0, PF1))
        )
        machine = Machine(self.directory / name, node=name, pfs=pfs)
        machine.rules = (PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS), PfRule())
        file = self.directory / f"{name}.json"
        held = HeldAddresses(self.client, NodeName(name), NAMESPACE, file, self.time.time())
        machine.addresses = held
        node, verbs = self.agents.enter_context(machine.running())
        return Agent(machine, node, verbs, held)

    def leases(self) -> dict[str, str]:
        return {
            lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in self.store.items(LEASES)
        }

    def report(self, name: str, *macs: str, vfs: int = 4) -> None:
        """Another node that publishes these MACs."""
        status = {
            "generation": "1",
            "pfs": [{"name": "f0", "pci": "0000:81:00.0", "capacityVfs": vfs, "rates": {}}],
            "macs": [{"first": mac} for mac in macs],
        }
        self.registry.create(Target(resource=RDMA_NODES), {"metadata": {"name": name}, "status": status})
        target = Target(resource=RDMA_NODES, name=name, subresource="status")
        self.registry.patch(target, lambda old: {**old, "status": status})


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[World]:
    store = Store()
    registry = Registry(store=store)
    api = Api(registry, (*BUILT_IN, RDMA_NODES))

    async def handle(request: Request) -> Response | Stream:
        return Response(status=503, body=b"{}") if world.fails else await api.handle(request)

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
    async with (
        asyncio.timeout(DEADLINE_S),
        serving(service, "127.0.0.1", 0) as port,
        AsyncExitStack() as agents,
    ):
        client = connect(str(write_kubeconfig(directory / "kubeconfig", f"http://127.0.0.1:{port}")))
        agents.push_async_callback(client.close)
        world = World(directory, client, store, registry, agents)
        yield world


async def refusal(w: World, attempt: Callable[[], Any]) -> K8sRdmaError:
    """Return the refusal of an attempt that waits for the address first."""
    task = asyncio.ensure_future(attempt())
    while not task.done():
        await w.time.advance(WAIT_S)
        await asyncio.wait([task], timeout=0.05)
    error = task.exception()
    assert isinstance(error, K8sRdmaError), error
    return error


@pytest.mark.parametrize(("key", "address"), [("mac", MAC), ("guid", GUID)])
async def test_address_of_a_claim_is_refused_to_claims_of_other_nodes_until_it_ends(
    tmp_path: Path, key: str, address: str
):
    async with cluster(tmp_path) as w:
        link_type = LinkType.ETHERNET if key == "mac" else LinkType.INFINIBAND
        first, second = w.agent("w1", link_type), w.agent("w2", link_type)
        wanted = {key: address}
        attempts = await asyncio.gather(_outcome(w, first, **wanted), _outcome(w, second, **wanted))
        assert sorted(attempts) == ["", Reason.ADDRESS_IN_USE]
        winner, loser = (first, second) if attempts[0] == "" else (second, first)
        assert w.leases() == {lease_name(address): winner.machine.node}
        assert not loser.node.ledger.claims
        await winner.unprepare()
        await winner.compare()
        assert w.leases() == {}
        await loser.prepare(**wanted)
        assert w.leases() == {lease_name(address): loser.machine.node}


@pytest.mark.parametrize(("key", "address"), [("mac", MAC), ("guid", GUID)])
async def test_extender_places_no_pod_with_the_address_of_a_claim_until_it_ends(
    tmp_path: Path, key: str, address: str
):
    async with cluster(tmp_path) as w:
        agent = w.agent("w1", LinkType.ETHERNET if key == "mac" else LinkType.INFINIBAND)
        state = ClusterState()
        check = AddressCheck(
            state,
            NominatedPods(
                state, PodStore(), FitCache(), lambda: 0.0, nomination_s=60.0, on_release=lambda _: None
            ),
        )
        wanted = PodRequest((InterfaceRequest(options=InterfaceOptions(**{key: address})),))
        waiting = PendingPod(uid="q", namespace="default", name="q", priority=0, request=wanted)
        async with RdmaNodeInformer(state, w.client, lambda: 0.0, stale_s=60, namespace=NAMESPACE):
            await agent.prepare(**{key: address})
            await until(lambda: check.conflict(waiting) is not None)
            assert f"which node w1 holds (Lease {lease_name(address)})" in check.conflict(waiting).why
            await agent.unprepare()
            await agent.compare()
            await until(lambda: check.conflict(waiting) is None)


async def _outcome(w: World, agent: Agent, **wanted: Any) -> str:
    task = asyncio.ensure_future(agent.prepare(**wanted))
    while not task.done():
        await w.time.advance(WAIT_S)
        await asyncio.wait([task], timeout=0.05)
    error = task.exception()
    if error is None:
        return ""
    assert isinstance(error, K8sRdmaError)
    return error.reason


async def test_address_of_an_annotation_is_refused_to_claims_and_the_other_way_round(tmp_path: Path):
    async with cluster(tmp_path) as w:
        first, second = w.agent("w1"), w.agent("w2")
        await first.add("c1", "p", {"mac": MAC, "pf": "f1"})
        error = await refusal(w, lambda: second.prepare(mac=MAC))
        assert error.reason is Reason.ADDRESS_IN_USE
        assert error.message == f"MAC {MAC} is in use on node w1 (Lease k8s-rdma/{lease_name(MAC)})"
        await first.delete()
        await first.compare()
        await second.prepare(mac=MAC)
        error = await refusal(w, lambda: first.add("c2", "q", {"mac": MAC, "pf": "f1"}))
        assert error.reason is Reason.ADDRESS_IN_USE
        assert first.machine.is_pristine()


async def test_mac_of_any_function_of_another_node_is_refused_to_a_claim(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.agent("w1")
        w.report("w1", MAC)  # its own report: its ledger judges
        w.report("w2", "02:00:00:00:00:01", MAC)
        error = await refusal(w, lambda: agent.prepare(mac=MAC))
        assert (error.reason, error.message) == (
            Reason.ADDRESS_IN_USE,
            f"MAC {MAC} is that of a PF or VF of node w2",
        )
        await agent.compare()
        assert w.leases() == {}
        assert agent.machine.is_pristine()


async def test_node_that_reports_more_macs_than_vfs_blocks_no_mac(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.agent("w1")
        w.report("w2", "02:00:00:00:00:01", "02:00:00:00:00:02", MAC, vfs=0)
        await agent.prepare(mac=MAC)


async def test_pod_that_moves_waits_until_its_former_node_has_released_its_address(tmp_path: Path):
    async with cluster(tmp_path) as w:
        first, second = w.agent("w1"), w.agent("w2")
        await first.prepare(mac=MAC)
        waiting = asyncio.ensure_future(second.prepare("u2", mac=MAC))
        while not w.time.pauses:
            await asyncio.wait([waiting], timeout=0.01)
        await first.unprepare()
        await first.compare()
        await w.time.advance(WAIT_S / 2)
        await waiting
        assert w.leases() == {lease_name(MAC): "w2"}


async def test_claim_is_refused_while_it_is_not_known_whether_its_address_is_free(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.agent("w1")
        w.fails = True
        error = await refusal(w, lambda: agent.prepare(mac=MAC))
        assert error.reason is Reason.API_FAILURE
        assert f"MAC {MAC}: whether another node has it is not known" in error.message
        assert not agent.node.ledger.claims
        await agent.add("c1", "p", {"mac": MAC, "pf": "f1"})  # the extender has judged that one
        w.fails = False
        await agent.compare()
        assert w.leases() == {lease_name(MAC): "w1"}


async def test_agent_without_credentials_refuses_addresses_of_claims():
    registry = UnknownAddresses()
    with pytest.raises(K8sRdmaError) as raised:
        async with registry.holding([MAC], by_claim=True):
            raise AssertionError
    assert "the agent has no credentials" in raised.value.message
    async with registry.holding([MAC], by_claim=False), registry.holding([], by_claim=True):
        pass


async def test_addresses_outlast_the_agent_and_those_of_ended_pods_are_released(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.agent("w1")
        await agent.prepare(mac=MAC)
        with pytest.raises(RuntimeError):  # it dies after the Lease was made, before the promise
            async with agent.held.holding([GUID], by_claim=True):
                raise RuntimeError
        assert set(w.leases()) == {lease_name(MAC), lease_name(GUID)}
        file = tmp_path / "w1.json"
        assert json.loads(file.read_text()) == sorted([MAC, GUID])
        again = HeldAddresses(w.client, NodeName("w1"), NAMESPACE, file, w.time.time())
        await again.compare(lambda: requested_addresses(agent.node.ledger))
        assert set(w.leases()) == {lease_name(MAC)}


async def test_address_that_another_node_got_meanwhile_is_a_problem_and_its_lease_stays(tmp_path: Path):
    """As after an update from an agent that did not hold addresses."""
    async with cluster(tmp_path) as w:
        first, second = w.agent("w1"), w.agent("w2")
        await first.prepare(mac=MAC)
        w.fails = True
        await second.add("c1", "p", {"mac": MAC, "pf": "f1"})
        w.fails = False
        await second.compare()
        assert second.held.problems() == (
            (
                f"MAC {MAC} is in use on node w1 (Lease k8s-rdma/{lease_name(MAC)}), and a pod of this node "
                "has it, too"
            ),
        )
        await second.delete()
        await second.compare()
        assert second.held.problems() == ()
        assert w.leases() == {lease_name(MAC): "w1"}


async def test_mac_of_a_prepared_claim_is_reported_before_its_pod_has_it(tmp_path: Path):
    """So that the extender places no pod with it."""
    async with cluster(tmp_path) as w:
        agent = w.agent("w1")
        before = macs_of(agent.node.hardware, agent.node.ledger)
        await agent.prepare(mac=MAC)
        macs = macs_of(agent.node.hardware, agent.node.ledger)
        number = int(MAC.replace(":", ""), 16)
        assert macs.first_index_in([number]) is not None
        assert sum(last - first + 1 for first, last in macs) <= 1 + 2 * 8 + sum(1 for _ in before)
