"""CNI executables run as a runtime does, and the times that they take."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import ANNOTATIONS, LINK_MBPS, Node
from k8s_rdma.agent.reconciler import SETTLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).parents[1] / "build" / "k8s-rdma-cni"
PLUGINS = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"
CONTAINER = "c0ffee"
VFS = 32
MIN_MBPS = LINK_MBPS // VFS
QUIET_S = SETTLE_S + 0.2
"""The agent has looked at a change after this time."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, or a user namespace (`make bench`)")


class Plugin:
    """An executable that is run as a runtime does, with its input in a file."""

    def __init__(
        self, path: str, node: Node, netns: Path, netconf: dict[str, Any], container: str = CONTAINER
    ) -> None:
        self._path, self._netns, self._container = path, netns, container
        name = f"{Path(path).name}.{container}"
        self._stdin, self._stdout = (node.directory / f"{name}.{end}" for end in ("in", "out"))
        self._stdin.write_text(json.dumps(netconf))

    def run(self, command: str, ifname: str = "eth0") -> None:
        """Run one call, from its spawn to its end."""
        env = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": self._container,
            "CNI_NETNS": str(self._netns),
            "CNI_IFNAME": ifname,
            "CNI_PATH": PLUGINS,
            "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;"
            f"K8S_POD_NAME=p;K8S_POD_UID=uid-{self._container}",
        }
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, str(self._stdin), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._stdout), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        process = os.posix_spawn(self._path, [self._path], env, file_actions=actions)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status == 0, self._stdout.read_text()


class Rounds:
    """Times in milliseconds, by the name of the work."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def time(self, what: str, work: Callable[[], object]) -> None:
        """Do the work, and leave the agent time to look at it."""
        started = time.perf_counter()
        work()
        self._times.setdefault(what, []).append((time.perf_counter() - started) * 1e3)
        time.sleep(QUIET_S)

    def __getitem__(self, what: str) -> float:
        return median(self._times[what])

    def beyond(self, what: str, less: str) -> float:
        """Return the median of one less the other, round by round."""
        return median(a - b for a, b in zip(self._times[what], self._times[less], strict=True))

    def ratios(self, what: str, floor: str) -> tuple[float, float, float]:
        """Return least, median and greatest ratio of one to the other, round by round."""
        found = sorted(a / b for a, b in zip(self._times[what], self._times[floor], strict=True))
        return found[0], median(found), found[-1]

    def add(self, what: str, milliseconds: float) -> None:
        """Add a time that was measured in another way."""
        self._times.setdefault(what, []).append(milliseconds)


def synced_write_ms(directory: Path) -> float:
    """Return the time that a write of one page to the ledger's disk takes."""
    times = []
    with (directory / "page").open("wb", buffering=0) as file:
        for _ in range(9):
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def netconf(node: Node, count: int, ipam: dict[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of our plugin, not chained, for a pod that asks for so many interfaces."""
    wish = json.dumps([{"min_tx_rate": MIN_MBPS, "max_tx_rate": 2 * MIN_MBPS}] * count)
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", "runDir": str(node.run_dir)}
    delivered = {"runtimeConfig": {ANNOTATIONS: {"rdma_interfaces_required": wish}}}
    return conf | delivered | ({"ipam": ipam} if ipam else {})
