"""Traffic of the demo's pods while people look around, between two interfaces of this namespace."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from k8s_rdma_demo.traffic import Endpoint, Flow, Stream

LOOPBACK = Endpoint(pod="p", netns=Path("/proc/self/ns/net"), ifname="lo", address="127.0.0.1")
PORT = 5291
MIB = 1 << 20


def sent() -> int:
    """The bytes that this namespace's loopback sent."""
    [line] = [
        line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")
    ]
    return int(line.split()[9])


def streams() -> str:
    return subprocess.run(["pgrep", "-f", f"port {PORT}"], capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")
def test_stream_sends_while_it_is_entered_and_leaves_no_process():
    flow = Flow(name="rdma0", source=LOOPBACK, destination=LOOPBACK)
    before = sent()
    with Stream(flow, port=PORT, mbps=100):
        while sent() < before + MIB:
            time.sleep(0.01)
        assert streams()
    assert not streams()
