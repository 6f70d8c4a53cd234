"""Pods by ResourceClaims that come and go on a node whose agent and driver are killed at any of their acts.

Scheduler, kubelet and runtime are played as they behave (Kubernetes 1.36); agent and driver are real, and so
are the socket between them, the ledger and all files. One seed decides everything, and no time is lost in
waiting: it passes when no other work is left.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from agent.crash_cluster import ANNOTATIONS, stdin
from agent.machine import call
from agent.mortal import CrashError, Fate, Life, MortalPod, World, disk
from cdi_documents import decode_specification
from fakes.slices import FakeSlices
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.claims import ClaimsSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.config.devices import ClaimsConfig, DevicePluginConfig
from k8s_rdma.core.allocation import used_locally
from k8s_rdma.core.claims import offers
from k8s_rdma.core.ledger import Phase
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.core.pf_selection import ClaimsPart, PfRule
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import PfUse
from k8s_rdma.deviceplugin.dra import DraDriver
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.claims import ClaimAnswer, ClaimName
from resource_claims import claim, interface, of_pod
from resource_claims import pod as pod_object

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from k8s_rdma.core.ledger import LedgerClaim
    from k8s_rdma.wire.cdi import CdiDevice

NETWORK = "alone"
RULES = (
    PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS),
    PfRule(names=frozenset({"f1"}), claims=ClaimsPart(vfs=2, mbps=50_000)),
)
OFFERED = {"f0": (100_000, 3), "f1": (50_000, 2)}
"""Mb/s and VFs for claims, by PF; another VF of f0 is an exclusive device."""

PODS, KILLS = 8, 8
"""Of a walk."""

MOST_ACTS = (8, 25, 60)
"""The most acts between two kills, one of these in each walk."""

MOST_FAILURES = 3
"""A pod that does not start is deleted in the end."""

HOW = ("before", "halfway", "after")
"""When an act is cut short."""

DEADLINES_S = (2.0, 2.0, 45.0)
"""Kubelet's for a call (pkg/kubelet/cm/dra/plugin), or until its restart."""

RECONCILE_S = 10.0
LONGEST_S = 7200.0
"""Of a walk, in its own time, which takes no other."""


class HastyLoop(asyncio.SelectorEventLoop):
    """A loop with a time that passes as soon as no other work is left, on other threads as well."""

    def __init__(self) -> None:
        super().__init__(_Hasty(self))
        self.passed_s = 0.0
        self.on_threads: set[asyncio.Future[Any]] = set()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        work: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self.on_threads.add(work)
        work.add_done_callback(self.on_threads.discard)
        return work

    def time(self) -> float:
        return self.passed_s


class _Hasty(selectors.SelectSelector):
    def __init__(self, loop: HastyLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        at_work = self._loop.on_threads and timeout != 0
        if ready := super().select(None if at_work else 0):
            return ready
        if timeout is None:
            raise AssertionError("everything waits for something that nobody does")
        self._loop.passed_s += max(timeout, 0)
        return []


class KilledError(Exception):
    """The process that was called is not there, or was killed meanwhile."""


@dataclass
class Process:
    """A process that is there or not, with the calls that it answers."""

    up: bool = False
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        self.up = True
        self.killed.clear()

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a call for as long as the process lives. KilledError if it does not."""
        if not self.up:
            work.close()
            raise KilledError
        task = asyncio.ensure_future(work)
        self.calls.add(task)
        try:
            await asyncio.wait((task,))
        finally:
            self.calls.discard(task)
            if not task.done():
                await _cancelled(task)  # the caller has given up
        if task.cancelled() or _is_crash(task.exception()):
            raise KilledError
        return task.result()

    def kill(self) -> None:
        self.up = False
        self.killed.set()
        for task in self.calls:
            task.cancel()


def _is_crash(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(CrashError) is not None
    return isinstance(error, CrashError)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class CountedLife(Life):
    """strikes: counts an act of some kind; returns the agent's fate if it is killed at that."""

    def __init__(self, strikes: Callable[[str], Fate | None]) -> None:
        super().__init__()
        self.strikes = strikes

    def act(self, do: Callable[[], Any], part: Callable[[], Any], failure: K8sRdmaError) -> Any:
        kind = do.__qualname__.partition(".<locals>")[0]  # of a class here: MortalReceipts.put_claim
        if not self.dead and (fate := self.strikes(kind)) is not None:
            self.begin(fate)
        return super().act(do, part, failure)


class CountedApi(FakeSlices):
    """An API server; act: called before each read."""

    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._act = act

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        await self._act()
        return await super().get_claim_document(namespace, name)

    async def get_pod_document(self, namespace: str, name: str) -> bytes | None:
        await self._act()
        return await super().get_pod_document(namespace, name)


class Pod(MortalPod):
    """claims: documents as the scheduler left them. vfs, macs: as prepared and attached first, for good."""

    def __init__(self, world: World, name: str, claims: list[dict[str, Any]], annotation: str) -> None:
        super().__init__(world, name)
        self.claims = claims
        annotations = {"rdma_interfaces_required": annotation} if annotation else {}
        self.stdin = stdin(NETWORK, runtimeConfig={ANNOTATIONS: annotations})
        self.deleted = asyncio.Event()
        self.prepared = self.attached = False
        self.failures = 0
        self.answers: dict[str, ClaimAnswer] = {}
        self.vfs: list[VfRef] = []
        self.macs: list[str] = []

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    def names(self) -> tuple[ClaimName, ...]:
        metas = [document["metadata"] for document in self.claims]
        return tuple(ClaimName(namespace="default", name=meta["name"], uid=meta["uid"]) for meta in metas)


class Walk:
    """A node from its first pod to its last one.

    log: the events, to be read if a check fails. killed: how often, by process and by act.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.log: list[str] = []
        self.killed: Counter[str] = Counter()
        self._left = KILLS
        self._most_acts = self.random.choice(MOST_ACTS)
        self._countdown = self.random.randrange(self._most_acts)
        self._allocated: dict[str, list[tuple[str, int]]] = {}
        self.pods: list[Pod] = []
        self.agent, self.driver = Process(), Process()
        self.api = CountedApi(self._act_of_driver)
        self.world = World(directory, RULES, new_life=lambda: CountedLife(self._strikes), new_loop=HastyLoop)
        self._config = DevicePluginConfig(node="w1", run_dir=str(directory / "run"))
        self._claims = ClaimsConfig(plugins_dir=str(directory), registry_dir=str(directory), uid="u")

    def run(self) -> None:
        """Play it to its end."""
        try:
            self.world.runner.run(self._play())
        finally:
            self.world.close()

    # Kills

    def _counted(self) -> str:
        """Count an act of either process; whom to kill at it."""
        if not self._left:
            return ""
        self._countdown -= 1
        if self._countdown >= 0:
            return ""
        self._left -= 1
        self._countdown = self.random.randrange(self._most_acts)
        victim = self.random.choice(("agent", "agent", "driver", "agent and driver"))
        self.log.append(f"kill {victim}")
        self.killed.update(victim.split(" and "))
        return victim

    def _strikes(self, act: str) -> Fate | None:
        victim = self._counted()
        if "driver" in victim:
            self.driver.kill()
        if "agent" not in victim:
            return None
        how = self.random.choice(HOW)
        self.log.append(f"{how} {act}")
        self.killed[act.removeprefix("Mortal").replace("._", ".")] += 1
        return Fate(dies_at=0, halfway=how == "halfway", done=how == "after")

    async def _act_of_driver(self) -> None:
        victim = self._counted()
        if "agent" in victim:
            self.world.life.end()
        if "driver" in victim:
            self.driver.kill()
        await asyncio.sleep(0)  # a call that is killed ends here

    # The processes

    async def _keep_agent(self) -> None:
        while True:
            async with self._serving():
                await self.world.life.ended.wait()
            await asyncio.sleep(self.random.choice((0.0, 0.3, 5.0)))
            await self._restart()

    async def _restart(self) -> None:
        """Start another agent, and another one if it is killed as it starts."""
        while True:
            self.world.end()
            try:
                self.world.open()
                await self.world.recover()
            except* CrashError:
                pass
            if not self.world.life.dead:
                break
        self.log.append("agent restarted")
        self.check()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        publisher = ClaimOffers(self.world.node).publisher
        claims_socket = ClaimsSocket(self.world.claims, publisher)

        async def talk(connection: socket.socket) -> None:
            with suppress(CrashError):  # the connection ends, as the others then do
                await claims_socket.talk(connection)

        with listen_unix(self.world.directory / "run" / CLAIMS_SOCKET, 0o600) as listener:
            tasks = [
                asyncio.ensure_future(serve_connections(listener, talk, limit=64)),
                asyncio.ensure_future(self._reconcile()),
            ]
            self.agent.start()
            try:
                yield
            finally:
                self.agent.kill()
                asyncio.get_running_loop().remove_reader(listener)
                for _ in range(3):  # whoever accepts a connection has to be there to close it
                    await asyncio.sleep(0)
                await _cancelled(*tasks, *self.agent.calls)
                for task in tasks:
                    if not task.cancelled() and not _is_crash(task.exception()):
                        task.result()

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_S)
            await self.world.verbs.reconcile()

    async def _keep_driver(self) -> None:
        while True:
            self._dra = DraDriver(self._config, self._claims, self.api)
            self.driver.start()
            await self.driver.killed.wait()
            await asyncio.sleep(self.random.choice((0.0, 0.5, 8.0)))

    # The scheduler

    def _create(self, number: int) -> Pod | None:
        """A pod, if there is room for its claims; now and then one that two schedulers gave the same."""
        name = f"p{number}"
        if self.random.random() < 0.15:
            rate = self.random.choice((5_000, 20_000))
            return self._added(Pod(self.world, name, [], f'[{{"min_tx_rate": {rate}}}]'))
        claims, chosen = [], []
        for index in range(self.random.choice((1, 1, 2))):
            interfaces = [self._interface(letter) for letter in "ab"[: self.random.choice((1, 1, 2))]]
            uid = f"{name}-{index}"
            claims.append(of_pod(claim(*interfaces, uid=uid, name=uid), name))
            chosen.append((uid, [(each["device"], int(each["bandwidth"][:-1])) for each in interfaces]))
        if not self._fits([each for _, found in chosen for each in found]) and self.random.random() > 0.1:
            return None
        self._allocated |= dict(chosen)
        for document in claims:
            self.api.objects["claim", "default", document["metadata"]["name"]] = document
        self.api.objects["pod", "default", name] = pod_object(name, "", *(uid for uid, _ in chosen))
        return self._added(Pod(self.world, name, claims, ""))

    def _added(self, pod: Pod) -> Pod:
        self.pods.append(pod)
        self.log.append(f"create {pod.name}: {[self._allocated[each.uid] for each in pod.names()]}")
        return pod

    def _interface(self, request: str) -> dict[str, Any]:
        options = self.random.choice(({}, {}, {"vlan": 7}, {"maxTxRate": "70G"}, {"driver": "vfio-pci"}))
        rate = self.random.choice((0, 5_000, 20_000, 40_000, 60_000))
        device = self.random.choice(("f0", "f0", "f1"))
        return interface(request, device, f"{rate}M", **options)

    def _fits(self, added: list[tuple[str, int]]) -> bool:
        entries = [*added, *(each for found in self._allocated.values() for each in found)]
        return all(
            sum(mbps for pf, mbps in entries if pf == name) <= most_mbps
            and sum(pf == name for pf, _ in entries) <= vfs
            for name, (most_mbps, vfs) in OFFERED.items()
        )

    def _deallocate(self, pod: Pod) -> None:
        self.api.objects.pop(("pod", "default", pod.name), None)
        for each in pod.names():
            self._allocated.pop(each.uid, None)
            self.api.objects.pop(("claim", "default", each.name), None)

    def _delete(self, pod: Pod) -> None:
        if self.random.random() < 0.3:
            self.log.append(f"force {pod.name}")
            self._deallocate(pod)
        pod.deleted.set()

    # Kubelet and runtime

    async def _live(self, pod: Pod) -> None:
        """A pod on the node, until it is deleted and everything of it has ended."""
        while not pod.deleted.is_set():
            if not pod.prepared and not await self._prepare(pod):
                await self._fail(pod, self.random.uniform(1, 85))
                continue
            pod.make_sandbox()
            if await self._add(pod):
                await self._pause(pod, self.random.choice((5.0, 40.0, LONGEST_S)))
            else:
                await self._fail(pod, 1.0)
            await self._end_sandbox(pod)
            if self.random.random() < 0.2:
                pod.prepared = not pod.claims  # kubelet was restarted
        while pod.claims and not await self._unprepare(pod):  # noqa: ASYNC110 - as kubelet does
            await asyncio.sleep(self.random.uniform(0.5, 11))
        self._deallocate(pod)
        self.pods.remove(pod)
        self.log.append(f"{pod.name} is gone")

    async def _fail(self, pod: Pod, seconds: float) -> None:
        pod.failures += 1
        if pod.failures == MOST_FAILURES:
            self._delete(pod)
        await self._pause(pod, seconds)

    async def _pause(self, pod: Pod, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await pod.deleted.wait()

    async def _prepare(self, pod: Pod) -> bool:
        if not pod.claims:
            pod.prepared = True
            return True
        answers = await self._ask(lambda dra: dra.prepare(pod.names()))
        if answers is None or any(answer.error for answer in answers.values()):
            why = [answer.error for answer in answers.values() if answer.error] if answers else "killed"
            self.log.append(f"{pod.name} not prepared: {why}")
            return False
        claims = [self.world.node.ledger.claims[each.uid] for each in pod.names()]
        for prepared in claims:
            cdi = tuple(name for each in answers[prepared.uid].devices for name in each.cdi)
            assert cdi == tuple(
                f"k8s-rdma.io/claim={each.name}" for each in self._specified_devices(prepared)
            )
        vfs = [kept.vf for claim in claims for kept in claim.interfaces]
        assert pod.answers in ({}, answers), "another answer than before"
        assert pod.vfs in ([], vfs), "other VFs than before"
        pod.answers, pod.vfs, pod.prepared = answers, vfs, True
        self.check()
        return True

    async def _unprepare(self, pod: Pod) -> bool:
        answers = await self._ask(lambda dra: dra.unprepare(pod.names()))
        return answers is not None and not any(answer.error for answer in answers.values())

    async def _ask(self, question: Callable[[DraDriver], Coroutine[Any, Any, dict[str, ClaimAnswer]]]) -> Any:
        """Return the answers, or None if the driver was down, or has not answered in time."""
        try:
            async with asyncio.timeout(self.random.choice(DEADLINES_S)):
                answers = await self.driver.call(question(self._dra))
                await self.driver.call(self._act_of_driver())
        except (KilledError, TimeoutError):
            return None
        return answers

    async def _add(self, pod: Pod) -> bool:
        env = call("ADD", pod.container, pod.uid, name=pod.name)
        try:
            result = await self.agent.call(self.world.verbs.add(env, pod.netns, pod.stdin))
        except (KilledError, K8sRdmaError) as error:
            self.log.append(f"{pod.container} not attached: {error!r}")
            return False
        assert len(result.receipt.interfaces) == (len(pod.vfs) or 1)
        macs = [each.mac for each in result.receipt.interfaces]
        assert not pod.claims or pod.macs in ([], macs), "other MACs than before"
        pod.macs, pod.attached = macs, True
        self.check()
        return True

    async def _end_sandbox(self, pod: Pod) -> None:
        """End it by DEL, mostly; its namespace may be gone before, and then DEL may never come."""
        pod.attached = False
        way = self.random.choice(("DEL", "DEL", "DEL", "DEL", "gone", "gone, no DEL"))
        if way != "DEL":
            self.world.hardware.destroy_namespace(pod.netns)
        if way != "gone, no DEL":
            await self._detach(pod)
        if way == "DEL":
            self.world.hardware.destroy_namespace(pod.netns)

    async def _detach(self, pod: Pod) -> None:
        env = call("DEL", pod.container, pod.uid, name=pod.name)
        while True:
            try:
                await self.agent.call(self.world.verbs.delete(env, NETWORK, pod.stdin))
            except KilledError:
                self._defer(pod)
            except K8sRdmaError as error:
                self.log.append(f"{pod.container} not detached: {error!r}")
                await asyncio.sleep(1)
                continue
            return

    def _defer(self, pod: Pod) -> None:
        """Leave a DEL to the next agent as the executable does, if the container is marked."""
        run = self.world.directory / "run"
        if (run / "attachments" / pod.container).exists():
            (run / "deletions" / f"{pod.container}:eth0:{NETWORK}").touch()
            self.log.append(f"{pod.container} left to be detached")

    # The course of it

    async def _play(self) -> None:
        found = offers(self.world.node.hardware, self.world.node.ledger, {}, RULES)
        assert {offer.name: (offer.mbps, offer.vfs) for offer in found} == OFFERED
        keepers = [asyncio.ensure_future(each) for each in (self._keep_agent(), self._keep_driver())]
        try:
            async with asyncio.timeout(LONGEST_S):
                await asyncio.sleep(0)
                lives = asyncio.ensure_future(self._live_all())
                await asyncio.wait((lives, *keepers), return_when=asyncio.FIRST_COMPLETED)
                for task in (lives, *keepers):
                    if task.done():
                        task.result()
        finally:
            await _cancelled(*keepers)

    async def _live_all(self) -> None:
        async with asyncio.TaskGroup() as lives:
            for number in range(PODS):
                if (pod := self._create(number)) is not None:
                    lives.create_task(self._live(pod))
                await asyncio.sleep(self.random.choice((0.0, 0.0, 0.01, 1.0, 20.0)))
                if self.pods and self.random.random() < 0.4:
                    self._delete(self.random.choice(self.pods))
            await asyncio.sleep(self.random.choice((1, 60)))
            self._left = 0
            await self._come_to_rest()
            for pod in list(self.pods):
                self._delete(pod)
        await asyncio.sleep(2 * RECONCILE_S)  # for those without DEL
        self.check_empty()
        await self._restart()
        self.check_empty()

    async def _come_to_rest(self) -> None:
        """Wait until each pod runs or is gone; then all that there is belongs to one that runs."""
        while not self.agent.up or not all(pod.attached for pod in self.pods):  # noqa: ASYNC110 - no event
            await asyncio.sleep(1)
        self.check()
        claims = self.world.node.ledger.claims
        assert claims.keys() == {each.uid for pod in self.pods for each in pod.names()}
        assert self._marked() == {pod.uid for pod in self.pods if pod.claims}
        assert self._specified() == set(claims)
        for prepared in claims.values():
            self._check_devices(prepared)

    # Invariants

    def check(self) -> None:
        """At any time when an agent runs: no VF is prepared twice, and pods have the prepared VFs."""
        hardware, ledger, machine = self.world.node.hardware, self.world.node.ledger, self.world.hardware
        used = used_locally(hardware, ledger)
        for pf in hardware.pfs:
            functions = [each for ref, each in machine.functions.items() if ref.pf == pf.pci]
            assert pf.pci not in used or used[pf.pci].mbps <= (pf.link_mbps or 0)
            assert sum(each.min_tx_rate_mbps for each in functions) <= (pf.link_mbps or 0)
        prepared = [kept for claim in ledger.claims.values() for kept in claim.interfaces]
        assert len({kept.vf for kept in prepared}) == len(prepared), "a VF is prepared twice"
        for name, (most_mbps, _) in OFFERED.items():
            rates = [kept.placed.min_tx_rate_mbps for kept in prepared if kept.device == name]
            assert sum(rates) <= most_mbps
        for pod in self.pods:
            if pod.attached and machine.alive(pod.netns):
                self._check_attached(pod)
        self._check_free()

    def _check_attached(self, pod: Pod) -> None:
        [receipt] = self.world.node.ledger.of_container(pod.container)
        assert receipt.phase is Phase.ATTACHED
        if pod.claims:
            assert [each.vf for each in receipt.interfaces] == pod.vfs
        for each in receipt.interfaces:
            function = self.world.hardware.functions[each.vf]
            assert (function.min_tx_rate_mbps, function.max_tx_rate_mbps) == (
                each.min_tx_rate_mbps,
                each.max_tx_rate_mbps,
            )
            if each.is_netdev:
                assert (function.device.place, function.device.name) == (pod.netns.inode, each.ifname)
            else:
                assert function.driver == "vfio-pci"

    def _check_free(self) -> None:
        """A VF that no receipt names is as it was at the boot."""
        holders = self.world.node.ledger.holders()
        for pf, before in zip(self.world.kernel.observe().pfs, self.world.pristine.pfs, strict=True):
            for vf, as_it_was in zip(pf.vfs, before.vfs, strict=True):
                assert vf == as_it_was or VfRef(pf.pci, vf.index) in holders

    def _check_devices(self, claim: LedgerClaim) -> None:
        """Containers get the device nodes that the claim's VFs have now, and no others."""
        devices = self._specified_devices(claim)
        attached = {
            each.vf: each
            for receipt in self.world.node.ledger.of_pod(claim.pod.uid)
            for each in receipt.interfaces
        }
        for device, kept in zip(devices, claim.interfaces, strict=True):
            nodes = {node.path for node in device.container_edits.device_nodes} - {"/dev/infiniband/rdma_cm"}
            assert nodes == self.world.nodes_of(attached[kept.vf])

    def _specified_devices(self, claim: LedgerClaim) -> tuple[CdiDevice, ...]:
        [path] = (self.world.directory / "host").rglob(f"k8s-rdma.io-claim_{claim.uid}.json")
        return decode_specification(path.read_bytes())[1]

    def check_empty(self) -> None:
        """When all pods are gone, no trace of them is left anywhere."""
        ledger, run = self.world.node.ledger, self.world.directory / "run"
        assert not ledger.receipts
        assert not ledger.claims
        assert self.world.is_pristine()
        assert self.world.book.entries == {}
        assert self.world.device_files() == []
        assert not self.world.markers()
        assert not list((run / "claims").glob("*"))
        assert not list((run / "deletions").iterdir())

    def _marked(self) -> set[str]:
        return {path.name for path in (self.world.directory / "run" / "claims").glob("*")}

    def _specified(self) -> set[str]:
        paths = (self.world.directory / "host").rglob("k8s-rdma.io-claim_*")
        return {path.stem.removeprefix("k8s-rdma.io-claim_") for path in paths}


def walk(seed: int) -> Counter[str]:
    """Walk; return how often each process was killed, and at which acts."""
    with disk() as directory:
        found = Walk(directory, seed)
        try:
            found.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(found.log))
            raise
    return found.killed
