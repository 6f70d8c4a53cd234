"""The time that a slot adds to an ADD, and the agent's memory with gRPC (budget: 60 MiB, as without).

The same pod is attached by an agent without a device plugin, and by one that asks kubelet and writes
the slot's specification; both in turn, as times vary with all else on the machine. Kubelet is a stand-in in
Python. Virtual VFs have no RDMA devices: their nodes would be a dozen small files of sysfs to read.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.cni_plugin import PLUGINS, PROGRAM, VFS, Plugin, Rounds, needs_root, netconf
from bench.test_memory import BUDGET_MIB, resident_mib
from e2e.node import DEADLINE_S, Node
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Record

TURNS, ROUNDS = 3, 8
SLOT_FILE = "k8s-rdma.io-slot_k8s-rdma.io_slot.slot-0.json"


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vfs=VFS, plugins=PLUGINS, shim=PROGRAM) as node:
        yield node


@pytest.fixture
def settings(node: Node) -> Iterator[dict[str, object]]:
    """The settings of an agent on a node with a device plugin; kubelet answers."""
    socket, plugin = node.directory / "kubelet.sock", node.directory / "plugin.yaml"
    plugin.write_text(f"podResources: {socket}\nresources: [{{mode: exact}}]\n")
    program = [sys.executable, str(Path(__file__).with_name("kubelet_program.py")), str(socket), "p"]
    with subprocess.Popen(program) as kubelet:
        node.wait("kubelet", socket.exists)
        yield {"devicePlugin": str(plugin), "cdiDir": str(node.directory / "cdi")}
        kubelet.kill()


@needs_root
def test_add_with_a_slot_beside_one_without(node: Node, settings: dict[str, object], record: Record) -> None:
    netns = node.directory / "netns" / "pod"
    create_namespace_at(netns)
    ours, rounds = Plugin(str(PROGRAM), node, netns, netconf(node, 1, None)), Rounds()
    slot = node.directory / "cdi" / SLOT_FILE
    memory = {}
    for _ in range(TURNS):
        for what, more in (("without", {}), ("with", settings)):
            node.settings = more
            node.start_agent()
            warm = Rounds()
            for number in range(ROUNDS + 1):
                noted = rounds if number else warm
                noted.time(f"ADD {what}", lambda: ours.run("ADD"))
                assert slot.exists() is bool(more)
                noted.time(f"DEL {what}", lambda: ours.run("DEL"))
                assert not slot.exists()
            memory[what] = resident_mib(node.agent.pid)
            node.agent.terminate()
            node.agent.wait(DEADLINE_S)
    for command in ("ADD", "DEL"):
        record(
            f"CNI {command} of 1 interface and a slot, beyond one without",
            budget=None,
            measured=rounds[f"{command} with"] - rounds[f"{command} without"],
            unit="ms",
            note=f"{rounds[f'{command} with']:.1f} ms and {rounds[f'{command} without']:.1f} ms",
        )
    record(
        "agent that asks kubelet, resident memory",
        budget=BUDGET_MIB,
        measured=memory["with"],
        unit="MiB",
        note=f"{memory['without']:.1f} MiB without gRPC",
    )
