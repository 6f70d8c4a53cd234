"""Trials on one node: interfaces by CNI calls of the installed executable, each in a namespace of its own.

The agent places them like those of any pod, so a PF that is full refuses them. It gives interfaces to calls
without a placement only if placements are not signed (`allowUnplaced`); if they are, use `verify.cluster`.
The namespaces are mounted in `verify` below the agent's `runDir`. A run that was killed leaves them there,
and the next one gives the interfaces back first.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self, TypeVar

from k8s_rdma.core.node_paths import STATE_SOCKET
from k8s_rdma.core.verification import Flow, InterfaceRates, PfFacts, TrafficKind, Trial, UnmeasuredError
from k8s_rdma.doctor.collectors.processes import ask_agent
from k8s_rdma.errors import STATUS, K8sRdmaError, Reason
from k8s_rdma.linux.netns import entered
from k8s_rdma.verify.interruption import undisturbed
from k8s_rdma.verify.traffic import Session, connect, listen, receive, send, streams_of
from k8s_rdma.wire.nesting import load
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report import Interface
from k8s_rdma.wire.verification import pf_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.wire.report import NodeReport

T = TypeVar("T")

NETWORK = "k8s-rdma-verify"
"""The network's name, which no runtime's has: its GC leaves our attachments alone."""

_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
_CALL_TIMEOUT_S = 60.0
_REPORT_TIMEOUT_S = 10.0
_PROGRAM_TIMEOUT_S = 60.0
_VERBS_PORT = 18515
_MESSAGE, _DEPTH = 16_384, 16
"""Bytes of an RDMA write, and how many are under way: few are left to be sent when the time is over."""

_ACK_TIMEOUT = "18"
"""A queue pair repeats packets that are not acknowledged after 4.096 us * 2^18: packets that wait below a
small cap are late, and soft-RoCE of Linux 6.1 does not survive repetitions."""

_MIB = 1 << 20
_BEGINNING, _PACKET = 16, 14 + 20 + 8 + 12 + 4
"""Bytes of headers: RETH of a write's first packet; Ethernet, IPv4, UDP, BTH and ICRC of each (InfiniBand
specification, chapter 9, annex A17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEndpoint:
    """An interface in its namespace (a file). rdma: its RDMA device; empty without one."""

    netns: Path
    address: str
    interface: Interface
    rdma: str = ""

    def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in the namespace, on a thread of its own, which is the one that changes it."""

        def inside() -> T:
            with self.netns.open("rb") as netns, entered(netns.fileno()):
                return function(*arguments)

        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(inside).result()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs a program in the namespace."""
        return ["nsenter", f"--net={self.netns}", "--", *arguments]


class NodeSite:
    """The node that this runs on; a context manager, one at a time.

    run_dir: the agent's.
    plugin: the CNI executable.
    receiver_pf: name or PCI address of a PF, for traffic that leaves the card; None for the sender's.
    soft_roce: whether interfaces get a soft-RoCE device (`rdma_rxe`), if VFs have no RDMA device of their
        own.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        plugin: Path,
        seconds: float,
        receiver_pf: str | None = None,
        soft_roce: bool = False,
    ) -> None:
        self._run_dir, self._plugin, self._seconds = run_dir, plugin, seconds
        self.receiver_pf, self._soft_roce = receiver_pf, soft_roce
        self._directory = run_dir / "verify"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the node for this run, and release the interfaces of an earlier one."""
        with ExitStack() as stack:
            try:
                self._directory.mkdir(mode=0o700, exist_ok=True)
                lock = stack.enter_context((self._run_dir / "verify.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise K8sRdmaError("another `k8s-rdma verify` runs on this node") from error
            except OSError as error:
                msg = f"--run-dir {self._run_dir}: {error.strerror}; this needs root on a node with an agent"
                raise K8sRdmaError(msg) from error
            with undisturbed():
                for netns in sorted(self._directory.iterdir()):
                    self._detach(netns)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def facts(self) -> tuple[PfFacts, ...]:
        """Return the node's PFs. K8sRdmaError if no agent answers."""
        report = self._report()
        reported = {pf.pci: pf for pf in report.pfs}
        return tuple(
            replace(
                pf,
                firmware=reported[pf.pci].firmware,
                rdma=self._soft_roce or reported[pf.pci].rdma_device is not None,
            )
            for pf in pf_facts(status_of(report))
        )

    def run(self, trial: Trial) -> tuple[Flow, ...]:
        """Attach the interfaces, send, and give them back."""
        if trial.traffic is TrafficKind.VERBS and shutil.which("ib_write_bw") is None:
            raise UnmeasuredError("ib_write_bw is not installed: install the package perftest")
        with undisturbed() as disturbed, ExitStack() as stack, disturbed:
            hosts = iter(range(1, 255))
            receiver_pf = self.receiver_pf or trial.pf.pci
            peer = self._attach(stack, receiver_pf, InterfaceRates(), next(hosts))
            senders = [self._attach(stack, trial.pf.pci, rates, next(hosts)) for rates in trial.senders]
            sources, destination = ([peer], senders[0]) if trial.reverse else (senders, peer)
            if trial.traffic is TrafficKind.VERBS:
                figures = [self._write(source, destination) for source in sources]
            else:
                figures = self._send(sources, destination, streams_of(trial.pf.link_mbps or 0))
            return tuple(
                flow_of(mbps, endpoint, trial.traffic)
                for mbps, endpoint in zip(figures, senders, strict=True)
            )

    # Traffic

    def _send(
        self, sources: Sequence[TrafficEndpoint], destination: TrafficEndpoint, streams: int
    ) -> list[float]:
        session = Session(token=token_hex(16), flows=len(sources), streams=streams, seconds=self._seconds)
        listener = destination.run(listen, destination.address, destination.interface.ifname)
        with listener, ThreadPoolExecutor(max_workers=len(sources)) as pool:
            target = (destination.address, listener.getsockname()[1])
            sending = [
                pool.submit(_send_from, source, target, session, flow) for flow, source in enumerate(sources)
            ]
            rates = receive(listener, session)
        for future in sending:
            future.result()
        return list(rates)

    def _write(self, source: TrafficEndpoint, destination: TrafficEndpoint) -> float:
        """Send RDMA writes through one queue pair; the first and the last second do not count."""
        if not (source.rdma and destination.rdma):
            raise UnmeasuredError("the VF has no RDMA device; --soft-roce makes one of software")
        options = (
            *("ib_write_bw", "-F", "-Q", "1", "-p", str(_VERBS_PORT), "-u", _ACK_TIMEOUT),
            *("-s", str(_MESSAGE), "-t", str(_DEPTH), "-D", str(ceil(self._seconds) + 2), "-f", "1"),
        )
        server = subprocess.Popen(
            destination.command(*options, "-d", destination.rdma),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await_listening(server, _VERBS_PORT)
            client = source.command(*options, "-d", source.rdma, destination.address)
            return frames_written(_run(client, timeout_s=self._seconds + _PROGRAM_TIMEOUT_S))
        finally:
            server.kill()
            server.wait()

    # Interfaces

    def _attach(self, undo: ExitStack, pf: str, rates: InterfaceRates, host: int) -> TrafficEndpoint:
        """Attach an interface on a PF to a new namespace. UnmeasuredError with the agent's refusal.

        host: the last part of its address, of a network for measurements (RFC 2544).
        """
        netns = self._directory / token_hex(8)
        request = {"pf": pf} | {
            key: mbps
            for key, mbps in (("min_tx_rate", rates.min_mbps), ("max_tx_rate", rates.max_mbps))
            if mbps
        }
        undo.callback(self._detach, netns)
        netns.touch(exist_ok=False)
        _run(["unshare", f"--net={netns}", "--", "ip", "link", "set", "lo", "up"])
        self._call("ADD", netns, [request])
        interface, address = self._interface(netns.name), f"198.18.0.{host}"
        endpoint = TrafficEndpoint(
            netns=netns, address=address, interface=interface, rdma=interface.rdma_device
        )
        _run(endpoint.command("ip", "address", "add", f"{address}/24", "dev", interface.ifname))
        if self._soft_roce and not endpoint.rdma:
            device = f"rxe_{netns.name}"
            _run(endpoint.command("rdma", "link", "add", device, "type", "rxe", "netdev", interface.ifname))
            endpoint = replace(endpoint, rdma=device)
        return endpoint

    def _detach(self, netns: Path) -> None:
        """Give the interface back, and end the namespace; also of a run that was ended at any point."""
        self._call("DEL", netns)
        with suppress(UnmeasuredError):  # not mounted yet
            _run(["umount", "--lazy", str(netns)])  # the agent may have it open
        netns.unlink(missing_ok=True)

    def _call(self, command: str, netns: Path, request: list[dict[str, Any]] | None = None) -> None:
        """Call the executable as a runtime does (CNI specification 1.1.0, section 2), outside Kubernetes."""
        conf: dict[str, Any] = {
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": self._plugin.name,
            "runDir": str(self._run_dir),
        }
        if request is not None:
            annotations = {"rdma_interfaces_required": json.dumps(request)}
            conf["runtimeConfig"] = {_ANNOTATIONS: annotations}
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"{NETWORK}-{netns.name}",
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": "rdma0",
            "CNI_PATH": str(self._plugin.parent),
        }
        try:
            ended = subprocess.run(
                [str(self._plugin)],
                input=json.dumps(conf).encode(),
                env=environment,
                capture_output=True,
                timeout=_CALL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise K8sRdmaError(f"--plugin {self._plugin}: {error}") from error
        if ended.returncode:
            code, refusal = _cni_error(ended.stdout)
            if command == "DEL":
                raise K8sRdmaError(f"{netns}: not given back: {refusal}; run this again when the agent runs")
            if code == STATUS[Reason.STALE_PLACEMENT].cni:
                raise K8sRdmaError("this agent takes placed pods only: use `k8s-rdma verify cluster`")
            raise UnmeasuredError(refusal)

    def _interface(self, netns: str) -> Interface:
        """Return the agent's report of an interface that was added."""
        deadline_s = time.monotonic() + _REPORT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for allocation in self._report().allocations:
                if allocation.container_id == f"{NETWORK}-{netns}" and allocation.phase == "attached":
                    return allocation.interfaces[0]
            time.sleep(0.05)
        raise UnmeasuredError(f"the agent does not report the interface within {_REPORT_TIMEOUT_S:g} s")

    def _report(self) -> NodeReport:
        report, why = ask_agent(self._run_dir / STATE_SOCKET)
        if report is None:
            raise K8sRdmaError(f"no agent answers: {why}")
        return report


def flow_of(mbps: float, endpoint: TrafficEndpoint, traffic: TrafficKind) -> Flow:
    """Combine a figure with the node's report.

    A cap by a queueing discipline does not cover verbs of a card's own device, because it does not see them.
    """
    interface = endpoint.interface
    max_by = interface.enforced.max
    bypassed = (
        traffic is TrafficKind.VERBS and max_by == "software" and endpoint.rdma == interface.rdma_device
    )
    return Flow(
        mbps=mbps,
        min_by=interface.enforced.min,
        max_by=None if bypassed else max_by,
        cap_mbps=interface.software_max_tx_rate or interface.set_max_tx_rate,
    )


def _send_from(source: TrafficEndpoint, target: tuple[str, int], session: Session, flow: int) -> None:
    with ExitStack() as stack:
        ifname = source.interface.ifname
        connections = [
            stack.enter_context(source.run(connect, source.address, ifname, target))
            for _ in range(session.streams)
        ]
        send(connections, session, flow)


def frames_written(printed: str) -> float:
    """Read Mb/s of Ethernet frames from the output of ib_write_bw. UnmeasuredError if it has no result."""
    line = re.search(rf"^ *{_MESSAGE} +\d+ +\S+ +(?P<average>[\d.]+)", printed, re.MULTILINE)
    path = re.search(r"\bMtu *: *(?P<mtu>\d+)\[B\]", printed)
    if line is None or path is None:
        last = printed.strip().splitlines()[-1:]
        raise UnmeasuredError(f"ib_write_bw printed no result: {''.join(last)}")
    frames = _MESSAGE + _BEGINNING + ceil(_MESSAGE / int(path["mtu"])) * _PACKET
    return float(line["average"]) * _MIB * 8 / 1e6 * frames / _MESSAGE


def _await_listening(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the process's namespace has a listener on a TCP port (proc(5), `/proc/net/tcp`)."""
    deadline_s = time.monotonic() + _PROGRAM_TIMEOUT_S
    listening = re.compile(rf":{port:04X} \w+:0000 0A ")
    while time.monotonic() < deadline_s and server.poll() is None:
        sockets = "".join(
            path.read_text()
            for name in ("tcp", "tcp6")
            if (path := Path(f"/proc/{server.pid}/net/{name}")).exists()
        )
        if listening.search(sockets):
            return
        time.sleep(0.05)
    raise UnmeasuredError("ib_write_bw does not start; run it by hand to see why")


def _run(command: Sequence[str], timeout_s: float = _PROGRAM_TIMEOUT_S) -> str:
    """Run a program; its output. UnmeasuredError with its complaint."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeasuredError(f"{command[0]}: {error}") from error
    if ended.returncode:
        complaint = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        program = next((word for word in command[1:] if not word.startswith("-")), command[0])
        raise UnmeasuredError(f"{program}: {''.join(complaint) or f'exit status {ended.returncode}'}")
    return ended.stdout


def _cni_error(stdout: bytes) -> tuple[int, str]:
    """Code and message of a CNI error (CNI specification 1.1.0, section 5)."""
    with suppress(ValueError, LookupError, TypeError):
        document = load(stdout)
        return int(document["code"]), str(document["msg"])
    return 0, stdout.decode(errors="replace").strip() or "the executable failed without a message"
