"""Extenders on the API server stand-in's store, of which every call is sent, carried out and answered when a
test says so, or never."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import msgspec

from extender.node_server import PF0, held_interface, pf, report
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.extender.extender import BinderIdentity, Extender
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError, ApiUnreachableError
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.objects import BindingObject, LeaseObject, PodObject
from k8s_rdma.wire.extender import ExtenderBindingArgs, decode_args
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, generation_in
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from k8s_rdma.wire.report import RatesRefusal
from k8s_rdma_demo.cluster.bodies import merge_patch
from k8s_rdma_demo.cluster.delete_options import DeleteOptions
from k8s_rdma_demo.cluster.objects import LEASES, PODS, Target
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.status import StatusError
from k8s_rdma_demo.cluster.store import Store

if TYPE_CHECKING:
    from extender.virtual_loop import VirtualLoop
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.kube.api import PodBinding, PodView
    from k8s_rdma.kube.published_api import LeaseView
    from k8s_rdma.wire.node_facts import NodeFacts

VFS, MBPS = 3, 10_000
Held = list[tuple[str, int]]
"""Interfaces: the PF, and the reservation there, Mb/s."""
LEASE = Target(resource=LEASES, namespace="n", name="l")


def view(obj: dict[str, Any]) -> PodView:
    return msgspec.convert(obj, PodObject).view()


def pod(name: str) -> Target:
    return Target(resource=PODS, namespace="default", name=name)


@dataclass(eq=False, slots=True)
class Call:
    """A call under way: not sent yet, sent, or carried out; the replica hears of it when it is answered."""

    what: str
    act: Callable[[], Any]
    answer: asyncio.Future[Any]
    sent: bool = False
    result: Callable[[], Any] | None = None

    def carry_out(self) -> None:
        try:
            found = self.act()
        except StatusError as error:
            code, message = error.code, error.message
            self.result = lambda: _raise(ApiRefusedError(f"{self.what}: {message}", status=code))
        else:
            self.result = lambda: found


def _raise(error: Exception) -> None:
    raise error


@dataclass(eq=False, slots=True)
class Wire:
    """Everything that a replica asks anyone: `ClusterApi`, `LeaseApi` and `NodeSource`.

    seen: the revision that the pod watch has reached. lost: the watch is lost, and sends no more events.
    """

    cluster: Cluster
    calls: list[Call] = field(default_factory=list)
    seen: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    state: ClusterState = field(default_factory=ClusterState)

    async def call(self, what: str, act: Callable[[], Any]) -> Any:
        call = Call(what, act, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        try:
            return (await call.answer)()
        finally:
            if call in self.calls:  # its process died: if it was sent, it may still be carried out
                self.calls.remove(call)
                self.cluster.leave(call)

    def answer(self, call: Call) -> None:
        self.calls.remove(call)
        call.answer.set_result(call.result)

    def fail(self, call: Call) -> None:
        """No connection, or no answer; if the call was sent, it may still be carried out."""
        self.calls.remove(call)
        self.cluster.leave(call)
        error = ApiUncertainError if call.sent else ApiUnreachableError
        call.answer.set_result(lambda: _raise(error(f"{call.what}: no answer")))

    async def get_pod(self, _namespace: str, name: str) -> PodView | None:
        try:
            return cast(
                "PodView", await self.call(f"get {name}", lambda: view(self._registry.get(pod(name))))
            )
        except ApiRefusedError:
            return None

    async def bind_pod(self, binding: PodBinding) -> None:
        document = msgspec.to_builtins(BindingObject.from_binding(binding))
        if not self.cluster.versions:
            document["metadata"].pop("resourceVersion")
        what = f"bind {binding.name} to {binding.node}"
        await self.call(what, lambda: self._registry.bind(pod(binding.name), document))

    async def touch_pod(self, which: Pod, key: str, value: str) -> PodView:
        patch = {"metadata": {"uid": which.uid, "annotations": {key: value}}}

        def act() -> PodView:
            return view(self._registry.patch(pod(which.name), lambda old: merge_patch(old, patch)))

        return cast("PodView", await self.call(f"touch {which.name}", act))

    async def annotate_version(self, which: Pod, version: str, annotations: Mapping[str, str]) -> None:
        meta: dict[str, Any] = {"uid": which.uid, "annotations": dict(annotations)}
        if self.cluster.versions:
            meta["resourceVersion"] = version
        patch = {"metadata": meta}
        await self.call(
            f"annotate {which.name}",
            lambda: self._registry.patch(pod(which.name), lambda old: merge_patch(old, patch)),
        )

    async def get_lease(self, _namespace: str, _name: str) -> LeaseView | None:
        def act() -> LeaseView:
            return msgspec.convert(self._registry.get(LEASE), LeaseObject).view()

        try:
            return cast("LeaseView", await self.call("get lease", act))
        except ApiRefusedError:
            return None

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        written = msgspec.to_builtins(LeaseObject.from_view(lease))

        def act() -> LeaseView:
            if not lease.version:
                stored = self._registry.create(LEASE, written)
            else:
                stored = self._registry.patch(LEASE, lambda old: merge_patch(old, written))
            return msgspec.convert(stored, LeaseObject).view()

        return cast("LeaseView", await self.call(f"write lease of {lease.holder}", act))

    async def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        def items() -> tuple[int, tuple[PodView, ...]]:
            found = tuple(view(obj) for obj in self.cluster.store.items(PODS))
            return self.cluster.store.revision, found

        self.lost = False
        at, listed = await self.call("list pods", items)
        self.seen = max(self.seen, at)
        yield Listed(listed)
        while True:
            upto = self.seen
            for change in self.cluster.store.changes_after(at):
                if change.resource == PODS and change.revision <= upto:
                    seen = view(change.object)
                    yield Deleted(seen) if change.type == "DELETED" else Changed(seen)
            at = max(at, upto)
            while self.seen <= at:
                self.told.clear()
                await self.told.wait()
                if self.lost:
                    raise ApiUncertainError("watch pods: connection lost")

    def tell(self, upto: int) -> None:
        """Let the watch send the writes up to this revision."""
        self.seen = max(self.seen, upto)
        self.told.set()

    def lose_watch(self) -> None:
        """It sends no further events, and is to be opened again."""
        self.lost = True
        self.told.set()

    async def request_report(self, node: NodeName) -> None:
        asked_at = asyncio.get_running_loop().time()
        try:
            facts = await self.call(f"ask {node}", lambda: self.cluster.facts(node))
        except (ApiUncertainError, ApiUnreachableError) as error:
            self.state.lose(node, error.message)
        else:
            self.state.observe(node, facts, asked_at)

    def source(self, state: ClusterState) -> Wire:
        """Its reports go there."""
        self.state = state
        return self

    def awaited(self) -> int:
        return 0

    def addresses(self, node: NodeName) -> tuple[str, ...]:
        return ()

    def sources(self) -> Counter[tuple[str, ...]]:
        return Counter()

    def oldest_s(self) -> float:
        return 0.0

    def readings(self) -> dict[str, Any]:
        return {}

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        for node in nodes:
            heard = self.state.heard_at(node)
            if heard is None or heard < newer_than:
                await self.request_report(node)

    async def deliver(self, node: NodeName, placement: str) -> str:
        if node not in self.cluster.agents:
            return ""
        try:
            return cast(
                "str",
                await self.call(f"deliver to {node}", lambda: self.cluster.deliver(node, placement)),
            )
        except (ApiUncertainError, ApiUnreachableError):
            return ""

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        pass

    @property
    def _registry(self) -> Registry:
        return self.cluster.registry


@dataclass(eq=False, slots=True)
class Replica:
    """An extender's process. paused: no message goes out or comes in."""

    name: str
    wire: Wire
    extender: Extender
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    paused: bool = False

    @property
    def leads(self) -> bool:
        return self.extender.leadership.holds()


@dataclass(eq=False, slots=True)
class Cluster:
    """Store, nodes with the interfaces of their pods, and replicas.

    pfs: of each node. versions: whether Bindings carry the pod's version. keys: sign placements. generations:
    of the rates that nodes have programmed, by pod. refused: the generation, and its interfaces, whose rates
    the node has not programmed although it tried, by pod. late: calls without a waiting caller, which
    may be carried out at any time. agents: those without credentials, by node. starts: of each agent.
    delivered: all that extenders sent to them.
    """

    nodes: dict[NodeName, dict[str, Held]]
    pfs: tuple[str, ...] = (PF0,)
    store: Store = field(default_factory=Store)
    versions: bool = True
    keys: PlacementKeys | None = None
    generations: dict[str, int] = field(default_factory=dict)
    refused: dict[str, tuple[int, Held]] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    late: list[Call] = field(default_factory=list)
    agents: dict[NodeName, NoCluster] = field(default_factory=dict)
    starts: Counter[NodeName] = field(default_factory=Counter)
    delivered: list[str] = field(default_factory=list)
    made: int = 0
    pods: dict[str, str] = field(default_factory=dict)
    registry: Registry = field(init=False)

    def __post_init__(self) -> None:
        self.registry = Registry(store=self.store)

    # the world

    def leave(self, call: Call) -> None:
        if call.sent and call.result is None:
            self.late.append(call)

    def create(self, *rates: int) -> str:
        name = f"p{len(self.pods)}"
        asked = json.dumps([{"min_tx_rate": rate} for rate in rates])
        meta = {"name": name, "annotations": {"rdma_interfaces_required": asked}}
        spec = {"containers": [{"name": "c", "image": "lab.local/busybox:1"}]}
        stored = self.registry.create(pod(name), {"metadata": meta, "spec": spec})
        self.pods[name] = stored["metadata"]["uid"]
        return name

    def find(self, name: str) -> dict[str, Any] | None:
        return self.store.get(PODS, ("default", name))

    def alive(self) -> list[str]:
        return [name for name in self.pods if self.find(name) is not None]

    def node_of(self, name: str) -> str | None:
        found = self.find(name)
        return found["spec"].get("nodeName") if found else None

    def promised(self, name: str) -> Held:
        found = self.find(name)
        assert found is not None
        text = found["metadata"]["annotations"][PLACEMENT_ANNOTATION]
        return [(each["pf"], each["min_tx_rate"]) for each in json.loads(text)["interfaces"]]

    def generation(self, name: str) -> int:
        found = self.find(name)
        return generation_in(found["metadata"]["annotations"][PLACEMENT_ANNOTATION]) if found else 0

    def ask(self, name: str, rates: Sequence[int]) -> None:
        """The pod's owner edits its reservations."""
        asked = json.dumps([{"min_tx_rate": rate} for rate in rates])
        patch = {"metadata": {"annotations": {"rdma_interfaces_required": asked}}}
        self.registry.patch(pod(name), lambda old: merge_patch(old, patch))

    def delete(self, name: str) -> None:
        if self.find(name) is not None:
            self.registry.delete(pod(name), DeleteOptions(grace_period_s=0))

    def edit(self, name: str) -> None:
        """Somebody else writes to the pod, its status for example."""
        if self.find(name) is not None:
            note = {"metadata": {"annotations": {"note": str(self.store.revision)}}}
            self.registry.patch(pod(name), lambda old: merge_patch(old, note))

    def start(self, name: str) -> None:
        """The pod's node gives it the promised interfaces, or programs a later generation of them."""
        if (node := self.node_of(name)) is not None:
            self.nodes[NodeName(node)][self.pods[name]] = self.promised(name)
            self.generations[self.pods[name]] = self.generation(name)
            self.refused.pop(self.pods[name], None)

    def refuse(self, name: str) -> None:
        """The pod's node does not program its latest generation, and will try again."""
        uid = self.pods[name]
        if uid in self.generations and self.generation(name) > self.generations[uid]:
            self.refused[uid] = self.generation(name), self.promised(name)

    def retry(self, name: str) -> None:
        """The node programs the refused generation, even if there is a later one by now."""
        node, uid = self.node_of(name), self.pods[name]
        if node is None or uid not in self.nodes[NodeName(node)]:
            return
        generation, held = self.refused.pop(uid, (0, []))
        if generation > self.generations[uid]:
            self.nodes[NodeName(node)][uid], self.generations[uid] = held, generation

    def stop(self, name: str) -> None:
        """The pod's sandbox is gone, for good or to be made again."""
        for held in self.nodes.values():
            held.pop(self.pods[name], None)

    def facts(self, node: NodeName) -> NodeFacts:
        held = self.nodes[node]
        told = report(node, *(pf(pci, vfs=VFS, mbps=MBPS) for pci in self.pfs), held=dict.fromkeys(held, ()))
        allocations = tuple(
            msgspec.structs.replace(
                each,
                interfaces=tuple(held_interface(*taken) for taken in held[each.pod.uid]),
                generation=self.generations.get(each.pod.uid, 0),
                refused=self._refusal(each.pod.uid),
            )
            for each in told.allocations
        )
        epoch = f"epoch{self.starts[node]}.1"
        return facts_of(msgspec.structs.replace(told, generation=epoch, allocations=allocations), node)

    # agents without credentials

    def start_agent(self, node: NodeName) -> None:
        """Start the node's agent, or restart it: with its ledger, and no placement that was delivered."""

        def generations() -> dict[PodUid, int]:
            return {PodUid(uid): self.generations[uid] for uid in self.nodes[node]}

        self.starts[node] += 1
        self.agents[node] = NoCluster(node, FixedKeys(self.keys), generations)
        for uid in self.nodes[node]:
            self.refused.pop(uid, None)

    def deliver(self, node: NodeName, placement: str) -> str:
        """Return why the agent refuses a placement, as the node's server answers."""
        self.delivered.append(placement)
        try:
            self.agents[node].deliver(placement.encode())
        except K8sRdmaError as error:
            return error.message
        return ""

    def program(self, name: str, *, fails: bool = False) -> None:
        """Have the node's agent program the delivered placement, if it fits beside those of others."""
        node, uid = NodeName(self.node_of(name) or ""), PodUid(self.pods[name])
        placement = self.agents[node].placements().get(uid) if node in self.agents else None
        if placement is None or placement.generation <= self.generations[uid]:
            return
        held: Held = [(each.pf, each.min_tx_rate_mbps) for each in placement.interfaces]
        others = (taken for other, taken in self.nodes[node].items() if other != uid)
        if fails or sum(rate for taken in (held, *others) for _, rate in taken) > MBPS:
            self.refused[uid] = placement.generation, held
        else:
            self.nodes[node][uid], self.generations[uid] = held, placement.generation
            self.refused.pop(uid, None)

    def _refusal(self, uid: str) -> RatesRefusal | None:
        generation, _ = self.refused.get(uid, (0, []))
        return RatesRefusal(generation=generation, message="no") if generation else None

    def steal_lease(self, holder: str | None) -> None:
        """Somebody who is no extender deletes the Lease, or writes itself into it."""
        if self.store.get(LEASES, ("n", "l")) is None:
            return
        if holder is None:
            self.registry.delete(LEASE, DeleteOptions())
        else:
            self.registry.patch(LEASE, lambda old: merge_patch(old, {"spec": {"holderIdentity": holder}}))

    def taken(self, node: NodeName) -> Held:
        """Return each pod's use there by the API server or by the node itself, the larger of both."""
        placements = {
            self.pods[name]: self.promised(name) for name in self.pods if self.node_of(name) == node
        }
        taken: Held = []
        for uid in {**placements, **self.nodes[node]}:
            promised, held = placements.get(uid), self.nodes[node].get(uid)
            if promised is None or held is None or uid not in self.generations:
                taken += held or promised or []
            else:
                taken += [
                    (pci, max(rate, other)) for (pci, rate), (_, other) in zip(promised, held, strict=True)
                ]
        return taken

    def check(self) -> None:
        for node, pci in product(self.nodes, self.pfs):
            taken = [rate for where, rate in self.taken(node) if where == pci]
            assert sum(taken) <= MBPS, f"{node}: {taken} Mb/s reserved on {pci}"
            assert len(taken) <= VFS, f"{node}: {taken} on {VFS} VFs of {pci}"

    # the extenders

    def start_replica(self) -> Replica:
        """A process, that runs."""
        self.made += 1
        name, loop = f"extender-{self.made}", asyncio.get_running_loop()
        wire = Wire(self)
        config = LeaderElectionConfig(namespace="n", name="l", holder=name, lease_s=15)
        lease = LeaderElector(wire, config, loop.time)
        extender = Extender(
            ExtenderConfig(),
            wire,
            BinderIdentity(lease=lease, keys=FixedKeys(self.keys)),
            clock=loop.time,
            source=wire.source,
        )
        extender.nodes.on_event(Listed(()))
        replica = Replica(name, wire, extender)
        replica.tasks.append(loop.create_task(_process(extender)))
        self.replicas.append(replica)
        return replica

    async def crash(self, replica: Replica) -> None:
        """kill -9."""
        self.replicas.remove(replica)
        for task in replica.tasks:
            task.cancel()
        await asyncio.gather(*replica.tasks, return_exceptions=True)

    def bind(self, replica: Replica, name: str, node: NodeName) -> asyncio.Task[str]:
        """The scheduler has it bound."""
        args = ExtenderBindingArgs(
            pod_name=name, pod_namespace="default", pod_uid=PodUid(self.pods[name]), node=node
        )
        task = asyncio.get_running_loop().create_task(replica.extender.binder.bind(args))
        replica.tasks.append(task)
        return task

    def schedule(self, replica: Replica, name: str) -> asyncio.Task[str]:
        """Let the scheduler filter, and have the pod bound to the last node that fits."""
        found = self.find(name)
        body = json.dumps({"Pod": found, "Nodes": None, "NodeNames": list(self.nodes)}).encode()

        async def filter_and_bind() -> str:
            told = await replica.extender.scheduling.filter(decode_args(body))
            if told.error or not told.node_names:
                return told.error or "fits nowhere"
            return await self.bind(replica, name, NodeName(told.node_names[-1]))

        task = asyncio.get_running_loop().create_task(filter_and_bind())
        replica.tasks.append(task)
        return task

    def step(self, replica: Replica) -> bool:
        """The next stage of the replica's oldest call; whether there was one."""
        if replica.paused or not replica.wire.calls:
            return False
        call = replica.wire.calls[0]
        if not call.sent:
            call.sent = True
        elif call.result is None:
            call.carry_out()
        else:
            replica.wire.answer(call)
        return True

    async def run(self, *replicas: Replica) -> None:
        """Run until these are idle."""
        await self.settle(*replicas, watching=True)

    async def settle(self, *replicas: Replica, watching: bool = False) -> None:
        """Until the calls of these are answered. watching: their watches tell everything as well."""
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        await loop.settle()
        for _ in range(1_000):
            moved = [self.step(each) for each in replicas]
            for each in replicas:
                if watching and not each.paused:
                    each.wire.tell(self.store.revision)
            await loop.settle()
            if not any(moved):
                return
        raise AssertionError("it never comes to rest")


async def _process(extender: Extender) -> None:
    async with extender.pod_writer, asyncio.TaskGroup() as tasks:
        tasks.create_task(extender.rate_changes.run())
        await extender.leadership.run()
