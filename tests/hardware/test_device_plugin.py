"""The device plugin on real PFs, as a process beside kubelet's stand-in, with RDMA devices of software.

Moves into a pod's namespace need RDMA namespaces of their own (`rdma system set netns exclusive`), a
driver that lets its devices move and keeps them when their netdev does, the executable built (`make cni`) and
CNI's plugin host-local (CNI_PATH).
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.lab import home_of
from contract.linux_lab import run
from deviceplugin.plugin_process import follows
from e2e.conftest import PLUGINS
from e2e.processes import NodeProcesses, pod
from hardware.test_kernel_rdma import soft_device
from k8s_rdma.config.devices import HUSTCAT_RESOURCE, SLOT_RESOURCE
from k8s_rdma.core.devices.pod_devices import slot_device
from k8s_rdma.core.devices.rdma_devices import RDMA_CM, NetnsMode
from k8s_rdma.core.step import VfRef
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name
from k8s_rdma_demo.cluster.containers import Container, ContainerError, new_container
from k8s_rdma_demo.kubelet.device_manager import DeviceManager, DeviceManagerConfig, running_device_manager
from k8s_rdma_demo.kubelet.pods import AdmissionError, DeviceContainer, DevicePod
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


pytestmark = [needs_hardware, pytest.mark.timeout(400)]

SHIM = Path(__file__).parents[2] / "build/k8s-rdma-cni"
DEADLINE_S = 180
"""An emulated machine may take a minute to import a process."""
"""By kubelet, of a fault and of its end."""
SHARED = "rdma/hca"
PF_DEVICE, VF_DEVICE, SPARE = "rxe_pf", "rxe_vf", "rxe_spare"


class Machine(NodeProcesses):
    """Its PFs and VFs are the lab's. pfs: those that the agent has."""

    def __init__(self) -> None:
        super().__init__(plugins=PLUGINS, shim=SHIM, deadline_s=DEADLINE_S)
        self.pfs = PFS

    @property
    def cdi(self) -> Path:
        return self.directory / "cdi"

    @property
    def manager(self) -> DeviceManagerConfig:
        return DeviceManagerConfig(
            plugin_dir=self.directory / "device-plugins",
            pod_resources=self.directory / "pod-resources.sock",
            seed=1,
        )

    def document(self) -> dict[str, object]:
        hardware = {"requireRdma": False, "pfs": [{"names": list(self.pfs)}]}
        return super().document() | {"hardware": hardware}

    def start_plugin(self, *resources: dict[str, object], **settings: object) -> Path:
        """Start it; its configuration file. settings: more of its configuration."""
        document = {
            "resources": list(resources),
            "kubeletDir": str(self.manager.plugin_dir),
            "podResources": str(self.manager.pod_resources),
            "runDir": str(self.run_dir),
            "port": None,
            **settings,
        }
        config = self.config("device-plugin", document)
        self.start("device-plugin", config)
        return config

    async def start_both(self, *resources: dict[str, object]) -> None:
        """And the agent, which asks the kubelet of this loop."""
        config = self.start_plugin(*resources)
        self.settings = {"devicePlugin": str(config), "cdiDir": str(self.cdi)}
        await asyncio.to_thread(self.start_agent)

    async def container(self, manager: DeviceManager, pod: DevicePod) -> Container:
        """The pod's container, as the runtime makes it."""
        given = await manager.prepare(pod, "c")
        return new_container("c", given, [self.cdi], Path("/"))

    async def told(self, manager: DeviceManager, pod: DevicePod) -> dict[str, str]:
        """The nodes of such a container; empty while it cannot be made."""
        try:
            return numbers(await self.container(manager, pod))
        except ContainerError:
            return {}


@pytest.fixture
def machine(lab) -> Iterator[Machine]:
    """The lab takes back everything that a pod may still have."""
    with Machine() as made:
        yield made


@pytest.fixture
def netdev(lab) -> Iterator[str]:
    """Of a VF at home, set up."""
    name = home_of(lab, VfRef(lab.pcis[1], 0)).name
    with set_up(name):
        yield name


@contextmanager
def set_up(name: str) -> Iterator[None]:
    run("ip", "link", "set", name, "up")
    try:
        yield
    finally:
        run("ip", "link", "set", name, "down", check=False)


@pytest.fixture
def moving(netdev) -> None:
    """Skips if a VF's RDMA device does not move into a pod's namespace together with its netdev."""
    for program in ("host-local", "ibv_devinfo"):
        if shutil.which(program, path=f"{PLUGINS}:{os.environ['PATH']}") is None:
            pytest.skip(f"needs {program}")
    if not SHIM.exists():
        pytest.skip("no executable: needs `make cni`")
    with NetlinkQueries() as queries:
        rdma = queries.rdma()
        if rdma is None or rdma.netns_mode() is not NetnsMode.EXCLUSIVE:
            pytest.skip("needs SR-IOV hardware: RDMA devices exclusive (rdma system set netns exclusive)")
        with soft_device(netdev, name=VF_DEVICE), elsewhere() as namespace:
            try:
                rdma.move(rdma.indexes()[VF_DEVICE], namespace, "move")
            except NetlinkError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                pytest.skip("needs SR-IOV hardware: RDMA devices that their driver can move")
            run("ip", "link", "set", netdev, "netns", f"/proc/{os.getpid()}/fd/{namespace}")
            if not nodes_of(VF_DEVICE):
                pytest.skip("needs SR-IOV hardware: RDMA devices that live on when their netdev moves")
    run("ip", "link", "set", netdev, "up")


@contextmanager
def elsewhere() -> Iterator[int]:
    """A network namespace; devices that were moved there are home again afterwards."""
    there = [Path("/sys/class/net"), Path("/sys/class/infiniband")]
    before = [set(each.iterdir()) for each in there]
    namespace = create_namespace()
    try:
        yield namespace
    finally:
        left = nodes_of(VF_DEVICE)
        os.close(namespace)
        for each, names in zip(there, before, strict=True):
            while left and not names <= set(each.iterdir()):
                time.sleep(0.05)


def scenario(machine: Machine, play: Callable[[DeviceManager], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S), running_device_manager(machine.manager) as manager:
            await play(manager)

    try:
        asyncio.run(in_time())
    except BaseException:
        for log in sorted(machine.directory.glob("*.log")):
            print(f"{log.name}:\n{log.read_text()}")  # noqa: T201  for who reads why it failed
        raise


async def healthy(manager: DeviceManager, resource: str, *names: str) -> None:
    """Return once just these of a resource are."""
    await manager.wait_for(
        lambda: {each.id for each in manager.devices(resource) if not each.unhealthy} == set(names)
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that the kernel brings about."""
    while not holds():  # noqa: ASYNC110  without events
        await asyncio.sleep(0.02)


def asking(name: str, resource: str) -> DevicePod:
    """The one that the runtime makes the sandbox of as `e2e.processes.pod`."""
    container = DeviceContainer(name="c", limits={resource: 1})
    return DevicePod(namespace="default", name=name, uid=f"uid-{name}", containers=(container,))


# Existing devices, without the tested code


def nodes_of(name: str) -> dict[str, str]:
    """The character devices of an RDMA device: their nodes, with their numbers."""
    found = {}
    for kind in ("infiniband_verbs", "infiniband_mad"):
        for shown in Path("/sys/class", kind).glob("*/ibdev"):
            if shown.read_text().strip() == name:
                device = shown.parent
                found[f"/dev/infiniband/{device.name}"] = (device / "dev").read_text().strip()
    return found


def connection_manager() -> dict[str, str]:
    """Return its node, if it exists."""
    dev = Path("/sys/class/misc/rdma_cm/dev")
    return {RDMA_CM: dev.read_text().strip()} if dev.exists() else {}


def verbs(name: str) -> str:
    (found,) = (path for path in nodes_of(name) if "uverbs" in path)
    return found


def opened(path: str) -> None:
    os.close(os.open(path, os.O_RDWR))


def answers(name: str, *inside: str) -> bool:
    """Whether it answers verbs."""
    return "PORT_ACTIVE" in run(*inside, "ibv_devinfo", "-d", name)


def numbers(container: Container) -> dict[str, str]:
    return {each.path: f"{each.major}:{each.minor}" for each in container.devices}


def test_container_is_given_the_nodes_of_its_device_and_they_work(lab, machine, netdev) -> None:
    async def play(manager: DeviceManager) -> None:
        machine.start_plugin({"mode": "exclusive", "cdi": False})
        await follows(manager, HUSTCAT_RESOURCE)
        await healthy(manager, HUSTCAT_RESOURCE, PF_DEVICE, VF_DEVICE)
        functions = {PF_DEVICE: lab.pcis[0], VF_DEVICE: vf_address(1, 0)}
        held = set()
        for asked in (asking("a", HUSTCAT_RESOURCE), asking("b", HUSTCAT_RESOURCE)):
            await manager.admit(asked)
            container = await machine.container(manager, asked)
            name = container.envs["K8S_RDMA_DEVICES_TENCENT_COM_RDMA"]
            held.add(name)
            assert container.envs["PCIDEVICE_TENCENT_COM_RDMA"] == functions[name]
            assert numbers(container) == nodes_of(name) | connection_manager()
            for path in container.device_paths:
                if "issm" not in path:  # who has it open is the subnet manager
                    opened(path)
            assert shutil.which("ibv_devinfo") is None or answers(name)
        assert held == {PF_DEVICE, VF_DEVICE}
        with pytest.raises(AdmissionError):
            await manager.admit(asking("c", HUSTCAT_RESOURCE))

    with soft_device(PFS[0], name=PF_DEVICE), soft_device(netdev, name=VF_DEVICE):
        scenario(machine, play)


def test_kubelet_learns_link_changes_from_the_kernel(machine, netdev) -> None:
    async def play(manager: DeviceManager) -> None:
        resource = {"mode": "exclusive", "cdi": False, "select": {"functions": "vf"}}
        machine.start_plugin(resource, rescanS=0)  # so it never looks by itself
        await healthy(manager, HUSTCAT_RESOURCE, VF_DEVICE)
        state = Path(f"/sys/class/infiniband/{VF_DEVICE}/ports/1/state")
        for _ in range(3):
            run("ip", "link", "set", netdev, "down")
            await healthy(manager, HUSTCAT_RESOURCE)
            run("ip", "link", "set", netdev, "up")
            await until(lambda: "ACTIVE" in state.read_text())
            await healthy(manager, HUSTCAT_RESOURCE, VF_DEVICE)

    with soft_device(PFS[0], name=PF_DEVICE), soft_device(netdev, name=VF_DEVICE):
        scenario(machine, play)


def test_shared_devices_come_with_the_nodes_of_now(machine, netdev) -> None:
    async def play(manager: DeviceManager) -> None:
        await machine.start_both(
            {
                "mode": "shared",
                "name": SHARED,
                "count": 3,
                "cdi": True,
                "select": {"rdmaDevices": [VF_DEVICE]},
            }
        )
        await manager.wait_for(lambda: (found := manager.capacity().get(SHARED)) and found.allocatable)
        asked = asking("p", SHARED)
        await manager.admit(asked)
        before = nodes_of(VF_DEVICE)
        assert numbers(await machine.container(manager, asked)) == before | connection_manager()
        for name in (SPARE, VF_DEVICE):
            run("rdma", "link", "delete", name)
        with soft_device(netdev, name=VF_DEVICE):
            after = nodes_of(VF_DEVICE)
            assert after.keys().isdisjoint(before), "the numbers that were free are its now"
            while await machine.told(manager, asked) != after | connection_manager():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    with soft_device(PFS[0], name=SPARE), soft_device(netdev, name=VF_DEVICE):
        scenario(machine, play)


@pytest.mark.usefixtures("moving")
def test_exclusive_device_comes_with_the_nodes_that_it_has_in_its_pod(machine, netdev) -> None:
    async def play(manager: DeviceManager) -> None:
        await machine.start_both({"mode": "exclusive", "select": {"functions": "vf"}})
        await healthy(manager, HUSTCAT_RESOURCE, VF_DEVICE)
        asked = asking("p", HUSTCAT_RESOURCE)
        await manager.admit(asked)
        given = await manager.prepare(asked, "c")
        device = slot_device(HUSTCAT_RESOURCE, VF_DEVICE)
        assert given.devices == ()
        assert given.cdi_devices == (qualified_name(device, device_class=SLOT_CLASS),)
        await attached_and_taken_down(machine, manager, asked)
        await healthy(manager, HUSTCAT_RESOURCE, VF_DEVICE)

    moved(machine, netdev, play)


@pytest.mark.usefixtures("moving")
def test_slot_has_the_nodes_that_the_device_has_in_its_pod(machine, netdev) -> None:
    async def play(manager: DeviceManager) -> None:
        await machine.start_both({"mode": "exact", "count": 5})
        await follows(manager, SLOT_RESOURCE)
        await manager.wait_for(lambda: manager.capacity()[SLOT_RESOURCE].allocatable)
        asked = asking("p", SLOT_RESOURCE)
        await manager.admit(asked)
        await attached_and_taken_down(machine, manager, asked, *[{}] * every)

    every = len(list(Path(f"/sys/class/net/{PFS[1]}/device").glob("virtfn*")))
    machine.pfs = PFS[1:]  # all of whose VFs the pod gets, the one with the device among them
    moved(machine, netdev, play)


def moved(machine: Machine, netdev: str, play: Callable[[DeviceManager], Coroutine[Any, Any, None]]) -> None:
    """With another device whose numbers are lower, until `attached_and_taken_down` removes it."""
    with ExitStack() as made:
        made.enter_context(soft_device(PFS[0], name=SPARE))
        made.enter_context(soft_device(netdev, name=VF_DEVICE))
        scenario(machine, play)
        assert nodes_of(VF_DEVICE)


async def attached_and_taken_down(
    machine: Machine, manager: DeviceManager, asked: DevicePod, *interfaces: dict[str, int]
) -> None:
    """A pod's sandbox comes and goes; only its container can open its device."""
    before = nodes_of(VF_DEVICE)
    with pytest.raises(ContainerError, match="unresolvable"):
        await machine.container(manager, asked)
    run("rdma", "link", "delete", SPARE)
    runtime = machine.runtime(chained=False)
    sandbox = await runtime.add(pod("p", *interfaces))
    after = nodes_of(VF_DEVICE)
    assert after
    assert after.keys().isdisjoint(before), "the numbers that were free are its now"
    assert numbers(await machine.container(manager, asked)) == after | connection_manager()
    assert answers(VF_DEVICE, "nsenter", f"--net={sandbox.netns}")
    with pytest.raises(PermissionError):
        opened(verbs(VF_DEVICE))
    await runtime.delete(sandbox)
    assert list(machine.cdi.iterdir()) == []
    await manager.release(asked.uid)


def vf_address(pf: int, index: int) -> str:
    return Path(f"/sys/class/net/{PFS[pf]}/device/virtfn{index}").resolve().name
