"""An agent that dies or fails at any of its acts on the world, and the world that outlives it.

An act is whatever remains of a process that is killed: a kernel step, a write of the ledger, a marker, a call
of another plugin. The kernel is `FakeKernel`, the ledger a real one on disk; other plugins keep a `Book`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from agent.machine import Verbs
from cdi_documents import decode_specification
from factories import PF0, PF1
from fakes.kernel import FakeKernel
from fakes.machine import FakeMachine, FakePf
from fakes.nodes import FakeNodes, FakePodResources
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.cni.add import PodSources
from k8s_rdma.agent.cni.grant import Policy
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.host_files import HostFiles
from k8s_rdma.agent.ledger_store import ClaimMarkers, DeferredDeletes, LedgerStore, Markers
from k8s_rdma.agent.main import AgentHost, build_agent
from k8s_rdma.agent.plugins.ipam import CniPlugins, Delegate, IpamPlugins
from k8s_rdma.config.devices import (
    HUSTCAT_RESOURCE,
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    Selector,
)
from k8s_rdma.core.devices.pod_devices import slot_ids
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, DelegatedPlugin, Phase, Receipt
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import K8sRdmaError, KernelError, LedgerError, Reason
from k8s_rdma.linux.atomic_file import draft_of
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from policies import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from pathlib import PurePosixPath

    from k8s_rdma.agent.cluster.api_cluster import PodCluster as KubeCluster
    from k8s_rdma.agent.plugins.execution import PluginTarget
    from k8s_rdma.core.ledger import ClaimUid, LedgerClaim
    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.core.pf_selection import PfRule
    from k8s_rdma.core.step import Step
    from k8s_rdma.core.types import PodUid
    from k8s_rdma.linux.receipts import ClaimMark


SLOT, SLOTS = "k8s-rdma.io/slot", 2
DEVICE = "f0r3"
"""The only one of an exclusive resource: the RDMA device of VF 3 of `f0`."""

RESOURCES = (ExactResource(name=SLOT, count=SLOTS), ExclusiveResource(select=Selector(pfs=("f0#3",))))


class CrashError(BaseException):
    """The process is gone; code that goes on in it has no effect."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """The failures, by the number of the act, from now on.

    halfway: the act is begun, and a part of it done, before it fails or the process dies. done: all of it.
    """

    dies_at: int | None = None
    fails_at: range = range(0)
    halfway: bool = False
    done: bool = False


@dataclass
class Life:
    """One process. ended: set at its death."""

    fate: Fate = Fate()
    acts: int = 0
    dead: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, fate: Fate) -> None:
        self.fate, self.acts = fate, 0

    def end(self) -> None:
        self.dead = True
        self.ended.set()

    def act(self, do: Callable[[], Any], part: Callable[[], Any], failure: K8sRdmaError) -> Any:
        """Do it, as fate has it. part: of it, for when it is cut short."""
        if self.dead:
            raise CrashError
        now, self.acts = self.acts, self.acts + 1
        if now != self.fate.dies_at and now not in self.fate.fails_at:
            return do()
        if self.fate.done:
            do()
        elif self.fate.halfway:
            part()
        if now == self.fate.dies_at:
            self.end()
            raise CrashError
        raise failure


class MortalKernel:
    def __init__(self, kernel: FakeKernel, life: Life) -> None:
        self._kernel, self._life = kernel, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def apply(self, step: Step) -> Attributes | None:
        def part() -> None:
            self._kernel.fail(after_changes=1)
            with suppress(KernelError):
                self._kernel.apply(step)

        return self._life.act(lambda: self._kernel.apply(step), part, KernelError("made to fail"))


class MortalReceipts:
    """synced: called when all data written until now would outlive a power cut."""

    def __init__(self, receipts: Receipts, life: Life, synced: Callable[[], None]) -> None:
        self._receipts, self._life, self._synced = receipts, life, synced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receipts, name)

    def put(self, receipt: Receipt, *beside: Receipt, **more: Any) -> None:
        self._write(lambda: self._receipts.put(receipt, *beside, **more))
        if receipt.phase is Phase.PREPARED or receipt.change is not None:
            self._synced()

    def remove(self, attachment: Attachment) -> None:
        self._write(lambda: self._receipts.remove(attachment))

    def put_claim(self, claim: LedgerClaim) -> None:
        self._write(lambda: self._receipts.put_claim(claim))
        self._synced()

    def remove_claim(self, claim: ClaimUid) -> None:
        self._write(lambda: self._receipts.remove_claim(claim))
        self._synced()

    def _write(self, do: Callable[[], None]) -> None:
        self._life.act(do, lambda: None, LedgerError("the disk is full"))  # SQLite leaves no half of it


class MortalMarkers:
    def __init__(self, kind: type[Markers | ClaimMarkers], directory: Path, life: Life) -> None:
        self._markers, self._directory, self._life = kind(directory), directory, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._markers, name)

    def add(self, container: Any) -> None:
        self._write(lambda: self._markers.add(container))

    def discard(self, container: Any) -> None:
        self._write(lambda: self._markers.discard(container))

    def write(self, pod: PodUid, mark: ClaimMark) -> None:
        assert isinstance(self._markers, ClaimMarkers)
        markers = self._markers
        self._write(lambda: markers.write(pod, mark), lambda: tear(self._directory / pod))

    def _write(self, do: Callable[[], None], part: Callable[[], None] = lambda: None) -> None:
        self._life.act(do, part, LedgerError("the tmpfs is full"))


def tear(path: Path) -> None:
    """Leave half a draft of a file, as `write_file` does when it is cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft_of(path).write_bytes(b"{")


class MortalDeletions:
    def __init__(self, deletions: DeferredDeletes, life: Life) -> None:
        self._deletions, self._life = deletions, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deletions, name)

    def drop(self, attachment: Attachment) -> None:
        if self._deletions.contains(attachment):
            failure = LedgerError("read-only")
            self._life.act(lambda: self._deletions.drop(attachment), lambda: None, failure)


class MortalFiles:
    def __init__(self, root: Path, life: Life) -> None:
        self._files, self._root, self._life = HostFiles(root), root, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: PurePosixPath, data: bytes) -> None:
        self._act(lambda: self._files.write(path, data), lambda: tear(self._root / path.relative_to("/")))

    def rewrite(self, path: PurePosixPath, data: bytes) -> None:
        half = data[: len(data) // 2]
        self._act(lambda: self._files.rewrite(path, data), lambda: self._files.rewrite(path, half))

    def update(self, path: PurePosixPath, data: bytes) -> None:
        if not self._files.holds(path, data):
            self.write(path, data)

    def remove(self, paths: Iterable[PurePosixPath]) -> None:
        for path in paths:
            self._remove(path)

    def _remove(self, path: PurePosixPath) -> None:
        self._act(lambda: self._files.remove([path]), lambda: self._files.remove([path]))

    def _act(self, do: Callable[[], None], part: Callable[[], None]) -> None:
        self._life.act(do, part, KernelError("device files: made to fail"))


@dataclass
class Book:
    """The acts of other plugins that are not undone; on a disk, as host-local keeps them."""

    entries: dict[tuple[str, str, str], str] = field(default_factory=dict)
    given: int = 0

    def add(self, plugin: str, target: PluginTarget) -> bytes:
        self.given += 1
        address = f"10.{self.given >> 16 & 255}.{self.given >> 8 & 255}.{self.given & 255}"
        self.entries[plugin, target.container, target.ifname] = address
        result: dict[str, object] = {"cniVersion": "1.0.0", "ips": [{"address": f"{address}/8"}]}
        if plugin == "main":
            result["interfaces"] = [{"name": target.ifname, "sandbox": target.netns}]
            result["ips"] = [{"address": f"{address}/8", "interface": 0}]
        return json.dumps(result).encode()

    def delete(self, plugin: str, target: PluginTarget) -> bytes:
        self.entries.pop((plugin, target.container, target.ifname), None)
        return b""


class MortalPlugins:
    """In place of `agent.plugins.execution.Plugins`: every plugin keeps the book."""

    def __init__(self, book: Book, life: Life) -> None:
        self._book, self._life = book, life

    def require(self, plugin: DelegatedPlugin) -> None:
        pass

    async def negotiate(self, plugin: DelegatedPlugin, at_most: str = "") -> str:
        return "1.0.0"

    async def run(
        self, plugin: DelegatedPlugin, verb: str, stdin: bytes, target: PluginTarget | None = None
    ) -> bytes:
        if verb == "GC" or target is None:
            return b""

        def do() -> bytes:
            write = self._book.add if verb == "ADD" else self._book.delete
            return write(plugin.plugin, target)

        failure = K8sRdmaError(f"{plugin.plugin}: made to fail", reason=Reason.IPAM_FAILURE)
        return self._life.act(do, do, failure)


class Turn:
    """In place of `agent.worker.Worker`: no thread, so that calls meet in the same order every time."""

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return call(*args)


@contextmanager
def disk() -> Iterator[Path]:
    """A directory of its own, in memory if /dev/shm exists."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own in it
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


@contextmanager
def new_world(
    rules: tuple[PfRule, ...] = (), *, key: PlacementKeys | None = None, cluster: KubeCluster | None = None
) -> Iterator[World]:
    """On a disk of its own; arguments as of `World`."""
    with disk() as directory:
        world = World(directory, rules, key=key, cluster=cluster)
        try:
            yield world
        finally:
            world.close()


class MortalPod:
    """A pod whose sandboxes come one after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.sandboxes = 0
        self.make_sandbox()

    def make_sandbox(self) -> None:
        self.sandboxes += 1
        self.container = f"{self.name}-{self.sandboxes}"
        self.netns = self.world.hardware.create_namespace(f"/run/netns/{self.container}")


class World:
    """A machine, its disk and the book; an agent lives in it from `start` to `end`."""

    def __init__(
        self,
        directory: Path,
        rules: tuple[PfRule, ...] = (),
        *,
        key: PlacementKeys | None = None,
        cluster: KubeCluster | None = None,
        new_life: Callable[[], Life] = Life,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """new_life: for each agent. new_loop: makes the event loop of all of them."""
        self.directory = directory
        self.rules = rules
        self._new_life = new_life
        self.key, self.cluster = key, cluster or NoCluster()
        self.book = Book()
        self.kubelet = FakePodResources()
        self._holders: list[str] = []
        self.device_of = ""
        self.boots = 0
        self.life = Life(dead=True)
        self.boot()
        self.runner = asyncio.Runner(loop_factory=new_loop)
        self.start()

    def close(self) -> None:
        self.end()
        self.runner.close()

    def boot(self) -> None:
        """Begin with an empty kernel and an empty tmpfs."""
        self.boots += 1
        self.hardware = FakeMachine(
            FakePf(name="f0", pci=PF0, vfs=4, rdma=True), FakePf(name="f1", pci=PF1, vfs=4)
        )
        self.kernel = FakeKernel(self.hardware)
        self.pristine = self.kernel.observe()
        for directory in ("run", "host"):
            shutil.rmtree(self.directory / directory, ignore_errors=True)

    def start(self) -> None:
        """Start a new agent, which first undoes or completes the unfinished calls of the one before."""
        self.open()
        self.runner.run(self.recover())

    def open(self) -> None:
        """A new agent, which has read its ledger."""
        self.life = life = self._new_life()
        self.deferred_deletes = DeferredDeletes(self.directory / "run" / "deletions")
        self._receipts = Receipts(self._state / "ledger.db")
        plugins = MortalPlugins(self.book, life)
        host = AgentHost(
            name=NodeName("w1"),
            boot_id=f"boot-{self.boots}",
            kernel=MortalKernel(self.kernel, life),
            worker=Turn(),
            ledger_store=LedgerStore(
                MortalReceipts(self._receipts, life, self._keep),
                MortalMarkers(Markers, self.directory / "run" / "attachments", life),
                MortalDeletions(self.deferred_deletes, life),
                MortalMarkers(ClaimMarkers, self.directory / "run" / "claims", life),
            ),
            files=MortalFiles(self.directory / "host", life),
            device_nodes=FakeNodes(self.hardware),
            cdi_dir="/var/run/cdi",
            run_dir="/run/k8s-rdma",
            plugins=CniPlugins(ipam=IpamPlugins(plugins), delegate=Delegate(plugins)),
            pools=DevicePluginConfig(resources=RESOURCES).pools(),
            rules=self.rules,
        )
        policy = Policy(keys=FixedKeys(self.key), policies=lambda: EVERYTHING)
        devices = PodDeviceLookup(self.kubelet, RESOURCES)
        pods = PodSources(policy=policy, cluster=self.cluster, devices=devices)
        agent = build_agent(host, pods, _nobody_waits)
        self.node, self.verbs, self.devices = agent.node, Verbs(agent.commands), agent.specifications.devices
        self.claims, self.live_rates = agent.claims, agent.live_rates
        self._keep()

    async def recover(self) -> None:
        """Undo or complete the unfinished calls of the agent before."""
        await self.verbs.reconcile()
        await self.verbs.restore_caps()
        await self.live_rates.recover()
        with suppress(KernelError):  # of functions that were taken away from vfio-pci
            self.devices.restore(self.node.ledger)

    def end(self) -> None:
        """However it ended: the file is as the process left it."""
        self.life.end()
        self._receipts.close()

    def run(self, *calls: Coroutine[Any, Any, Any], fate: Fate = Fate()) -> list[Any]:
        """Return the outcomes of calls that are made at once; empty if the agent died of it."""
        self.life.begin(fate)

        async def together() -> list[Any]:
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.runner.run(together())
        acts, dead = self.life.acts, self.life.dead
        self.life.begin(Fate())
        self.life.acts = acts
        if dead:
            return []
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, K8sRdmaError):
                raise outcome
        return outcomes

    def restart(self, *, reboot: bool = False, forget_unsynced: bool = False) -> None:
        """End the agent if it lives, and start another. forget_unsynced: as after a power cut."""
        self.end()
        if forget_unsynced:
            shutil.rmtree(self._state)
            shutil.copytree(self._synced, self._state)
        if reboot:
            self.boot()
        self.start()

    def markers(self) -> set[str]:
        return {marker.name for marker in (self.directory / "run" / "attachments").iterdir()}

    def device_files(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "host").rglob("*") if path.is_file())

    def hold_slot(self, name: str) -> None:
        """Have kubelet give a pod a slot, be it that of another one, which then is over."""
        if name in self._holders:
            return
        if len(self._holders) == SLOTS:
            self.kubelet.forget("default", self._holders.pop(0))
        held = {
            each
            for pod in self._holders
            for each in self.kubelet.pod_devices("default", pod).device_ids(SLOT)
        }
        self.kubelet.allocate(
            "default", name, SLOT, next(each for each in slot_ids(SLOTS) if each not in held)
        )
        self._holders.append(name)

    def hold_device(self, name: str) -> None:
        """Have kubelet give a pod the exclusive device, be it that of another one, which then is over."""
        if self.device_of != name:
            self.kubelet.forget("default", self.device_of)
            self.kubelet.allocate("default", name, HUSTCAT_RESOURCE, DEVICE)
            self.device_of = name

    def slots(self) -> dict[str, set[str]]:
        """Return the device nodes' paths that containers get by each slot."""
        found = {}
        for path in (self.directory / "host").rglob("k8s-rdma.io-slot_*.json"):
            _, [device] = decode_specification(path.read_bytes())
            found[device.name] = {node.path for node in device.container_edits.device_nodes}
        return found

    def nodes_of(self, interface: AllocatedInterface) -> set[str]:
        """The device nodes of an interface, as the machine has them now."""
        nodes = FakeNodes(self.hardware)
        if not interface.is_netdev:
            return {"/dev/vfio/vfio", nodes.vfio_group(interface.pci)}
        return {each.path for each in nodes.of_vf(interface.pci, interface.rdma_device)}

    def is_pristine(self) -> bool:
        return self.kernel.observe() == self.pristine

    @property
    def _state(self) -> Path:
        return self.directory / "state"

    @property
    def _synced(self) -> Path:
        return self.directory / "synced"

    def _keep(self) -> None:
        shutil.rmtree(self._synced, ignore_errors=True)
        shutil.copytree(self._state, self._synced)


async def _nobody_waits() -> None:
    """The reports of this agent have no reader."""
