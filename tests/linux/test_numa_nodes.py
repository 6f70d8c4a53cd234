"""NUMA nodes near a device, of machines as their sysfs shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.linux.numa_nodes import nearest_nodes
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from pathlib import Path

TWO_SOCKETS = ("0-1", {0: "10 21", 1: "21 10"}, {0: 0, 1: 1})
NPS4 = (
    "0-7",
    {
        node: " ".join(
            "10" if node == other else "12" if node // 4 == other // 4 else "32" for other in range(8)
        )
        for node in range(8)
    },
    {node: node // 4 for node in range(8)},
)
SPARSE = ("0,8", {0: "10 40", 8: "40 10"}, {0: 0, 8: 8})
"""IBM POWER9."""
WITH_MEMORY = ("0-2", {0: "10 21 14", 1: "21 10 24", 2: "14 24 10"}, {0: 0, 1: 1})
"""Node 2 is memory without processors."""


def sysfs(directory: Path, online: str, rows: dict[int, str], sockets: dict[int, int]) -> Sysfs:
    nodes, cpus = directory / "devices/system/node", directory / "devices/system/cpu"
    nodes.mkdir(parents=True)
    (nodes / "online").write_text(f"{online}\n")
    for node, row in rows.items():
        (nodes / f"node{node}").mkdir()
        (nodes / f"node{node}/distance").write_text(f"{row}\n")
        socket = sockets.get(node)
        (nodes / f"node{node}/cpulist").write_text("\n" if socket is None else f"{4 * node}-{4 * node + 3}\n")
        topology = cpus / f"cpu{4 * node}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket or 0}\n")
    return Sysfs(directory)


@pytest.mark.parametrize(
    ("machine", "node", "expected"),
    [
        pytest.param(TWO_SOCKETS, 1, (1,), id="other-socket-is-not-near"),
        pytest.param(NPS4, 5, (5, 4, 6, 7), id="quarters-of-a-socket"),
        pytest.param(SPARSE, 8, (8,), id="numbers-with-gaps"),
        pytest.param(WITH_MEMORY, 0, (0, 2), id="memory-alone"),
        pytest.param(("0", {0: "10"}, {0: 0}), 0, (0,), id="one-node"),
        pytest.param(("0-1", {0: "10"}, {0: 0}), 0, (0,), id="row-of-another-length"),
    ],
)
def test_near_nodes_are_those_of_the_socket_at_the_least_distance(
    machine: tuple[str, dict[int, str], dict[int, int]], node: int, expected: tuple[int, ...], tmp_path: Path
):
    assert nearest_nodes(sysfs(tmp_path, *machine), node) == expected


def test_node_is_alone_if_the_kernel_has_no_nodes(tmp_path: Path):
    assert nearest_nodes(Sysfs(tmp_path), 0) == (0,)
