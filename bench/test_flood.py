"""Resident memory of the processes that speak HTTP under 1,000 hostile connections, plain and with TLS.

The clients send requests ahead, never read, stop in a head or in the handshake, leave, and come again. The
expected result: a process takes little more than before, does not take more the longer it lasts, and its
peak is not far from its memory after a rest.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from http_server.flood import PROCESSES, serving

if TYPE_CHECKING:
    from conftest import Record

CONNECTIONS = 1000
FLOODS_S = 15, 30
REST_S = 10


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", PROCESSES)
def test_memory_under_hostile_connections(kind: str, tls: bool, record: Record) -> None:
    what = f"{kind}, {'TLS' if tls else 'plain HTTP'}, resident memory"
    with tempfile.TemporaryDirectory(prefix="flood-") as made, serving(kind, Path(made), tls=tls) as target:
        for number, seconds in enumerate(FLOODS_S):
            memory = target.flood(connections=CONNECTIONS, seconds=seconds)
            if number == 0:
                record(f"{what} at start", budget=None, measured=memory.before_kib / 1024, unit="MiB")
            name = f"{what} at most in {seconds} s of {CONNECTIONS:,} hostile connections"
            note = f"{memory.connections:,} connections in all"
            record(name, budget=None, measured=memory.peak_kib / 1024, unit="MiB", note=note)
        time.sleep(REST_S)
        name = f"{what} {REST_S} s later"
        record(name, budget=None, measured=target.resident_kib / 1024, unit="MiB")
