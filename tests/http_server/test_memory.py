"""The memory of each process that speaks HTTP while hostile clients are after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from http_server.flood import PROCESSES, serving

CONNECTIONS, SECONDS = 300, 4
GROWTH_MIB = 64
"""TLS of so many connections takes some 40. Unbounded pipelining took 700 MiB of each process, and remains
of failed handshakes 500 MiB of the device plugin."""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", PROCESSES)
def test_memory_stays_when_hostile_clients_flood(kind: str, tls: bool) -> None:
    # Not pytest's own directory: the path of a Unix socket has 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="flood-") as directory,
        serving(kind, Path(directory), tls=tls) as target,
    ):
        memory = target.flood(connections=CONNECTIONS, seconds=SECONDS)
    assert memory.connections > CONNECTIONS
    assert memory.growth_mib < GROWTH_MIB
