"""A real kubelet beside a real container runtime, in a mount namespace of their own, and pods that it starts.

Their data in fixed places (`/var/lib`, `/var/log`, `/run`, `/dev`) is of this namespace and goes with it.
The kernel's settings that kubelet would change (`/proc/sys`) stay as they are.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from cluster.control_plane import Json, free_port, write_kubeconfig
from cluster.processes import Program
from cluster.real import FOLDER
from cluster.real import obstacle as missing_control_plane
from e2e.container_runtime import IMAGE, ContainerRuntime
from e2e.containerd import Containerd
from e2e.crio import Crio
from e2e.runtimes import RUNTIMES, runtime_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.world import Cluster

RUNTIME = "K8S_RDMA_RUNTIME"
"""The variable that names the container runtime: `crio`, or containerd."""
NODE = "w1"
ADDRESS = "192.0.2.1"
"""Of the node: kubelet refuses loopback."""

LOOK = b"""
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv, char **env)
{
    DIR *directory = opendir("/dev/infiniband");
    struct dirent *entry;

    for (; *env; env++)
        printf("env %s\\n", *env);
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.') {
            int node = openat(dirfd(directory), entry->d_name, O_RDWR);
            printf("open %s %d\\n", entry->d_name, node < 0 ? errno : 0);
            if (node >= 0)
                close(node);
        }
    return 0;
}
"""

FIRST_CDI = (1, 7)
"""Of containerd."""

_SET_BY_KUBELET = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Of the whole machine (kubelet's `setupKernelTunables`): it is given files instead."""

_HUGE_PAGES = "/sys/kernel/mm/hugepages"
_NODES = "null zero full random urandom tty kmsg ptmx"


def obstacle() -> str | None:
    """Return why no real kubelet is available here, or None if one is."""
    if why := missing_control_plane():
        return why
    here = str(programs())
    if shutil.which("kubelet", path=here) is None:
        return f"{FOLDER}: {here} has no program kubelet"
    if why := _runtime_obstacle(here):
        return why
    return None if _makes_device_nodes() else "needs root, that of the machine: it makes device nodes"


def runtime_class() -> type[ContainerRuntime]:
    """Which runtime kubelet has."""
    return RUNTIMES[os.environ.get(RUNTIME, Containerd.name)]


def cdi_obstacle() -> str | None:
    """Return why the runtime knows no CDI, or None if it does. Call it only if there is a kubelet."""
    if runtime_class() is Crio:
        return None
    program = shutil.which("containerd", path=str(programs())) or shutil.which("containerd")
    found = release_of(program)
    return None if found >= FIRST_CDI else f"needs containerd {_dotted(FIRST_CDI)}, not {_dotted(found)}"


def programs() -> Path:
    """The folder of the programs."""
    return Path(os.environ[FOLDER])


def scratch(
    directory: Path, nodes: Mapping[str, tuple[int, int]], verbs: Mapping[str, str] | None = None
) -> str:
    """Shell commands that give a mount namespace places of its own, below a directory.

    nodes: of `/dev/infiniband`, with their numbers. verbs: which of them sysfs shows as that of a function,
    by its PCI address; there are no other functions.
    """
    made = [
        f"mkdir -p {directory}/dev {directory}/var-lib {directory}/var-log",
        f"mount -t tmpfs -o mode=0755 tmpfs {directory}/dev",
        f"for node in {_NODES}; do cp -a /dev/$node {directory}/dev; done",
        f"(cd {directory}/dev && mkdir -p shm pts infiniband)",
        *(
            f"mknod {directory}/dev/infiniband/{name} c {major} {minor}"
            for name, (major, minor) in nodes.items()
        ),
        f"mount --rbind {directory}/dev /dev",
        *_sysfs(nodes, verbs or {}),
        # CRI-O fails over limits of huge pages if their cgroup is not mounted.
        f"{{ [ ! -d {_HUGE_PAGES} ] || mount -t tmpfs tmpfs {_HUGE_PAGES}; }}",
        f"mount --bind {directory}/var-lib /var/lib",
        f"mount --bind {directory}/var-log /var/log",
        *(_copied(f"/proc/sys/{name}", f"{directory}/{name.replace('/', '-')}") for name in _SET_BY_KUBELET),
    ]
    return " && ".join(made) + " &&"


@dataclass
class Look:
    """The view of a program in a container: its environment, and which RDMA nodes it may open.

    denied: nodes that are there, and that its cgroup keeps from it.
    """

    env: dict[str, str] = field(default_factory=dict)
    opens: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)


class Kubelet:
    """The kubelet of node `w1` with its runtime; started and ended at will.

    static_pods: the directory of their files. lib: its `/var/lib/kubelet`. plugins: where its
    sockets for plugins are.
    """

    def __init__(
        self, cluster: Cluster, runtime: ContainerRuntime, directory: Path, static_pods: str = ""
    ) -> None:
        self.cluster, self._runtime, self._directory = cluster, runtime, directory
        self._static_pods = static_pods
        self.lib = directory / "var-lib" / "kubelet"
        self.plugins = self.lib / "device-plugins"
        self.cdi = runtime.cdi
        self.use = runtime.use
        self.program: Program | None = None
        self._said = 0

    async def start(self) -> None:
        """Run it; its node is ready, and plugins can register, when this returns."""
        before = self._registry()
        log = self.cluster.directory / "kubelet.log"
        self._said = len(log.read_text(errors="replace")) if log.exists() else 0
        config = self._directory / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._settings(release_of(programs() / "kubelet"))))
        kubeconfig = write_kubeconfig(
            self._directory / "kubelet.kubeconfig", self.cluster.plane, self.cluster.plane.admin_token
        )
        self.program = await Program.start(
            log,
            *self._runtime.entering,
            programs() / "kubelet",
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
            "--v=4",
        )

        async def ready() -> bool:
            return self._registry() not in (None, before) and await self._ready()

        await self.program.until(ready)

    async def end(self) -> None:
        """End it, as systemd does; pods go on."""
        if self.program is not None:
            await self.program.end()
            self.program = None

    def stop_sandboxes(self) -> None:
        """End the sandboxes of all pods."""
        for sandbox in self._runtime.cri.list_sandboxes():
            self._runtime.cri.stop_sandbox(sandbox)

    def restart_runtime(self) -> None:
        """Kill the runtime and start it again; processes in sandboxes go on."""
        self._runtime.kill()
        self._runtime.start()

    def reboot(self) -> None:
        """Do to the runtime, in order, as a reboot of the node does, while kubelet is not there."""
        self.stop_sandboxes()
        for path in self.cdi.iterdir():
            path.unlink()
        boot_id = self._directory / "boot-id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self._runtime.run("mount", "--bind", boot_id, "/proc/sys/kernel/random/boot_id")

    async def node(self) -> Json:
        """Its Node object; empty before there is one."""
        answer = await self.cluster.http.get(f"/api/v1/nodes/{NODE}")
        return answer.json() if answer.status_code == 200 else {}

    async def stop_container(self, pod: Json, container: str) -> Json:
        """Have a container end; the pod when another runs in its place."""
        before = _id(pod, container)
        self._runtime.cri.stop_container(before)
        return await self.cluster.when(
            pod["metadata"]["name"], lambda pod: _id(pod, container) != before and _all_run(pod)
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that it brings about."""

        async def really() -> bool:
            return holds()

        assert self.program is not None
        await self.program.until(really)

    async def counted(self, resource: str, *, capacity: int, allocatable: int) -> None:
        """Wait until the node's status says so."""

        async def holds() -> bool:
            status = (await self.node()).get("status", {})
            said = tuple(status.get(key, {}).get(resource, "0") for key in ("capacity", "allocatable"))
            return said == (str(capacity), str(allocatable))

        assert self.program is not None
        await self.program.until(holds)

    async def registered(self, resource: str) -> None:
        """Wait until this kubelet has devices to give: the node's status may tell of the one before."""
        assert self.program is not None
        log, line = self.program.log, f'"Processed device updates for resource" resourceName="{resource}"'
        await self.until(lambda: line in log.read_text(errors="replace")[self._said :])

    async def refused(self, name: str) -> str:
        """Wait until it refused to admit a pod; return its reason and message."""
        pod = await self.cluster.when(name, lambda pod: pod["status"]["phase"] == "Failed")
        return f"{pod['status']['reason']}: {pod['status']['message']}"

    async def create_pod(
        self,
        name: str,
        *containers: Json,
        init: Sequence[Json] = (),
        annotations: Mapping[str, str] = {},
        restart: str = "Never",
    ) -> None:
        """Create a pod for this node. containers, init: their names and further fields."""
        common = {"image": IMAGE, "imagePullPolicy": "Never"}
        spec = {
            "nodeName": NODE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": restart,
            "containers": [common | each for each in containers],
            "initContainers": [common | {"command": ["/look"]} | each for each in init],
        }
        meta = {"name": name, "namespace": "default", "annotations": dict(annotations)}
        await self.cluster.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})

    async def running(self, name: str) -> Json:
        """Wait until all containers of a pod run; the pod."""
        return await self.cluster.when(name, _all_run)

    async def delete_pod(self, name: str) -> None:
        """Have a pod go; its sandbox goes afterwards."""
        await self.cluster.delete_pod(name)

    async def event(self, pod: str, reason: str) -> str:
        """Wait for an event of a pod; its message."""
        return await self.cluster.event(pod, reason)

    def execute(self, pod: Json, container: str, *command: str) -> str:
        """Return the output of a command in a running container, as by `kubectl exec`."""
        return self._runtime.cri.execute(_id(pod, container), *command)

    def read(self, pod: Json, container: str, path: str) -> str:
        """Read a file as a running container sees it."""
        own = _id(pod, container)
        [root, *_] = [
            process / "root" for process in Path("/proc").glob("[0-9]*") if own in _text(process / "cgroup")
        ]
        return (root / path.lstrip("/")).read_text()

    def look(self, pod: Json, container: str) -> Look:
        """Look around in a running container."""
        return _look(self.execute(pod, container, "/look").splitlines())

    def init_look(self, pod: Json, container: str) -> Look:
        """Return the output of `/look` as a container's own command, by its log."""
        meta = pod["metadata"]
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        log = self._directory / "var-log" / "pods" / name / container / "0.log"
        return _look([line.partition(" F ")[2] for line in log.read_text().splitlines()])

    def _registry(self) -> int | None:
        """Return when its socket for plugins was made, by a start of it; None before the first."""
        path = self.plugins / "kubelet.sock"
        return path.stat().st_ctime_ns if path.exists() else None

    async def _ready(self) -> bool:
        conditions = (await self.node()).get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _settings(self, release: tuple[int, int]) -> Json:
        socket = f"unix://{self._runtime.socket}"
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": socket,
            "imageServiceEndpoint": socket,
            "staticPodPath": self._static_pods,
            "volumePluginDir": str(self._directory / "volume-plugins"),
            "resolvConf": "",
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._runtime.cgroup,
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "1s",
        }
        if release < (1, 29):
            settings["featureGates"] = {"DevicePluginCDIDevices": True}
        if release >= (1, 31):
            settings["failCgroupV1"] = False
        return settings


def _all_run(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return pod["status"]["phase"] == "Running" and all(each["ready"] for each in statuses)


def _look(lines: list[str]) -> Look:
    found = Look()
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "env":
            name, _, found.env[name] = rest.partition("=")
        else:
            name, _, number = rest.partition(" ")
            (found.denied if int(number) == errno.EPERM else found.opens).add(name)
    return found


def _id(pod: Json, container: str) -> str:
    (found,) = (each for each in pod["status"]["containerStatuses"] if each["name"] == container)
    return found["containerID"].rpartition("/")[2]


def _sysfs(nodes: Mapping[str, tuple[int, int]], verbs: Mapping[str, str]) -> Iterator[str]:
    functions, others = "/sys/bus/pci/devices", "/sys/class/misc"
    yield f"mount -t tmpfs tmpfs {functions} && mount -t tmpfs tmpfs {others}"
    shown = {f"{functions}/{pci}/infiniband_verbs/{name}": name for pci, name in verbs.items()}
    for directory, name in (shown | {f"{others}/rdma_cm": "rdma_cm"}).items():
        major, minor = nodes[name]
        yield f"mkdir -p {directory} && echo {major}:{minor} > {directory}/dev"
        yield f"echo of_{name} > {directory}/ibdev"


def _runtime_obstacle(here: str) -> str | None:
    if runtime_class() is Crio:
        return runtime_obstacle(Crio.name)
    for name in ("containerd", "containerd-shim-runc-v2", "ctr", "runc"):
        if shutil.which(name, path=here) is None and shutil.which(name) is None:
            return f"needs {name}, in the folder of {FOLDER} or on PATH"
    return None


def _makes_device_nodes() -> bool:
    """Whether this is root, and in no user namespace (user_namespaces(7))."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)] and not os.geteuid()


def _copied(file: str, copy: str) -> str:
    return f"cat {file} > {copy} && mount --bind {copy} {file}"


def release_of(program: Path | str) -> tuple[int, int]:
    """The release that a program says it is of: major and minor."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r" v?(\d+)\.(\d+)\.", said).groups()
    return int(major), int(minor)


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""
