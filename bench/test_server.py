"""The node's server: `/getpfs` of 2 x 120 VFs that do not change, and a look at 8 x 127 VFs.

Requests for each second that the server's process runs on a processor, for information. Budget: no request to
the kernel.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from bench.cni_plugin import needs_root
from k8s_rdma.server.agent_link import render_traffic
from k8s_rdma.wire.report import ReportedPod
from k8s_rdma.wire.state_socket import Counters, ScanCounts, VfTraffic

if TYPE_CHECKING:
    from conftest import Record
    from e2e.node import Node

SCAN = Path(__file__).with_name("scan_program.py")
SCANNED_PFS, SCANNED_VFS = 8, 127
VFS = 120
PORT = 54005
CONNECTIONS = 8
REQUESTS = 4_000
ROUNDS = 7
REQUEST = b"GET /getpfs HTTP/1.1\r\nHost: w1:54005\r\nUser-Agent: Go-http-client/1.1\r\nAccept: */*\r\n\r\n"


class Load:
    """Clients of one server, each with a question open at a time."""

    def __init__(self, port: int, pid: int, resources: ExitStack) -> None:
        self._pid = pid
        self._clients = [
            resources.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            for _ in range(CONNECTIONS)
        ]
        self._buffer = bytearray(1 << 20)
        self._clients[0].sendall(REQUEST)
        self._length = self._first_answer()

    def round(self) -> tuple[float, float]:
        """Return requests by second of the server's processor time, and by second."""
        ran, began = self._ran_s(), time.perf_counter()
        for _ in range(REQUESTS // CONNECTIONS):
            for client in self._clients:
                client.sendall(REQUEST)
            for client in self._clients:
                self._take(client)
        return REQUESTS / (self._ran_s() - ran), REQUESTS / (time.perf_counter() - began)

    def _take(self, client: socket.socket) -> None:
        left = self._length
        while left:
            left -= client.recv_into(self._buffer)

    def _first_answer(self) -> int:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._clients[0].recv(1 << 20)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        body = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        for_now = body - len(rest)
        while for_now:
            for_now -= self._clients[0].recv_into(self._buffer)
        return len(head) + 4 + body

    def _ran_s(self) -> float:
        tasks = Path(f"/proc/{self._pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def looks(http: httpx2.Client) -> int:
    """Return how often the agent has looked at the hardware."""
    lines = http.get("/metrics").text.splitlines()
    return next(
        int(float(line.split()[-1]))
        for line in lines
        if line.startswith("k8s_rdma_scan_duration_seconds_count")
    )


def netlink_sockets(pid: int) -> int:
    """Return the number of a process's netlink sockets: without one it cannot ask the kernel about links."""
    inodes = {line.split()[9] for line in Path(f"/proc/{pid}/net/netlink").read_text().splitlines()[1:]}
    targets = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return sum(target.removeprefix("socket:[").removesuffix("]") in inodes for target in targets)


@needs_root
def test_getpfs(node: Node, record: Record) -> None:
    config = node.directory / "server.yaml"
    config.write_text(json.dumps({"runDir": str(node.run_dir)}))
    server = node.start("server", config)
    with (
        httpx2.Client(base_url=f"http://127.0.0.1:{PORT}", trust_env=False) as http,
        ExitStack() as resources,
    ):

        def answers() -> bool:
            try:
                return http.get("/readyz").is_success
            except httpx2.TransportError:
                return False

        node.wait("the server", answers)
        size = len(http.get("/getpfs").content)
        load = Load(PORT, server.pid, resources)
        before = looks(http)
        rounds = [load.round() for _ in range(ROUNDS)]
        asked = looks(http) - before + netlink_sockets(server.pid)
    rate, by_clock = (statistics.median(round_[unit] for round_ in rounds) for unit in (0, 1))
    what = f"/getpfs of 2 x {VFS} VFs"
    note = f"{size} bytes; by the clock, with one client process: {by_clock:,.0f}"
    record(f"{what}, a core", budget=None, measured=rate, unit="requests/s", note=note)
    name = f"{what}, looks at the kernel in {ROUNDS * REQUESTS:,} requests"
    record(
        name, budget=0, measured=asked, unit="looks", note="the agent's, and netlink sockets of the server"
    )


def test_scan(record: Record, tmp_path: Path) -> None:
    command = [sys.executable, str(SCAN), str(tmp_path), str(SCANNED_PFS), str(SCANNED_VFS)]
    took = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    what = f"look at {SCANNED_PFS} PFs x {SCANNED_VFS} VFs"
    note = "processor time; sysfs a copy of files, netlink's answers ready"
    record(what, budget=None, measured=took["first_ms"], unit="ms", note=note)
    record(f"{what}, one PF changed", budget=None, measured=took["one_pf_ms"], unit="ms", note=note)
    record(f"{what}, nothing changed, by the server", budget=None, measured=took["unchanged_ms"], unit="ms")
    name = f"{what}, memory of {took['bytes']:,} bytes of answers and all that led to them"
    record(name, budget=None, measured=took["mib"], unit="MiB")


HELD_VFS, HW_COUNTERS = 1_000, 30


def test_metrics(record: Record) -> None:
    """Render a scrape if pods hold 1,000 VFs with RDMA devices, and if these VFs are free."""
    rdma = {f"counter_{number}": 10**9 + number for number in range(HW_COUNTERS)}

    def counters(*, held: bool) -> Counters:
        vfs = (
            VfTraffic(
                pf=f"0000:{vf // 125:02x}:00.0",
                pf_name=f"enp{vf // 125}s0",
                vf=vf % 125,
                **dict.fromkeys(("tx_bytes", "rx_bytes", "tx_packets", "rx_packets"), 10**12),
                **dict.fromkeys(("tx_dropped", "rx_dropped"), 7),
                rdma=rdma,
                pod=ReportedPod(namespace="team", name=f"trainer-{vf}", uid=str(vf)) if held else None,
                ifname="rdma0",
            )
            for vf in range(HELD_VFS)
        )
        scans = ScanCounts(total=1, failed=0, seconds=0.1)
        return Counters(node="w1", age_s=1.0, failed_samples=0, scans=scans, vfs=tuple(vfs))

    def rendered_s(sample: Counters) -> float:
        began = time.process_time()
        render_traffic(sample)
        return time.process_time() - began

    held = counters(held=True)
    text = render_traffic(held)
    series = sum(line.startswith(b"k8s_rdma_vf_") for line in text.splitlines())
    free = render_traffic(counters(held=False)).count(b"\nk8s_rdma_vf_")
    took = statistics.median(rendered_s(held) for _ in range(ROUNDS))
    what = f"/metrics of {HELD_VFS:,} VFs of pods, {HW_COUNTERS} counters of each RDMA device"
    note = f"{series:,} series, {len(text) / 2**20:.1f} MiB; of as many free VFs {free}"
    record(what, budget=None, measured=took * 1e3, unit="ms", note=note)
