"""Two nodes that were set up by hand, and pods on them.

On both: the real containerd with our plugin, init, agent, server, device plugin, and kubelet's stand-in.
On the first also the stand-ins of API server and kube-scheduler, and our extender. Nodes have PFs' addresses.

    with running_cluster((a, b)) as cluster:
        pod = cluster.start(pods_image.pod("p", {"min_tx_rate": 100}))
        pod.run("ping", "-c1", ...)
"""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lab.places import ETC, MARKERS, SERVER
from tests.lab import pods_image
from tests.lab.guest_http import HttpError, ask
from tests.lab.home import Vf, not_home, vfs_of
from tests.lab.site import CONTAINERD, KUBELET, LEASES, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lab.machine import Background, Completed, Machine

DEADLINE_S = 400.0
"""For whatever is waited for: processes start slowly on emulated processors that others use as well."""
API_PORT = 8080
API = f"http://192.168.77.1:{API_PORT}"
EXTENDER = "http://127.0.0.1:8888"
HOOK = "/src/tests/lab/soft-roce"
STAND_IN = ("python3", "-m", "k8s_rdma_demo.cluster")
PODS = f"{API}/api/v1/namespaces/default/pods"


def until(what: str, holds: Callable[[], Any], *, within_s: float = DEADLINE_S, pause_s: float = 0.3) -> Any:
    """Return the value of `holds` once that is true; TimeoutError names the awaited condition."""
    end = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(pause_s)
    return found


class Node:
    """A guest that is made a node. before: its VFs as `k8s-rdma init` left them."""

    before: dict[tuple[str, int], Vf]

    def __init__(self, machine: Machine, site: Site) -> None:
        self.machine, self.site, self.name = machine, site, site.name
        self.processes: dict[str, Background] = {}

    # As the documentation has it done by hand

    def set_up(self) -> None:
        """Everything but the parts that need the API server."""
        for path, text in self.site.files().items():
            self.machine.write(path, text)
        self.machine.run("ip", "address", "add", f"{self.site.address}/24", "dev", "eth0")
        self.machine.run("modprobe", "-a", "rdma_ucm", "rdma_rxe", "bridge")
        self.machine.run("bash", "-c", f"ln -sf /usr/lib/cni/* {HOOK} /opt/cni/bin/")
        self.start_containerd()
        self.machine.run("k8s-rdma", "init", "--config", f"{ETC}/init.yaml", timeout_s=DEADLINE_S)
        self.before = vfs_of(self.machine)
        self._import_image()

    def start_processes(self) -> None:
        """Those of our own, and kubelet; they serve when this returns."""
        for command in ("agent", "server", "device-plugin"):
            self.start(command)
        self.start_kubelet()
        until(f"{self.name}'s server", partial(self.answers, f"{SERVER}/readyz"))
        until(f"{self.name}'s kubelet", (self.machine.shared / "kubelet.ready").exists)

    def start(self, command: str) -> None:
        """One of our processes, with its file."""
        config = f"{ETC}/{command}.yaml"
        self.processes[command] = self.machine.start("k8s-rdma", command, "--config", config, name=command)

    def start_kubelet(self) -> None:
        """The stand-in, which drives the real containerd; its records are in the shared folder."""
        self.machine.run("mkdir", "-p", f"{KUBELET}/device-plugins", f"{KUBELET}/pod-resources")
        (self.machine.shared / "kubelet.ready").unlink(missing_ok=True)
        arguments = {
            "server": API,
            "node": self.name,
            "node-ip": self.site.address,
            "runtime-endpoint": CONTAINERD,
            "device-plugin-dir": f"{KUBELET}/device-plugins",
            "state-dir": "/lab/sandboxes",
            "late-delete-s": "1",
            "ready-file": "/lab/kubelet.ready",
        }
        options = itertools.chain.from_iterable((f"--{key}", value) for key, value in arguments.items())
        self.processes["kubelet"] = self.machine.start(*STAND_IN, "kubelet", *options, name="kubelet")

    def start_containerd(self) -> None:
        """Debian's; it serves when this returns."""
        self.processes["containerd"] = self.machine.start("containerd", name="containerd")
        until(f"{self.name}'s containerd", lambda: self.ctr("version", check=False).returncode == 0)

    def _import_image(self) -> None:
        self.machine.run("cp", "/bin/busybox", "/lab/busybox")
        archive = pods_image.archive((self.machine.shared / "busybox").read_bytes())
        (self.machine.shared / "image.tar").write_bytes(archive)
        self.ctr("images", "import", "/lab/image.tar")

    def answers(self, url: str) -> bool:
        """Whether a GET from here succeeds."""
        try:
            ask(self.machine, "GET", url)
        except HttpError:
            return False
        return True

    def set_rdma_mode(self, mode: str) -> None:
        """`shared` or `exclusive`, which the kernel takes while no network namespace but its own is there."""
        until(f"RDMA namespaces are {mode}", lambda: self._takes_rdma_mode(mode))

    def _takes_rdma_mode(self, mode: str) -> bool:
        return self.machine.run("rdma", "system", "set", "netns", mode, check=False).returncode == 0

    # Looking at it

    def ctr(self, *arguments: str, check: bool = True, timeout_s: float = 60) -> Completed:
        """In Kubernetes' namespace of containerd."""
        return self.machine.run("ctr", "-n", "k8s.io", *arguments, check=check, timeout_s=timeout_s)

    def report(self) -> dict[str, Any]:
        """Return the agent's report, as the server shows it."""
        answer: dict[str, Any] = ask(self.machine, "GET", f"{SERVER}/v1/node")
        return answer

    def ip(self, *arguments: str, netns: str | None = None) -> list[dict[str, Any]]:
        """As `ip -json` prints it. netns: the path of a namespace."""
        inside = ["nsenter", f"--net={netns}"] if netns else []
        shown = self.machine.run(*inside, "ip", "-json", *arguments).stdout
        return [each for each in json.loads(shown or "[]") if each]

    def sandboxes(self, pod: str) -> list[dict[str, Any]]:
        """Return the kubelet's records of a pod's sandboxes that are up."""
        folder = self.machine.shared / "sandboxes"
        every = (
            [json.loads(path.read_text()) for path in folder.glob("[!.]*.json")] if folder.exists() else []
        )
        return [each for each in every if each["pod"]["name"] == pod and each.get("result")]

    def container(self, uid: str, sandbox: str) -> str | None:
        """Return the id of a pod's only container in that sandbox, if it exists."""
        try:
            record = json.loads((self.machine.shared / "containers" / f"{uid}.json").read_text())
        except FileNotFoundError:
            return None
        (container,) = record["containers"]
        return str(container["id"]) if record["sandbox"] == sandbox else None

    def leases(self, network: str = "*") -> list[str]:
        """Addresses that host-local has given and not back."""
        listed = self.machine.run("bash", "-c", f"cd {LEASES} && ls -d {network}/[0-9]* 2>/dev/null; true")
        return [line.rpartition("/")[2] for line in listed.stdout.split()]

    def leftovers(self) -> dict[str, Any]:
        """Return differences from the state before the first pod; VFs are waited for."""
        vfs = not_home(self.machine, self.before)
        return vfs | {what: left for what, left in self._kept().items() if left}

    def _kept(self) -> dict[str, Any]:
        """Leases, markers, allocations, VFs that are not accounted for, containerd's tasks."""
        report = self.report()
        return {
            "leases": self.leases(),
            "markers": self.machine.run("ls", MARKERS).stdout.split(),
            "allocations": report["allocations"],
            "foreign": [each for pf in report["pfs"] for each in pf.get("foreign") or ()],
            "tasks": self.ctr("tasks", "list", "--quiet").stdout.split(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that runs. netns: the path of its namespace on its node; container: its id."""

    name: str
    uid: str
    node: Node
    netns: str
    container: str
    sandbox: str

    def run(self, *argv: str, timeout_s: float = 60, check: bool = True) -> Completed:
        """A program in its container."""
        return self.node.ctr(*self._exec(*argv), timeout_s=timeout_s, check=check)

    def begin(self, *argv: str, name: str) -> Background:
        """The same, and it goes on."""
        return self.node.machine.start("ctr", "-n", "k8s.io", *self._exec(*argv), name=name)

    def links(self) -> dict[str, dict[str, Any]]:
        """Its interfaces by name, as `ip -json -details address` prints them; without lo."""
        shown = self.node.ip("-details", "address", "show", netns=self.netns)
        return {link["ifname"]: link for link in shown if link["ifname"] != "lo"}

    def addresses(self) -> dict[str, str]:
        """Its IPv4 addresses by interface."""
        return {
            name: each["local"]
            for name, link in self.links().items()
            for each in link["addr_info"]
            if each["family"] == "inet"
        }

    def _exec(self, *argv: str) -> tuple[str, ...]:
        return ("tasks", "exec", "--exec-id", f"x{time.monotonic_ns()}", self.container, *argv)


class Cluster:
    """The control plane is on the first node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.main = nodes[0]

    def set_up(self) -> None:
        """All of it; nodes at the same time."""
        first = self.main.machine
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.set_up, self.nodes.values()))
            self.main.processes["api"] = first.start(
                *STAND_IN, "api", "--host", self.main.site.address, "--port", str(API_PORT), name="api"
            )
            until("the API server", partial(self.main.answers, f"{API}/api/v1/nodes"))
            self.main.start("extender")
            scheduler = ("--server", API, "--config", "/src/examples/scheduler/recommended.yaml")
            self.main.processes["scheduler"] = first.start(
                *STAND_IN, "scheduler", *scheduler, name="scheduler"
            )
            list(pool.map(Node.start_processes, self.nodes.values()))
        until("the extender", partial(self.main.answers, f"{EXTENDER}/readyz"))

    def create(self, pod: dict[str, Any]) -> str:
        """Post a pod; its UID."""
        return str(ask(self.main.machine, "POST", PODS, pod)["metadata"]["uid"])

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a pod's object, if it exists."""
        try:
            found: dict[str, Any] = ask(self.main.machine, "GET", f"{PODS}/{name}")
        except HttpError as error:
            if error.status == 404:
                return None
            raise
        return found

    def start(self, *pods: dict[str, Any]) -> list[Pod]:
        """Create pods; they run when this returns."""
        for pod in pods:
            self.create(pod)
        return [self.await_running(pod["metadata"]["name"]) for pod in pods]

    def await_running(self, name: str, *, other_than: str = "") -> Pod:
        """Once its containers are up. other_than: not in the sandbox of this id."""
        try:
            found: Pod = until(f"pod {name} runs", partial(self._running, name, other_than))
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its events: {self.events(name)}") from error
        return found

    def end(self, *names: str) -> None:
        """Delete pods; they are gone from the API server when this returns."""
        for name in names:
            ask(self.main.machine, "DELETE", f"{PODS}/{name}")
        for name in names:
            until(f"pod {name} is gone", lambda name=name: self.get(name) is None)

    def pods(self) -> list[str]:
        """The names of all there are."""
        return [each["metadata"]["name"] for each in ask(self.main.machine, "GET", PODS)["items"]]

    def events(self, pod: str) -> dict[str, str]:
        """Of a pod: the last message of each reason."""
        listed = ask(self.main.machine, "GET", f"{API}/api/v1/namespaces/default/events")["items"]
        return {each["reason"]: each["message"] for each in listed if each["involvedObject"]["name"] == pod}

    def leftovers(self) -> dict[str, Any]:
        """Of every node."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            found = zip(self.nodes, pool.map(Node.leftovers, self.nodes.values()), strict=True)
        return {f"{name}: {what}": left for name, each in found for what, left in each.items()}

    def _running(self, name: str, other_than: str) -> Pod | None:
        pod = self.get(name)
        if pod is None or pod.get("status", {}).get("phase") != "Running":
            return None
        node = self.nodes[pod["spec"]["nodeName"]]
        sandboxes = [each for each in node.sandboxes(name) if each["container_id"] != other_than]
        if not sandboxes:
            return None
        uid, sandbox = pod["metadata"]["uid"], sandboxes[0]
        container = node.container(uid, sandbox["container_id"])
        if container is None:
            return None
        return Pod(
            name=name,
            uid=uid,
            node=node,
            netns=sandbox["netns"],
            container=container,
            sandbox=sandbox["container_id"],
        )


@contextmanager
def running_cluster(machines: Sequence[Machine], **site: Any) -> Iterator[Cluster]:
    """On these machines until the block ends, which end all that runs. site: more of each node's `Site`."""
    nodes = [
        Node(machine, Site(name=f"node-{number}", number=number, api=API, **site))
        for number, machine in enumerate(machines, start=1)
    ]
    cluster = Cluster(nodes)
    cluster.set_up()
    yield cluster
