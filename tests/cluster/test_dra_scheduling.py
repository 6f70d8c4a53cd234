"""Claims that real kube-schedulers allocate and agents prepare: no PF has more reserved than its link has."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agent.machine import Machine as Judge
from cluster.control_plane import write_kubeconfig
from cluster.controllers import controllers
from cluster.nodes import node_object
from cluster.processes import Program as Running
from cluster.real import EMULATED, real
from cluster.test_dra_examples import (
    GPUS,
    REQUESTS,
    SCHEDULER,
    WHY_NOT,
    claim_and_pod,
    create,
    gpu_slice,
    pf,
    pod_with,
)
from cluster.test_dra_policies import API, SINCE, SLICES
from cluster.world import Cluster, cluster
from e2e.conftest import PLUGINS, build_dir, program, require_plugins
from e2e.node import LINK_MBPS, Node
from factories import PF0, PF1
from fakes.machine import FakePf
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.ledger_store import CLAIMS_DIRECTORY
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse
from k8s_rdma.kube.grpc_calls import call, connect
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.claims import DRIVER, ClaimAnswer, ClaimName, Offers, Prepare, decode_offers
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, RegistrationStatus
from k8s_rdma.wire.resource_slice import slice_name, slice_specs
from k8s_rdma_demo.cluster.resource_slices import CONSUMABLE_CAPACITY
from policies import EVERYTHING_FILE
from process_status import processor_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from cluster.control_plane import Json
    from cni.call import Program
    from k8s_rdma.agent.node import Node as AgentNode
    from k8s_rdma.core.ledger import Ledger

__all__ = ["build_dir", "program"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no real cluster: {WHY_NOT}"),
]
DEADLINE_S = 280
CLAIMS = f"{API}/namespaces/default/resourceclaims"
RETRY_S = 0.2

NODES, PODS, POD_MBPS = ("w1", "w2", "w3", "w4"), 40, LINK_MBPS // 4
"""Two PFs each: 32 places."""

OVERFLOW_MBPS = 9_300_000_000_000
"""In bits/s it has no place in 63 bits once it is rounded up."""

MANY_NODES, MANY_PODS, WRITERS = 100, 800, 16
FAKE_LINK_MBPS = 100_000
"""Of fake nodes' two PFs, which the pods fill."""
FAKE_VFS = 8
CONSUMED = "25G"

SEARCHES, SEARCH_S = 60, 0.2
"""Twice the most that was measured; with the smallest requests first kube-scheduler gives up after 10 s."""
PAIRS, PAIRS_S = 8, 1.5
PAIRED_PFS_MBPS = (*(25_000,) * (PAIRS - 1), 20_000)
"""The last one has less than a request of an interface."""
ORDERS = ("pairs", "GPUs first", "interfaces first")
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
USUAL_MBPS = (0, 1_000, 2_000, 5_000, 10_000, 20_000, 25_000, 40_000, 50_000)


async def create_class(c: Cluster) -> None:
    if c.plane.release < SINCE:
        pytest.skip(f"Kubernetes {c.plane.release}: capacities of claims are of {SINCE} and later")
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    document = {"metadata": {"name": "rdma"}, "spec": {"selectors": [selector]}}
    made = await c.http.post(f"{API}/deviceclasses", json=document)
    assert made.status_code == 201, made.text


async def create_pod(c: Cluster, name: str, mbps: int, **spec: Any) -> None:
    """A pod with one interface by a claim of its name."""
    request = {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": f"{mbps}M"}}}
    document = {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "net", "exactly": request}]}},
    }
    made = await c.http.post(CLAIMS, json=document)
    assert made.status_code == 201, made.text
    await c.create_pod(name, resourceClaims=[{"name": "net", "resourceClaimName": name}], **spec)


async def allocated(c: Cluster) -> dict[str, Json]:
    """Claims by name, all allocated."""
    claims = (await c.http.get(CLAIMS)).json()["items"]
    assert all("allocation" in claim.get("status", {}) for claim in claims)
    return {claim["metadata"]["name"]: claim for claim in claims}


def result_of(claim: Json) -> Json:
    [result] = claim["status"]["allocation"]["devices"]["results"]
    return result


@dataclass
class Machine:
    """A node of virtual SR-IOV with its own agent and driver, in one network namespace with the others."""

    name: str
    host: Node
    processes: list[subprocess.Popen[bytes]]

    @property
    def run_dir(self) -> Path:
        return self.host.directory / f"run-{self.name}"

    @property
    def state_dir(self) -> Path:
        return self.host.directory / f"state-{self.name}"

    def start(self, kubeconfig: Path) -> None:
        host, directory = self.host, self.host.directory / self.name
        pfs = [each.name for each in host.pfs if each.name.startswith(self.name)]
        agent = {
            **host.document(),
            "node": self.name,
            "runDir": str(self.run_dir),
            "stateDir": str(self.state_dir),
            "cdiDir": str(directory / "cdi"),
            "policyFile": EVERYTHING_FILE,
            "hardware": {"pfs": [{"names": pfs, "use": "claims"}]},
        }
        driver = {
            "resources": [],
            "runDir": str(self.run_dir),
            "port": None,
            "node": self.name,
            "kubeconfig": str(kubeconfig),
            "claims": {"registryDir": str(directory), "pluginsDir": str(directory), "uid": "u"},
        }
        for command, document in (("agent", agent), ("device-plugin", driver)):
            config = host.config(f"{command}-{self.name}", document)
            self.processes.append(host.start(command, config))

    async def register(self) -> None:
        """Register the driver as kubelet does: then it publishes its slice."""
        socket = self.host.directory / self.name / f"{DRIVER}-u-reg.sock"
        while not socket.exists():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(RETRY_S)
        async with connect(socket) as channel:
            await call(channel, GET_INFO, None, timeout_s=5)
            await call(channel, NOTIFY, RegistrationStatus(registered=True), timeout_s=5)

    async def prepare(self, claims: Iterable[ClaimName]) -> dict[str, ClaimAnswer]:
        """Prepare each claim by itself, as kubelet does for each pod."""
        socket = self.host.directory / self.name / DRIVER / "dra-u.sock"
        async with connect(socket) as channel:
            answers = await asyncio.gather(
                *(call(channel, PREPARE, (claim,), timeout_s=45) for claim in claims)
            )
        return {uid: answer for each in answers for uid, answer in each.items()}

    async def ledger(self) -> Ledger:
        """End the processes; the ledger that the agent wrote."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            await asyncio.to_thread(process.wait, self.host.deadline_s)
        with closing(Receipts(self.state_dir / "ledger.db")) as receipts:
            return receipts.load()


@pytest.fixture
def machines(program: Program) -> Iterator[list[Machine]]:
    require_plugins()
    names = tuple(f"{node}f{index}" for node in NODES for index in range(2))
    with Node(vfs=8, plugins=PLUGINS, shim=program.path, names=names) as host:
        yield [Machine(node, host, []) for node in NODES]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - the API server's objects
        await asyncio.sleep(RETRY_S)


async def run_machines(c: Cluster, *machines: Machine) -> None:
    """Start agents and drivers of nodes, and wait until all have published their PFs."""
    await create_class(c)
    kubeconfig = write_kubeconfig(c.directory / "drivers.kubeconfig", c.plane, c.plane.admin_token)
    for machine in machines:
        await c.create(node_object(machine.name, "192.0.2.1", {}))
        machine.start(kubeconfig)
    await asyncio.gather(*(machine.register() for machine in machines))

    async def published() -> bool:
        return len((await c.http.get(SLICES)).json()["items"]) == len(machines)

    await until(published)


async def test_agents_refuse_claims_that_two_schedulers_gave_twice(machines: list[Machine], tmp_path: Path):
    """Each scheduler fills the PFs by itself; no ledger goes above a link, and refusals have numbers."""
    async with cluster("real", tmp_path, deadline_s=DEADLINE_S) as c:
        await run_machines(c, *machines)
        second = SCHEDULER | {"profiles": [{"schedulerName": "second"}]}
        async with c.plane.scheduler(SCHEDULER), c.plane.scheduler(second):
            for number, scheduler in enumerate(("default-scheduler", "second")):  # both are there
                await create_pod(c, f"first-{number}", 0, schedulerName=scheduler)
                await c.bound(f"first-{number}")
            await asyncio.gather(
                *(
                    create_pod(c, f"p{number}", POD_MBPS, schedulerName=scheduler)
                    for number, scheduler in enumerate(("default-scheduler", "second") * (PODS // 2))
                )
            )
            pods = await c.some_bound(PODS + 2)
        claims = await allocated(c)
        by_node: defaultdict[str, list[ClaimName]] = defaultdict(list)
        for pod in pods:
            meta = claims[pod["metadata"]["name"]]["metadata"]
            name = ClaimName(namespace="default", name=meta["name"], uid=meta["uid"])
            by_node[pod["spec"]["nodeName"]].append(name)
        answers: dict[str, ClaimAnswer] = {}
        for found in await asyncio.gather(*(each.prepare(by_node[each.name]) for each in machines)):
            answers |= found
        check(claims, answers)
        for machine in machines:
            await check_ledger(machine, claims, answers)


def check(claims: dict[str, Json], answers: dict[str, ClaimAnswer]) -> None:
    """Of each PF as many claims are prepared as its link has; the others are refused with its numbers."""
    sold: Counter[str] = Counter()
    prepared: Counter[str] = Counter()
    for name, claim in claims.items():
        if name.startswith("first"):
            continue
        device, answer = result_of(claim)["device"], answers[claim["metadata"]["uid"]]
        sold[device] += POD_MBPS
        if not answer.error:
            prepared[device] += POD_MBPS
        else:
            needs = f"PF {device}: the claim needs {POD_MBPS} Mb/s; 0 of {LINK_MBPS} are unreserved"
            assert needs in answer.error
    assert sum(sold.values()) == PODS * POD_MBPS
    assert max(sold.values()) > LINK_MBPS, "the schedulers did not collide: this says nothing"
    assert prepared == {device: min(mbps, LINK_MBPS) for device, mbps in sold.items()}


async def check_ledger(machine: Machine, claims: dict[str, Json], answers: dict[str, ClaimAnswer]) -> None:
    """The ledger has the prepared claims and no more; only their pods have a marker."""
    ledger = await machine.ledger()
    prepared = {
        claim["metadata"]["uid"]: claim["status"]["reservedFor"][0]["uid"]
        for claim in claims.values()
        if not answers[claim["metadata"]["uid"]].error and result_of(claim)["pool"] == machine.name
    }
    assert {uid: claim.pod.uid for uid, claim in ledger.claims.items()} == prepared
    markers = {path.name for path in (machine.run_dir / CLAIMS_DIRECTORY).iterdir()}
    assert markers == set(prepared.values())


@pytest.mark.parametrize("release", EMULATED)
async def test_releases_with_the_gate_allocate_claims_that_the_agent_judges(
    machines: list[Machine], tmp_path: Path, release: str
):
    """Two pods fill the PFs but for a third one; a quantity that overflows is granted as 0, and refused."""
    machine, mbps = machines[0], LINK_MBPS * 6 // 10
    plane = partial(real, gates=(CONSUMABLE_CAPACITY,), emulated=release)
    async with cluster(plane, tmp_path, deadline_s=DEADLINE_S) as c:
        await run_machines(c, machine)
        async with c.plane.scheduler(SCHEDULER):
            for name, requested_mbps in {"p": mbps, "q": mbps, "overflow": OVERFLOW_MBPS}.items():
                await create_pod(c, name, requested_mbps)
                await c.bound(name)
            claims = await allocated(c)
            await create_pod(c, "none", mbps)
            assert "cannot allocate all claims" in await c.event("none", "FailedScheduling")
        consumed = {name: result_of(claim)["consumedCapacity"]["bandwidth"] for name, claim in claims.items()}
        assert consumed == {"p": f"{mbps}M", "q": f"{mbps}M", "overflow": "0"}
        pfs = [result_of(claims[name])["device"] for name in ("p", "q")]
        assert len(set(pfs)) == len(pfs)
        names = {
            name: ClaimName(namespace="default", name=name, uid=claim["metadata"]["uid"])
            for name, claim in claims.items()
        }
        answers = await machine.prepare(names.values())
        errors = {name: answers[each.uid].error for name, each in names.items()}
        assert "0 is less than the" in errors.pop("overflow")
        assert errors == {"p": "", "q": ""}
        await until(partial(is_refused, c, "overflow"))
        machine.host.ip("link", "set", pfs[0], "down")
        await until(partial(offers_alone, c, pfs[1]))  # taints are alpha in these releases
        claims = (await machine.ledger()).claims
    assert claims.keys() == {names["p"].uid, names["q"].uid}


async def is_refused(c: Cluster, claim: str) -> bool:
    """Report whether a claim's status says so of its only device, which the status names by its share."""
    devices = (await c.http.get(f"{CLAIMS}/{claim}")).json()["status"].get("devices", [])
    return [each["conditions"][0]["reason"] for each in devices if each["shareID"]] == ["PreparationRefused"]


async def offers_alone(c: Cluster, pf: str) -> bool:
    """Report whether there is one slice, with this PF and no other."""
    [found] = (await c.http.get(SLICES)).json()["items"]
    return [device["name"] for device in found["spec"]["devices"]] == [pf]


async def test_agents_prepare_exactly_the_claims_that_many_writers_allocated(tmp_path: Path):
    """kube-scheduler fills 100 agents' offers; their ledgers have the claims' consumption, then are empty."""
    pfs = tuple(
        FakePf(name=f"f{number}", pci=pci, vfs=FAKE_VFS, link_mbps=FAKE_LINK_MBPS)
        for number, pci in enumerate((PF0, PF1))
    )
    names = [f"n{number}" for number in range(MANY_NODES)]
    judges = {name: Judge(tmp_path / "nodes" / name, node=name, pfs=pfs) for name in names}
    for judge in judges.values():
        judge.rules = (PfRule(use=PfUse.CLAIMS),)
    async with cluster("real", tmp_path, deadline_s=DEADLINE_S) as c:
        await create_class(c)
        with running(judges) as nodes:
            specs = {name: await offered(node) for name, node in nodes.items()}
        await asyncio.gather(*(create_node(c, name, spec) for name, spec in specs.items()))
        questions = await fill(c, names)
    consumed = consumption(questions)
    assert consumed == {(name, pf.name): (FAKE_LINK_MBPS, 4) for name in names for pf in pfs}
    with running(judges):
        await asyncio.gather(*(judges[name].claim_commands.prepare(each) for name, each in questions))
    assert prepared(judges) == consumed
    with running(judges):  # after a restart
        await asyncio.gather(*(judges[name].claim_commands.unprepare(each.claim) for name, each in questions))
    assert prepared(judges) == {}
    assert all(judge.is_pristine() for judge in judges.values())


async def fill(c: Cluster, nodes: list[str]) -> list[tuple[str, Prepare]]:
    """Have many writers create pods until all nodes are full: kubelet's claims to prepare then, by node."""
    async with c.plane.scheduler(SCHEDULER):
        names = iter([f"p{number}" for number in range(MANY_PODS)])

        async def write() -> None:
            for name in names:
                await create_pod(c, name, FAKE_LINK_MBPS // 4)

        await asyncio.gather(*(write() for _ in range(WRITERS)))
        woken = asyncio.create_task(wake(c, nodes))
        pods = await c.some_bound(MANY_PODS)
        woken.cancel()
    claims = await allocated(c)
    return [(pod["spec"]["nodeName"], question_of(claims[pod["metadata"]["name"]], pod)) for pod in pods]


def question_of(claim: Json, pod: Json) -> Prepare:
    meta = claim["metadata"]
    return Prepare(
        claim=ClaimName(namespace="default", name=meta["name"], uid=meta["uid"]),
        resource=msgspec.Raw(msgspec.json.encode(claim)),
        pod=msgspec.Raw(msgspec.json.encode(pod)),
    )


Sums = dict[tuple[str, str], tuple[int, int]]
"""Mb/s and VFs, by node and PF."""


def sums(entries: Iterable[tuple[str, str, int]]) -> Sums:
    """Add up interfaces, each with its node, its PF and its Mb/s."""
    found: Sums = {}
    for node, pf_name, mbps in entries:
        total_mbps, vfs = found.get((node, pf_name), (0, 0))
        found[node, pf_name] = (total_mbps + mbps, vfs + 1)
    return found


def consumption(questions: list[tuple[str, Prepare]]) -> Sums:
    """The consumption that the scheduler wrote, on the node that it bound the pod to."""
    results = [(node, result_of(msgspec.json.decode(each.resource))) for node, each in questions]
    for node, result in results:
        assert result["pool"] == node
        assert result["consumedCapacity"] == {"bandwidth": CONSUMED, "vfs": "1"}
    return sums((node, result["device"], FAKE_LINK_MBPS // 4) for node, result in results)


@contextmanager
def running(judges: Mapping[str, Judge]) -> Iterator[dict[str, AgentNode]]:
    """All nodes' agents, each over its own ledger and kernel."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(judge.running())[0] for name, judge in judges.items()}


async def offered(node: AgentNode) -> Json:
    """The spec of the slice that an agent's PFs make."""
    publisher = ClaimOffers(node).publisher
    await publisher.publish()
    [spec] = slice_specs(decode_offers(await publisher.wait_for_change(None)))
    spec["pool"]["generation"] = 1
    return spec


def prepared(judges: Mapping[str, Judge]) -> Sums:
    """The reservations of claims in agents' ledgers on disk."""

    def interfaces() -> Iterator[tuple[str, str, int]]:
        for name, judge in judges.items():
            with closing(Receipts(judge.directory / "state" / "ledger.db")) as receipts:
                claims = receipts.load().claims.values()
            assert len({each.vf for claim in claims for each in claim.interfaces}) == len(claims)
            for each in (each for claim in claims for each in claim.interfaces):
                yield name, each.device, each.placed.min_tx_rate_mbps

    return sums(interfaces())


async def create_node(c: Cluster, name: str, spec: Json) -> None:
    """A Node object with a slice."""
    await c.create(node_object(name, "192.0.2.1", {}))
    made = await c.http.post(SLICES, json={"metadata": {"name": slice_name(name, 0)}, "spec": spec})
    assert made.status_code == 201, made.text


def slice_of(node: str, *pfs_mbps: int) -> Json:
    """The spec of a slice whose PFs have that bandwidth."""
    pfs = (msgspec.structs.replace(pf(each, mbps), vfs=FAKE_VFS) for each, mbps in enumerate(pfs_mbps))
    [spec] = slice_specs(Offers(node=node, pfs=tuple(pfs)))
    spec["pool"]["generation"] = 1
    return spec


async def wake(c: Cluster, nodes: list[str]) -> None:
    """Annotate slices as drivers do: kube-scheduler then retries pods that it refused by counting twice."""
    for number in itertools.count():
        path = f"{SLICES}/{slice_name(nodes[number % len(nodes)], 0)}"
        await c.patch(path, {"metadata": {"annotations": {"k8s-rdma.io/touched": str(number)}}})
        await asyncio.sleep(1)


@pytest.mark.parametrize("pfs", [2, 4, 8])
async def test_search_is_short_for_templates_made_of_annotations(tmp_path: Path, pfs: int):
    """Of usual rates on nearly full PFs, largest first: decided in little processor time."""
    usual, taken_s = random.Random(pfs), []
    async with cluster("real", tmp_path, deadline_s=DEADLINE_S) as c:
        await create_class(c)
        await create_node(c, "w1", slice_of("w1", FAKE_LINK_MBPS))
        async with (
            controllers(c.plane, "resourceclaim-controller"),
            c.plane.scheduler(SCHEDULER) as scheduler,
        ):
            assert isinstance(scheduler, Running)
            for number in range(SEARCHES):
                spec = slice_of("w1", *(usual.randrange(5, 60) * 1_000 for _ in range(pfs)))
                spec["pool"]["generation"] = number + 2
                await c.patch(f"{SLICES}/{slice_name('w1', 0)}", {"spec": spec})
                rates = usual.choices(USUAL_MBPS, k=usual.randint(1, 16))
                _, objects = pod_with(f"p{number}", json.dumps([{"min_tx_rate": rate} for rate in rates]))
                started_s = processor_s(scheduler.process.pid)
                await c.when(await create(c, *objects), is_decided)
                taken_s.append(processor_s(scheduler.process.pid) - started_s)
                await c.http.delete(f"/api/v1/namespaces/default/pods/p{number}?gracePeriodSeconds=0")
                await c.http.delete(CLAIMS)  # no garbage collector runs
                await until(partial(is_empty, c))
    assert max(taken_s) < SEARCH_S, taken_s


async def test_gpus_are_decided_sooner_in_pairs_with_interfaces_or_after_them(tmp_path: Path):
    """As many GPUs as PFs, each pair below one PCIe root; one PF is full: one pair less fits."""
    taken_s: dict[tuple[str, int], float] = {}
    async with cluster("real", tmp_path, deadline_s=DEADLINE_S) as c:
        await create_class(c)
        await c.create(node_object("w1", "192.0.2.1", {}))
        selector = {"cel": {"expression": f"device.driver == '{GPUS}'"}}
        for path, document in (
            (f"{API}/deviceclasses", {"metadata": {"name": GPUS}, "spec": {"selectors": [selector]}}),
            (SLICES, {"metadata": {"name": "gpus"}, "spec": gpu_slice(PAIRS)}),
            (SLICES, {"metadata": {"name": slice_name("w1", 0)}, "spec": slice_of("w1", *PAIRED_PFS_MBPS)}),
        ):
            made = await c.http.post(path, json=document)
            assert made.status_code == 201, made.text
        async with (
            controllers(c.plane, "resourceclaim-controller"),
            c.plane.scheduler(SCHEDULER) as scheduler,
        ):
            assert isinstance(scheduler, Running)
            for count in (PAIRS - 1, PAIRS):
                for order in ORDERS:
                    started_s = processor_s(scheduler.process.pid)
                    pod = await c.when(await create(c, *paired(order, count)), is_decided)
                    taken_s[order, count] = processor_s(scheduler.process.pid) - started_s
                    assert ("nodeName" in pod["spec"]) == (count < PAIRS)
                    await c.http.delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0")
                    await c.http.delete(CLAIMS)
                    await until(partial(is_empty, c))
    slowest_s = taken_s.pop(("GPUs first", PAIRS))
    assert max(taken_s.values()) < min(slowest_s, PAIRS_S), taken_s


def paired(order: str, count: int) -> tuple[Json, Json]:
    """A claim of so many GPUs, each with an interface below its PCIe root, and a pod."""
    numbers = range(count)
    kinds = ["net", "gpu"] if order == "interfaces first" else ["gpu", "net"]
    names = [(kind, number) for number in numbers for kind in kinds]
    if order != "pairs":
        names = [(kind, number) for kind in kinds for number in numbers]
    requests = {f"{kind}-{number}": REQUESTS[kind] for kind, number in names}
    pairs = ([f"{kind}-{number}" for kind in kinds] for number in numbers)
    matched = [{"requests": pair, "matchAttribute": PCIE_ROOT} for pair in pairs]
    return claim_and_pod("p", requests, constraints=matched)


def is_decided(pod: Json) -> bool:
    """Whether a scheduler has bound the pod, or refused it for its claims."""
    conditions = pod["status"].get("conditions", [])
    refused = any("allocate" in each.get("message", "") for each in conditions)
    return refused or "nodeName" in pod["spec"]


async def is_empty(c: Cluster) -> bool:
    return not (await c.http.get(CLAIMS)).json()["items"]
