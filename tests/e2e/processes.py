"""The processes of a node and a runtime that runs our executable, whatever the node's PFs are."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma.wire.state_socket import HEADER, MessageKind, decode_header
from k8s_rdma_demo.cluster.cni_runtime import CniRuntime, remove_namespace_at
from k8s_rdma_demo.cluster.sandboxes import PodRef
from policies import EVERYTHING_FILE
from warm_program import start_logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warm_program import Started

DEADLINE_S = 120
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


class NodeProcesses:
    """A directory for all that they keep, and the processes started there; subclasses make the PFs.

    plugins: directories with the reference CNI plugins. shim: our executable. deadline_s: for a process to
    begin or to end, and for whatever is waited for. settings: more of the agent's configuration.
    """

    pristine: dict[str, Any]
    """`kernel_state` before the first pod."""

    def __init__(self, *, plugins: str, shim: Path, deadline_s: float = DEADLINE_S) -> None:
        self._stack = ExitStack()
        # Not pytest's own directory: the path of a Unix socket has 107 bytes.
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="k8srdma-")))
        self.agent: Started | None = None
        self.settings: dict[str, object] = {"policyFile": EVERYTHING_FILE}
        self.cni_path = [shim.parent, *map(Path, plugins.split(":"))]
        self.deadline_s = deadline_s
        self.enter: list[str] = []
        """The command that runs a process elsewhere, such as `nsenter` with its options."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and unmount pods' namespaces."""
        for netns in (self.directory / "netns").glob("*"):
            remove_namespace_at(netns)
        self._stack.close()

    def document(self) -> dict[str, object]:
        """The agent's configuration."""
        return {
            "node": "w1",
            "runDir": str(self.run_dir),
            "stateDir": str(self.directory / "state"),
        }

    def kernel_state(self) -> dict[str, Any]:
        """Everything of PFs and VFs that must be again as it was, each part by a key of its own."""
        raise NotImplementedError

    # Processes

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    def config(self, name: str, document: dict[str, object]) -> Path:
        """The configuration file of a process."""
        path = self.directory / f"{name}.yaml"
        path.write_text(json.dumps(document))
        return path

    def start_agent(self) -> None:
        """Start it; it serves when this returns."""
        self.agent = self.start("agent", self.config("agent", self.document() | self.settings))
        self.wait("the agent", lambda: self.try_report() is not None)

    def start_with_slots(
        self, count: int, *, plugin_dir: Path, pod_resources: Path, cdi_dir: Path, **settings: Any
    ) -> None:
        """Start the agent, and a device plugin with so many slots. settings: of the agent."""
        plugin = {
            "resources": [{"mode": "exact", "count": count}],
            "kubeletDir": str(plugin_dir),
            "podResources": str(pod_resources),
            "runDir": str(self.run_dir),
            "port": None,
        }
        config = self.config("device-plugin", plugin)
        self.settings = {"devicePlugin": str(config), "cdiDir": str(cdi_dir), **settings}
        self.start_agent()
        self.start("device-plugin", config)

    def start(self, command: str, config: Path, *, user: int | None = None) -> Started:
        """One of the processes; it is killed at the end if it runs still.

        user: whose it is, without other groups than its own; the caller's by default.
        """
        with (self.directory / f"{command}.log").open("ab") as log:
            process = start_logged([command, "--config", config], log, enter=self.enter, user=user)
        self._stack.callback(_end, process, self.deadline_s)
        return process

    def kill_agent(self) -> None:
        """`kill -9`."""
        assert self.agent is not None
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait(self.deadline_s)
        self.agent = None

    def log(self) -> list[dict[str, Any]]:
        """Return the agent's log."""
        return [json.loads(line) for line in (self.directory / "agent.log").read_text().splitlines()]

    # The runtime

    def runtime(self, *, chained: bool, ours: dict[str, object] | None = None) -> CniRuntime:
        """With our plugin alone, or behind `bridge`, whose CHECK knows no addresses but its own."""
        rdma = {
            "type": "k8s-rdma-cni",
            "runDir": str(self.run_dir),
            "capabilities": {ANNOTATIONS: True},
            "ipam": self._ipam("rdma", "10.56.0.0/24"),
        }
        before = {"type": "bridge", "bridge": "cni0", "ipam": self._ipam("pods", "10.244.0.0/24")}
        plugins = [*([before] if chained else []), rdma | (ours or {})]
        conflist = self.directory / ("chained.conflist" if chained else "alone.conflist")
        network = {"cniVersion": "1.0.0", "name": "net", "disableCheck": chained, "plugins": plugins}
        conflist.write_text(json.dumps(network))
        return CniRuntime(self.cni_path, conflist, self.directory / "netns")

    def _ipam(self, name: str, subnet: str) -> dict[str, object]:
        directory = str(self.directory / "leases" / name)
        return {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": directory}

    # Looking at it, never by way of the tested code

    def ip(self, *arguments: str, netns: str | None = None) -> list[dict[str, Any]]:
        inside = ["nsenter", f"--net={netns}"] if netns else []
        command = [*(self.enter if netns else []), *inside, "ip", "-json", *arguments]
        shown = subprocess.run(command, capture_output=True, check=True)
        return json.loads(shown.stdout or b"[]")

    def leases(self, network: str = "*") -> list[str]:
        """Return the addresses that host-local has given; not those of empty files.

        host-local leaves such a file if it is killed between the lease's creation and its write, as with the
        agent, and no DEL finds it (docs/operating-a-node.md;
        https://github.com/containernetworking/plugins/issues/498).
        """
        files = (self.directory / "leases").glob(f"{network}/*/*")
        return sorted(path.name for path in files if path.name[0] in "123456789" and _is_written(path))

    def markers(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "attachments").iterdir())

    def deferred_deletions(self) -> list[str]:
        """DELs that found no agent, and are left to the next one."""
        return sorted(path.name for path in (self.run_dir / "deletions").glob("*"))

    def leftovers(self) -> dict[str, Any]:
        """Return changes since before the first pod: VFs, rates, leases, markers, deletions, allocations."""
        now = self.kernel_state()
        found = {
            f"{what} {key}": (value, now[what].get(key))
            for what, before in self.pristine.items()
            for key, value in before.items()
            if now[what].get(key) != value
        }
        report = self.try_report()
        others = {
            "leases": self.leases(),
            "markers": self.markers(),
            "deletions": self.deferred_deletions(),
            "allocations": report.allocations if report else (),
        }
        return found | {what: left for what, left in others.items() if left}

    def try_report(self) -> NodeReport | None:
        """Return the first report of `state.sock`, if a process listens there."""
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(self.deadline_s)
            try:
                reader.connect(str(self.run_dir / "state.sock"))
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            return _read_report(reader)

    @contextmanager
    def reports(self) -> Iterator[Iterator[NodeReport]]:
        """The reports that `state.sock` sends, the present one first."""
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(self.deadline_s)
            reader.connect(str(self.run_dir / "state.sock"))
            yield iter(lambda: _read_report(reader), None)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Look until it holds."""
        end = time.monotonic() + self.deadline_s
        while not holds():
            assert self.agent is None or self.agent.poll() is None, (self.directory / "agent.log").read_text()
            assert time.monotonic() < end, f"{what}: not within {self.deadline_s} s"
            time.sleep(0.002)


def pod(name: str, *interfaces: dict[str, int], text: str | None = None) -> PodRef:
    """Return a pod that asks for these interfaces; without any, one without our annotation."""
    wish = text if text is not None else json.dumps(interfaces)
    annotations = {"rdma_interfaces_required": wish} if interfaces or text is not None else {"other": "x"}
    return PodRef(namespace="default", name=name, uid=f"uid-{name}", annotations=annotations)


def _read_report(reader: socket.socket) -> NodeReport:
    kind, size = decode_header(reader.recv(HEADER.size, socket.MSG_WAITALL))
    assert kind is MessageKind.REPORT
    return decode_report(reader.recv(size, socket.MSG_WAITALL))


def _is_written(lease: Path) -> bool:
    try:
        return bool(lease.read_bytes())
    except FileNotFoundError:
        return False


def _end(process: Started, deadline_s: float) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(deadline_s)
