"""The agent on real hardware, as a process: changes that it sees, traffic that it counts, VFs that it adopts.

Needs two PFs with unused VFs; their VFs are as they were afterwards.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.linux_lab import BROADCAST, EXPERIMENTAL, ip, run
from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma.wire.state_socket import (
    HEADER,
    Counters,
    MessageKind,
    decode_counters,
    decode_header,
    encode_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 180
"""An emulated machine may take a minute to import the agent."""
QUIET_S = 3.0
FRAMES = 50

pytestmark = [needs_hardware, pytest.mark.timeout(300)]


class Agent:
    """A running agent, and a reader of its `state.sock`."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "run"
        path, log = directory / "agent.yaml", directory / "agent.log"
        hardware = {"requireRdma": False, "pfs": [{"names": list(PFS)}]}
        document = {
            "node": "w1",
            "kernel": "linux",
            "runDir": str(self.run_dir),
            "stateDir": str(directory / "state"),
            "hardware": hardware,
        }
        path.write_text(json.dumps(document))
        command = [sys.executable, "-m", "k8s_rdma", "agent", "--config", str(path)]
        self._stack = ExitStack()
        with log.open("wb") as out, ExitStack() as failed:
            failed.callback(self.close)
            process = subprocess.Popen(command, stderr=out)
            self._stack.callback(process.wait, DEADLINE_S)
            self._stack.callback(process.terminate)
            self._reader = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            self._reader.settimeout(DEADLINE_S)
            end = time.monotonic() + DEADLINE_S
            while self._reader.connect_ex(str(self.run_dir / "state.sock")):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            self.report = self._next_report()
            failed.pop_all()

    def close(self) -> None:
        self._stack.close()

    def _message(self) -> tuple[MessageKind, bytes]:
        kind, size = decode_header(self._reader.recv(HEADER.size, socket.MSG_WAITALL))
        return kind, self._reader.recv(size, socket.MSG_WAITALL)

    def _next_report(self) -> NodeReport:
        kind, body = self._message()
        assert kind is MessageKind.REPORT
        return decode_report(body)

    def until_link(self, pf: str, link_mbps: int | None) -> None:
        """Follow the reports; that one comes is up to the agent."""
        while self.pf(pf) != link_mbps:
            self.report = self._next_report()

    def pf(self, name: str) -> int | None:
        return next(pf.link_mbps for pf in self.report.pfs if pf.name == name)

    def counters(self) -> Counters:
        self._reader.sendall(encode_message(MessageKind.SAMPLE))
        while True:
            kind, body = self._message()
            if kind is MessageKind.COUNTERS:
                return decode_counters(body)
            self.report = decode_report(body)

    def new_counters(self) -> Counters:
        """Of the next sample that is taken; there is one in 15 s."""
        last = self.counters()
        while (told := self.counters()).age_s >= last.age_s:
            time.sleep(0.5)
        return told

    def adopt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "k8s_rdma", "agent", "adopt", "--run-dir", str(self.run_dir)]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with tempfile.TemporaryDirectory() as directory, closing(Agent(Path(directory))) as running:
        yield running


@contextmanager
def left_behind(pf: str) -> Iterator[None]:
    """A rate on one VF of a PF and a VLAN on another, as an older plugin may leave them."""
    run("ip", "link", "set", pf, "vf", "0", "max_tx_rate", "100")
    run("ip", "link", "set", pf, "vf", "1", "vlan", "7")
    try:
        yield
    finally:
        run("ip", "link", "set", pf, "vf", "0", "max_tx_rate", "0")
        run("ip", "link", "set", pf, "vf", "1", "vlan", "0")


def settings(pf: str) -> list[tuple[int, int]]:
    """VLAN and cap of each VF, as `ip` shows them."""
    (link,) = ip(None, "-details", "link", "show", "dev", pf)
    return [
        (
            int((vf.get("vlan_list") or [{}])[0].get("vlan", 0)),
            int((vf.get("rate") or {}).get("max_tx", 0)),
        )
        for vf in link["vfinfo_list"]
    ]


def test_adopt_resets_rate_and_vlan_of_another_program(agent: Agent) -> None:
    with left_behind(PFS[0]):
        assert settings(PFS[0])[:2] == [(0, 100), (7, 0)]
        dry = agent.adopt("--pf", PFS[0], "--dry-run")
        assert (dry.returncode, dry.stdout.count("would reset")) == (0, 2), dry.stdout + dry.stderr
        assert settings(PFS[0])[:2] == [(0, 100), (7, 0)]
        done = agent.adopt("--all")
        assert (done.returncode, done.stdout.count(" reset ")) == (0, 2), done.stdout + done.stderr
        assert set(settings(PFS[0])) == {(0, 0)}
    agent.counters()
    assert not any(pf.foreign for pf in agent.report.pfs)


def test_change_of_a_link_is_reported_without_polling(agent: Agent) -> None:
    before = agent.counters().scans
    time.sleep(QUIET_S)  # without a change and without a scan
    speed = agent.pf(PFS[1])
    assert speed is not None
    run("ip", "link", "set", PFS[1], "down")
    try:
        agent.until_link(PFS[1], None)
    finally:
        run("ip", "link", "set", PFS[1], "up")
    agent.until_link(PFS[1], speed)
    after = agent.counters().scans
    assert after.failed == before.failed
    assert 2 <= after.total - before.total <= 12


@contextmanager
def in_use(netdev: str) -> Iterator[socket.socket]:
    """A VF's netdev, up, and a socket that sends frames through it."""
    run("ip", "link", "set", netdev, "up")
    try:
        end = time.monotonic() + DEADLINE_S
        while ip(None, "link", "show", "dev", netdev)[0]["operstate"] != "UP":
            assert time.monotonic() < end, f"{netdev} has no carrier"
            time.sleep(0.05)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((netdev, 0))
            yield out
    finally:
        run("ip", "link", "set", netdev, "down")


def test_traffic_of_a_vf_is_counted(agent: Agent) -> None:
    (netdev,) = [path.name for path in Path(f"/sys/class/net/{PFS[0]}/device/virtfn2/net").iterdir()]
    mac = bytes.fromhex(Path(f"/sys/class/net/{netdev}/address").read_text().replace(":", ""))
    with in_use(netdev) as out:
        before = {(vf.pf_name, vf.vf): vf for vf in agent.counters().vfs}
        for _ in range(FRAMES):
            out.send(BROADCAST + mac + EXPERIMENTAL + bytes(1000))
        after = {(vf.pf_name, vf.vf): vf for vf in agent.new_counters().vfs}
    assert {pf for pf, _ in after} == set(PFS)
    assert after[PFS[0], 2].tx_packets - before[PFS[0], 2].tx_packets >= FRAMES
    assert after[PFS[0], 2].tx_bytes - before[PFS[0], 2].tx_bytes >= 1000 * FRAMES
    assert after[PFS[1], 2].tx_packets - before[PFS[1], 2].tx_packets < FRAMES
