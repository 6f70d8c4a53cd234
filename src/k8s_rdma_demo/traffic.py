"""Traffic between interfaces of pods: datagrams to check reachability, and TCP by iperf3.

Rates are enforced on whole Ethernet frames; of a 1,514 byte frame TCP carries 1,448 bytes, so 95.6 % of a
rate is the most that a transfer can show.
"""

from __future__ import annotations

import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netns import entered
from k8s_rdma_demo.launch import IPERF3

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 7
TIMEOUT_S = 2.0
WARM_UP_S = 1
BASE_PORT = 5201
DEADLINE_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An interface in a pod: the pod, its namespace, the name there and its IPv4 address."""

    pod: str
    netns: Path
    ifname: str
    address: str


def unreachable(pairs: Sequence[tuple[Endpoint, Endpoint]]) -> list[str]:
    """Send a datagram from each first to each second endpoint; return the sending interfaces of lost ones.

    Each socket is tied to its interface, so no datagram can go or arrive another way.
    """
    with ExitStack() as sockets:
        senders = [sockets.enter_context(_bind_all(source)) for source, _ in pairs]
        receivers = [sockets.enter_context(_bind_all(destination)) for _, destination in pairs]
        return [
            source.ifname
            for (source, destination), sender, receiver in zip(pairs, senders, receivers, strict=True)
            if not _passes(sender, receiver, source, destination)
        ]


def _passes(sender: socket.socket, receiver: socket.socket, source: Endpoint, destination: Endpoint) -> bool:
    payload = f"{source.ifname} to {destination.ifname}".encode()
    sender.sendto(payload, (destination.address, PORT))
    try:
        received, (address, _) = receiver.recvfrom(len(payload) + 1)
    except TimeoutError:
        return False
    return received == payload and address == source.address


def _bind_all(endpoint: Endpoint) -> socket.socket:
    """A UDP socket in the pod; made on a thread of its own, which is the one that changes namespace."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_bind, endpoint).result()


def _bind(endpoint: Endpoint) -> socket.socket:
    with endpoint.netns.open("rb") as netns, entered(netns.fileno()):
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.settimeout(TIMEOUT_S)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, endpoint.ifname.encode())
    bound.bind((endpoint.address, PORT))
    return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A measured TCP connection."""

    name: str
    source: Endpoint
    destination: Endpoint


def measure(flows: Sequence[Flow], *, seconds: int) -> dict[str, float]:
    """Run all flows at the same time; Mb/s received by each, by name, without the first second."""
    with ExitStack() as servers, ThreadPoolExecutor(max_workers=len(flows)) as pool:
        for index, flow in enumerate(flows):
            servers.enter_context(Server(flow.destination, BASE_PORT + index))
        results = pool.map(
            lambda item: _send(item[1], BASE_PORT + item[0], seconds),
            enumerate(flows),
            timeout=seconds + DEADLINE_S,
        )
        return {flow.name: rate for flow, rate in zip(flows, results, strict=True)}


class Server:
    """`iperf3 --server` for one connection, listening when entered."""

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        self._command = in_pod(
            endpoint,
            *("--server", "--one-off", "--forceflush", "--interval", "0"),
            *("--port", str(port), "--bind", endpoint.address),
        )

    def __enter__(self) -> None:
        """Listen; K8sRdmaError if it does not."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output = []
        for line in self._process.stdout or ():
            output.append(line)
            if "Server listening" in line:
                return
        msg = f"{' '.join(self._command)}: {''.join(output).strip() or 'ended at once'}"
        raise K8sRdmaError(msg)

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Stream:
    """A TCP connection that sends while entered, at a rate below the interface's cap."""

    def __init__(self, flow: Flow, *, port: int, mbps: int) -> None:
        self._server = Server(flow.destination, port)
        self._command = in_pod(
            flow.source,
            *("--client", flow.destination.address, "--port", str(port)),
            *("--bind", f"{flow.source.address}%{flow.source.ifname}"),
            *("--time", "0", "--bitrate", f"{mbps}M"),
        )

    def __enter__(self) -> None:
        """Listen, and send; K8sRdmaError if the server does not listen."""
        self._server.__enter__()
        self._client = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._client.kill()
        self._client.wait()
        self._server.__exit__()


def _send(flow: Flow, port: int, seconds: int) -> float:
    command = in_pod(
        flow.source,
        *("--client", flow.destination.address, "--port", str(port), "--json"),
        *("--bind", f"{flow.source.address}%{flow.source.ifname}"),
        *("--time", str(seconds), "--omit", str(WARM_UP_S), "--connect-timeout", "3000"),
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + DEADLINE_S)
    document: dict[str, Any] = {}
    try:
        document = json.loads(ended.stdout)
        return float(document["end"]["sum_received"]["bits_per_second"]) / 1e6
    except (ValueError, KeyError) as error:
        why = document.get("error") or ended.stderr.strip()
        msg = f"flow {flow.name}: iperf3: {why or f'exit status {ended.returncode}'}"
        raise K8sRdmaError(msg) from error


def in_pod(endpoint: Endpoint, *arguments: str) -> list[str]:
    """Return the command that runs iperf3 in a pod."""
    return ["nsenter", f"--net={endpoint.netns}", IPERF3, *arguments]
