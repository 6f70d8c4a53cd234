"""Preferred allocations: usual ones in a millisecond, hard ones within the time an admission may wait."""

from __future__ import annotations

import statistics
from time import thread_time
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import Neighbour
from k8s_rdma.deviceplugin.topology import DeviceCandidate, DevicePlace, preferred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Record

BUDGET_MS = 300
"""The time that the agent waits for kubelet's answer about the pod's GPUs."""

ROUNDS = 15
GPU = Neighbour(pcie_path=("0000:15:01.0", "0000:16:00.0", "0000:17:02.0"), numa_node=0)


def devices(pfs: int, each: int) -> list[DeviceCandidate]:
    """Return devices on two NUMA nodes, every two PFs below one switch."""
    return [
        DeviceCandidate(
            id=f"mlx5_{pf * each + number}",
            place=DevicePlace(f"pf{pf}", pf % 2, ("root", f"switch{pf // 2}")),
        )
        for pf in range(pfs)
        for number in range(each)
    ]


def alike(pfs: int) -> list[DeviceCandidate]:
    """Return devices that differ only in their PFs, so that all sets of these are compared to the last."""
    return [DeviceCandidate(id=f"mlx5_{pf}", place=DevicePlace(f"pf{pf}", 0, ("root",))) for pf in range(pfs)]


def took_ms(candidates: Sequence[DeviceCandidate], size: int) -> float:
    """Return the median, in the thread's own time."""
    times = []
    for _ in range(ROUNDS):
        began = thread_time()
        chosen = preferred(candidates, [], size, [GPU])
        times.append((thread_time() - began) * 1000)
        assert len(chosen) == size
    return statistics.median(times)


def test_preferring(record: Record) -> None:
    for what, candidates, size in (
        ("2 of 16 devices on 8 PFs", devices(8, 2), 2),
        ("8 of 10,000 devices on 8 PFs", devices(8, 1250), 8),
        ("5,000 of 10,000 devices on as many PFs", devices(10_000, 1), 5000),
        ("6 of 13 devices on as many PFs, all alike", alike(13), 6),
    ):
        record(
            f"preferred allocation, {what}", budget=BUDGET_MS, measured=took_ms(candidates, size), unit="ms"
        )
