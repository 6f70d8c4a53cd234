"""The processes that speak HTTP, each under a flood of hostile clients, and their memory then."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from http_server.certificates import Issuer
from process_status import resident_kib

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = ("server", "device-plugin", "extender")
CLIENTS = Path(__file__).with_name("hostile_clients.py")
DEADLINE_S = 120
LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Resident memory of a process before a flood and at most during it; connections: that the flood had."""

    before_kib: int
    peak_kib: int
    connections: int

    @property
    def growth_mib(self) -> float:
        return (self.peak_kib - self.before_kib) / 1024


@dataclass(frozen=True)
class Target:
    """A process that serves; `tls`: over TLS."""

    process: subprocess.Popen[bytes]
    port: int
    tls: bool

    @property
    def resident_kib(self) -> int:
        return resident_kib(self.process.pid)

    def flood(self, *, connections: int, seconds: float) -> Memory:
        """So many at a time, for so long."""
        before = peak = self.resident_kib
        arguments = [str(self.port), str(connections), str(seconds), *(["tls"] if self.tls else [])]
        with subprocess.Popen(
            [sys.executable, str(CLIENTS), *arguments], stdout=subprocess.PIPE, text=True
        ) as clients:
            while clients.poll() is None:
                peak = max(peak, self.resident_kib)
                time.sleep(LOOK_S)
            assert clients.stdout is not None
            accepted = int(clients.stdout.read())
        return Memory(before_kib=before, peak_kib=peak, connections=accepted)


@contextmanager
def serving(kind: str, directory: Path, *, tls: bool) -> Iterator[Target]:
    """One of `PROCESSES`; agent, kubelet and cluster are away. TimeoutError when it does not serve."""
    config = directory / f"{kind}.yaml"
    config.write_text(json.dumps(_document(kind, directory, tls=tls)))
    log = directory / f"{kind}.log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "k8s_rdma", kind, "--config", str(config)]
        process = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        yield Target(process, _port(process, log), tls)
    finally:
        process.kill()
        process.wait()


def _document(kind: str, directory: Path, *, tls: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"listen": "127.0.0.1", "port": 0}
    if tls:
        certificate = Issuer(directory).make().issue("server")
        document["tls"] = {"certFile": str(certificate.cert), "keyFile": str(certificate.key)}
    if kind == "extender":
        return {**document, "api": False, "binder": "scheduler", "source": "http"}
    document["runDir"] = str(directory)
    if kind == "device-plugin":
        document |= {
            "kubeletDir": str(directory),
            "podResources": str(directory / "pod-resources.sock"),
            "resources": [{"mode": "exact"}],
        }
    return document


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port on which it serves, once all of it is there."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        events = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
        ports = [event["port"] for event in events if "port" in event]
        if ports and any(event["event"].endswith("_ready") for event in events):
            return int(ports[0])
        time.sleep(LOOK_S)
    raise TimeoutError(log.read_text())
