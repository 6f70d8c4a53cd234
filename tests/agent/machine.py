"""A node to play with: the fake kernel, a real ledger on disk, and the agent's code over both."""

from __future__ import annotations

import json
import os
import resource
import shutil
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from factories import PF0, PF1
from fakes.kernel import FakeKernel
from fakes.machine import FakeMachine, FakePf
from fakes.nodes import FakeNodes
from k8s_rdma.agent.cluster.held_addresses import SingleNodeAddresses
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.cni.add import PodSources
from k8s_rdma.agent.cni.grant import Policy
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.cni.service import CniCommands
from k8s_rdma.agent.host_files import HostFiles
from k8s_rdma.agent.ledger_store import ClaimMarkers, DeferredDeletes, LedgerStore, Markers
from k8s_rdma.agent.main import AgentHost, build_agent
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import CniPlugins, Delegate, IpamPlugins
from k8s_rdma.agent.worker import Worker
from k8s_rdma.config.devices import DevicePluginConfig, Resource
from k8s_rdma.core.types import NodeName
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.cni_request import parse_environment
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from policies import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.agent.claims import ClaimCommands
    from k8s_rdma.agent.cluster.api_cluster import PodCluster
    from k8s_rdma.agent.cluster.held_addresses import AddressRegistry
    from k8s_rdma.agent.cni.add import AddResult
    from k8s_rdma.agent.cni.kubelet_devices import LocateGpus
    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.devices.pools import Pool
    from k8s_rdma.core.pf_selection import PfRule
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.kube.pod_resources import PodResources
    from k8s_rdma.wire.cni_request import CniEnvironment


@dataclass(frozen=True, slots=True)
class Verbs:
    """A node's commands by the CNI's words."""

    commands: CniCommands

    async def add(
        self, call: CniEnvironment, netns: NetnsRef, stdin: bytes, *waiting: Any
    ) -> AddResult | None:
        return await self.commands.add.add(call, netns, stdin, *waiting)

    async def delete(self, call: CniEnvironment, network: str, stdin: bytes = b"") -> None:
        await self.commands.delete.delete(call, network, stdin)

    async def check(self, call: CniEnvironment, stdin: bytes) -> None:
        await self.commands.check.check(call, stdin)

    async def collect(self, call: CniEnvironment, stdin: bytes) -> None:
        await self.commands.delete.collect(call, stdin)

    async def status(self, call: CniEnvironment, stdin: bytes) -> None:
        await self.commands.check.require_ready(call, stdin)

    async def reconcile(self) -> bool:
        return await self.commands.delete.reconcile()

    async def restore_caps(self) -> bool:
        return await self.commands.caps.restore()

    async def idle(self) -> None:
        await self.commands.locks.idle()


PLUGINS = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"

needs_host_local = pytest.mark.skipif(
    shutil.which("host-local", path=PLUGINS) is None, reason="needs Debian's containernetworking-plugins"
)


class Machine:
    """A node that can be stopped and started over the same disk and kernel."""

    def __init__(
        self,
        directory: Path,
        *,
        ipam: bool = False,
        rdma: bool = False,
        node: str = "w1",
        pfs: tuple[FakePf, ...] = (),
    ) -> None:
        """pfs: by default two of four VFs. rdma: whether the first of those two has RDMA devices."""
        self.directory = directory
        self.ipam = ipam
        self.node = NodeName(node)
        self.rdma = rdma
        self.pfs = pfs
        self.boot()
        self.prepared = self.pod_changes = 0
        self.cluster: PodCluster = NoCluster()
        self.policies = EVERYTHING
        self.memlock, self.memlock_hook = 0, ""
        self.kubelet: PodResources | None = None
        self.locate: LocateGpus | None = None
        self.resources: tuple[Resource, ...] = ()
        self.rules: tuple[PfRule, ...] = ()
        self.require_rdma = True
        self.now_s = 0.0
        self.claim_commands: ClaimCommands | None = None
        self.new_worker: Callable[[], Worker] = Worker
        self.addresses: AddressRegistry = SingleNodeAddresses()
        self.sandboxes: dict[int, NetnsRef] = {}
        self._containers: dict[str, int] = {}

    def boot(self) -> None:
        """Begin with an empty kernel; the disk stays as it is."""
        two = FakePf(name="f0", pci=PF0, vfs=4, rdma=self.rdma), FakePf(name="f1", pci=PF1, vfs=4)
        self.hardware = FakeMachine(*(self.pfs or two))
        self.kernel = FakeKernel(self.hardware)
        self.pristine = self.kernel.observe()

    @contextmanager
    def running(
        self, key: PlacementKeys | None = None, boot_id: str = "boot-1", allow_unplaced: bool | None = None
    ) -> Iterator[tuple[Node, Verbs]]:
        with closing(self.new_worker()) as worker:
            self.worker = worker
            receipts = worker.opened.enter_context(closing(Receipts(self.directory / "state" / "ledger.db")))
            plugins = Plugins(host_root=Path("/"), timeout_s=10)
            host = AgentHost(
                name=self.node,
                boot_id=boot_id,
                kernel=self.kernel,
                worker=worker,
                ledger_store=LedgerStore(
                    receipts,
                    Markers(self.directory / "run" / "attachments"),
                    DeferredDeletes(self.directory / "run" / "deletions"),
                    ClaimMarkers(self.directory / "run" / "claims"),
                ),
                files=HostFiles(self.directory / "host"),
                device_nodes=FakeNodes(self.hardware),
                cdi_dir="/var/run/cdi",
                run_dir="/run/k8s-rdma",
                memlock_hook=self.memlock_hook,
                plugins=CniPlugins(ipam=IpamPlugins(plugins), delegate=Delegate(plugins)),
                pools=pools_of(self.resources),
                rules=self.rules,
                require_rdma=self.require_rdma,
                now=lambda: self.now_s,
            )
            policy = Policy(
                keys=FixedKeys(key),
                allow_unplaced=allow_unplaced,
                policies=lambda: self.policies,
                memlock=self.memlock,
            )
            devices = PodDeviceLookup(self.kubelet, self.resources, self.locate)
            agent = build_agent(
                host,
                PodSources(policy=policy, cluster=self.cluster, devices=devices, addresses=self.addresses),
                self.count_prepared,
            )
            self.specifications = agent.specifications
            self.claim_commands = agent.claims
            yield agent.node, Verbs(agent.commands)

    def pods_changed(self) -> None:
        self.pod_changes += 1

    async def count_prepared(self) -> None:
        self.prepared += 1
        await self.on_prepared()

    async def on_prepared(self) -> None:
        """A test's step while the receipt is on disk, but no interface is given."""

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file of this process may grow."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def sandbox(self, container: str) -> int:
        """The inode of a container's namespace, which is made when it is asked for first."""
        if container not in self._containers:
            netns = self.hardware.create_namespace()
            self._containers[container] = netns.inode
            self.sandboxes[netns.inode] = netns
        return self._containers[container]

    def markers(self) -> set[str]:
        return {marker.name for marker in (self.directory / "run" / "attachments").iterdir()}

    def leases(self) -> set[str]:
        return {path.name for path in (self.directory / "leases").glob("*/*.*.*.*")}

    def is_pristine(self) -> bool:
        return self.kernel.observe() == self.pristine and not self.leases()

    def stdin(self, annotations: dict[str, str] | None, **changes: object) -> bytes:
        conf: dict[str, object] = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni"}
        if annotations is not None:
            conf["runtimeConfig"] = {"io.kubernetes.cri.pod-annotations": annotations}
        if self.ipam:
            ranges = [[{"subnet": "10.55.206.0/24"}]]
            conf["ipam"] = {"type": "host-local", "ranges": ranges, "dataDir": str(self.directory / "leases")}
        return json.dumps(conf | changes).encode()


def no_other_vfs(*numbers: int) -> tuple[FakePf, ...]:
    """PFs of so many VFs each: as many as a pod takes, so that a VF that cannot be given fails its ADD."""
    pfs = zip((PF0, PF1), numbers, strict=False)
    return tuple(FakePf(name=f"f{index}", pci=pci, vfs=vfs) for index, (pci, vfs) in enumerate(pfs))


def names_in(machine: Machine, netns: NetnsRef, *names: str) -> list[bool]:
    """Whether a sandbox has an interface of each name."""
    return [machine.hardware.interface(name, netns) is not None for name in names]


def pools_of(resources: tuple[Resource, ...]) -> tuple[Pool, ...]:
    return DevicePluginConfig(resources=resources).pools() if resources else ()


def asks(*interfaces: dict[str, int]) -> dict[str, str]:
    return {"rdma_interfaces_required": json.dumps(interfaces)}


def call(command: str, container: str = "c1", uid: str = "uid-p", ifname: str = "eth0", name: str = "p"):
    return parse_environment(
        {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": "/run/netns/x",
            "CNI_IFNAME": ifname,
            "CNI_PATH": PLUGINS,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID={uid}",
        }
    )
