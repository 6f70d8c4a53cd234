"""Resident memory of the processes: of the agent (budget: 60 MiB) and, for information, of the server.

That of the extender is in `test_extender.py`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from bench.cni_plugin import needs_root
from e2e.node import DEADLINE_S, Node, pod
from k8s_rdma.wire.state_socket import (
    HEADER,
    Counters,
    MessageKind,
    decode_counters,
    decode_header,
    encode_message,
)

if TYPE_CHECKING:
    from conftest import Record

BUDGET_MIB = 60
ROUNDS = 5
VFS = 120
INTERFACES = 60
SERVER = "http://127.0.0.1:54005"


def resident_mib(process: int) -> float:
    """Return the VmRSS (proc_pid_status(5))."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@needs_root
def test_agent_memory(node: Node, record: Record) -> None:
    after_start = resident_mib(node.agent.pid)
    runtime = node.runtime(chained=False)

    async def come_and_go() -> None:
        sandbox = await runtime.add(pod("p", *[{"min_tx_rate": 10}] * INTERFACES))
        assert len(sandbox.result["interfaces"]) == INTERFACES
        await runtime.delete(sandbox)

    for _ in range(ROUNDS):
        asyncio.run(come_and_go())
    what = f"agent of 2 x {VFS} VFs, resident memory"
    record(f"{what} after its start", budget=BUDGET_MIB, measured=after_start, unit="MiB")
    record(
        f"{what} after {ROUNDS} pods of {INTERFACES} interfaces",
        budget=BUDGET_MIB,
        measured=resident_mib(node.agent.pid),
        unit="MiB",
    )
    assert len(sample(node).vfs) == 2 * VFS
    record(f"{what} after a sample", budget=BUDGET_MIB, measured=resident_mib(node.agent.pid), unit="MiB")


def sample(node: Node) -> Counters:
    """Return the agent's answer to a request for counters."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(DEADLINE_S)
        agent.connect(str(node.run_dir / "state.sock"))
        agent.sendall(encode_message(MessageKind.SAMPLE))
        while True:
            kind, size = decode_header(agent.recv(HEADER.size, socket.MSG_WAITALL))
            body = agent.recv(size, socket.MSG_WAITALL)
            if kind is MessageKind.COUNTERS:
                return decode_counters(body)


@needs_root
def test_server_memory(node: Node, record: Record) -> None:
    config = node.directory / "server.yaml"
    config.write_text(json.dumps({"runDir": str(node.run_dir)}))
    server = node.start("server", config)
    with httpx2.Client(base_url=SERVER, trust_env=False) as http:

        def answers() -> bool:
            try:
                return http.get("/getpfs").is_success
            except httpx2.TransportError:
                return False

        node.wait("the server", answers)
        for _ in range(1000):
            http.get("/getpfs").raise_for_status()
    record(
        f"server of 2 x {VFS} VFs, resident memory after 1,000 requests",
        budget=None,
        measured=resident_mib(server.pid),
        unit="MiB",
    )
