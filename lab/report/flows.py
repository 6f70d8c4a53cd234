"""Traffic from one interface to another: ping, rping, TCP by iperf3, verbs by ib_write_bw.

The programs run in the pods' network namespaces, each on its machine; servers are up before clients begin.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE = 16384
"""Of an RDMA write; with DEPTH of them under way, little is left to be sent when the time is over."""
DEPTH = 16
TIMEOUT = "18"
"""A queue pair repeats packets without acknowledgment after 4.096 us * 2^18, 1.1 s. By its default of 67 ms,
packets that wait under a cap of a few Mb/s, or on a busy emulator, would be sent twice, which soft-RoCE of
Linux 6.1 does not survive: the peer refuses repeats in the middle of a message (status 9 or 11)."""
TCP_PORT, VERBS_PORT = 5201, 18515
BEYOND_S = 90.0
"""The time of a program beyond the time that it measures: an emulated machine may be busy."""
_RPING = "for _ in {1..12}; do timeout 15 rping -c -a $0 -C 2 && exit; sleep 1; done; exit 1"
"""rdma_cm's ports are not shown by ss: a server that has not come up yet refuses."""
_MIB = 2**20
"""perftest's "MB"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An interface in a pod. netns: path of its namespace on its machine. rdma: its soft-RoCE device."""

    machine: Machine
    netns: str
    ifname: str
    address: str
    rdma: str = ""

    def command(self, *argv: str) -> tuple[str, ...]:
        """Return the same command in the pod's namespace."""
        return ("nsenter", f"--net={self.netns}", *argv)

    def run(self, *argv: str, timeout_s: float = BEYOND_S, check: bool = True) -> str:
        """Run a command; return its output."""
        return self.machine.run(*self.command(*argv), timeout_s=timeout_s, check=check).stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """Payload in Mb/s by messages of `message` bytes over a path of this MTU."""

    mbps: float
    message: int
    path_mtu: int


def make_rdma(endpoint: Endpoint) -> None:
    """Make a soft-RoCE device on the interface: one that was on the VF at home ends when the VF moves."""
    endpoint.run("rdma", "link", "add", endpoint.rdma, "type", "rxe", "netdev", endpoint.ifname)


def mtu(endpoint: Endpoint) -> int:
    """Return the interface's MTU, bytes."""
    return int(json.loads(endpoint.run("ip", "-json", "link", "show", "dev", endpoint.ifname))[0]["mtu"])


def pings(source: Endpoint, destination: Endpoint) -> bool:
    """Report whether one of five echoes came back through the interface."""
    command = source.command("ping", "-q", "-c5", "-i0.2", "-W2", "-I", source.ifname, destination.address)
    return source.machine.run(*command, timeout_s=BEYOND_S, check=False).returncode == 0


def rpings(source: Endpoint, destination: Endpoint) -> bool:
    """Report whether an RDMA connection carries data and is ended, by rdma_cm."""
    command = source.command("bash", "-c", _RPING, destination.address)
    with _serving(destination, "rping", "-s", "-a", destination.address, "-C", "2"):
        return source.machine.run(*command, timeout_s=3 * BEYOND_S, check=False).returncode == 0


def tcp(source: Endpoint, destination: Endpoint, seconds: int) -> float:
    """Return the payload received in Mb/s, of `seconds` after one that does not count."""
    server = ("iperf3", "--server", "--one-off", "--bind", destination.address, "--port", str(TCP_PORT))
    with _serving(destination, *server, port=TCP_PORT):
        said = source.run(
            *("iperf3", "--client", destination.address, "--port", str(TCP_PORT), "--json"),
            *("--time", str(seconds), "--omit", "1"),
            timeout_s=seconds + BEYOND_S,
        )
    return received_mbps(said)


def received_mbps(iperf3: str) -> float:
    """Return Mb/s from the output of iperf3 --json; raise LabError with its own error."""
    document = json.loads(iperf3)
    if "error" in document:
        raise LabError(f"iperf3: {document['error']}")
    return float(document["end"]["sum_received"]["bits_per_second"]) / 1e6


def verbs(source: Endpoint, destination: Endpoint, seconds: int) -> Verbs:
    """Measure RDMA writes through one queue pair, of `seconds` between two more that do not count."""
    duration = ("-D", str(seconds + 2), "-f", "1")
    each = ("ib_write_bw", "-F", "-s", str(MESSAGE), "-t", str(DEPTH), "-Q", "1", "-u", TIMEOUT, *duration)
    with _serving(destination, *each, "-d", destination.rdma, port=VERBS_PORT):
        said = source.run(*each, "-d", source.rdma, destination.address, timeout_s=seconds + BEYOND_S)
    return written(said, MESSAGE)


def written(perftest: str, message: int) -> Verbs:
    """Read the output of ib_write_bw; raise LabError with all of it if it has no result."""
    line = re.search(rf"^ *{message} +\d+ +\S+ +(?P<average>[\d.]+)", perftest, re.MULTILINE)
    path = re.search(r"\bMtu *: *(?P<mtu>\d+)\[B\]", perftest)
    if line is None or path is None:
        raise LabError(f"ib_write_bw printed no result:\n{perftest}")
    return Verbs(mbps=float(line["average"]) * _MIB * 8 / 1e6, message=message, path_mtu=int(path["mtu"]))


@contextmanager
def _serving(endpoint: Endpoint, *argv: str, port: int | None = None) -> Iterator[None]:
    """Run a server of one client, listening when entered; without a port, the client has to try again."""
    server = endpoint.machine.start(*endpoint.command(*argv), name=f"{argv[0]}-{endpoint.address}")
    try:
        if port is not None:
            listens = f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.1; done"
            endpoint.run("bash", "-c", listens)
        yield
    finally:
        server.kill() if server.running() else server.wait()
