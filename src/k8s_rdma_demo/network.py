"""The demo's network: two nodes, a management network and a switch, in namespaces of its own.

| control ── mgmt (10.250.0.0/24) ──┬── w1 ── enp1s0f0, enp1s0f1, enp1s0f2 ──┐
| API server, scheduler, extender   └── w2 ── enp1s0f0, enp1s0f1 ────────────┴── fabric (a bridge: the switch)
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Sequence


VFS = (64, 64)
"""The number of VFs of each PF that pods ask for by annotation."""

CLAIM_VFS = 8
"""The number of VFs of the PF for claims, if there is one."""

LINK_MBPS = 1000
"""The rate that two cores can fill."""

CONTROL_ADDRESS = "10.250.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node: its name, network namespace, directory of its own, and number from 1.

    has_claims: whether its last PF is for claims.
    """

    name: str
    netns: Path
    directory: Path
    number: int
    has_claims: bool

    @property
    def address(self) -> str:
        """The node's address on the management network."""
        return f"10.250.0.{10 + self.number}"

    @property
    def vfs(self) -> tuple[int, ...]:
        """The number of VFs of each PF."""
        return (*VFS, CLAIM_VFS) if self.has_claims else VFS

    def pf(self, index: int) -> tuple[str, str, str]:
        """Name, PCI address and uplink of a PF."""
        return f"enp1s0f{index}", f"0000:01:00.{index}", f"uplink{index}"


def build(nodes: Sequence[DemoNode]) -> None:
    """Make the namespaces and the wires; K8sRdmaError says which command failed."""
    _ip(
        None,
        "link set lo up",
        "link add mgmt type bridge",
        f"address add {CONTROL_ADDRESS}/24 dev mgmt",
        "link set mgmt up",
        "link add fabric type bridge",
        "link set fabric up",
    )
    for node in nodes:
        _build_node(node)


def _build_node(node: DemoNode) -> None:
    node.netns.parent.mkdir(parents=True, exist_ok=True)
    node.netns.touch()
    _run(["unshare", f"--net={node.netns}", "true"])
    _ip(
        None,
        *_cable(node, "mgmt", f"m{node.number}", "mgmt0"),
        *(
            line
            for index in range(len(node.vfs))
            for line in _cable(node, "fabric", f"f{node.number}-{index}", node.pf(index)[2])
        ),
    )
    _ip(
        node.netns,
        "link set lo up",
        f"address add {node.address}/24 dev mgmt0",
        "link set mgmt0 up",
    )


def _cable(node: DemoNode, bridge: str, host_end: str, node_end: str) -> tuple[str, ...]:
    return (
        f"link add {host_end} type veth peer name {node_end} netns {node.netns}",
        f"link set {host_end} master {bridge} up",
    )


def _ip(netns: Path | None, *lines: str) -> None:
    prefix = [] if netns is None else ["nsenter", f"--net={netns}"]
    _run([*prefix, "ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _run(command: list[str], stdin: str = "") -> None:
    ended = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if ended.returncode:
        msg = (
            f"demo network: {' '.join(command)}: {ended.stderr.strip() or f'exit status {ended.returncode}'}"
        )
        raise K8sRdmaError(msg, details=stdin)
