"""ADD and DEL of this project's plugin beside those of `host-device`, which only moves a device.

Both on one VF of one machine in one run, in turn; both with `host-local` as their IPAM plugin.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lab.places import PLUGIN, cni_environment
from lab.report.node import LabNode
from lab.report.result import Timed
from lab.say import step

if TYPE_CHECKING:
    from lab.machine import Machine

REPETITIONS = 30
PAUSE_S = 1.0
"""Longer than the agent takes to look at changes."""
OURS, PEER = "k8s-rdma-cni", "host-device"
PEER_PLUGIN = "/usr/lib/cni/host-device"
HARDWARE: dict[str, object] = {"pfs": [{"names": ["eth0"], "numVfs": 1}]}
POD = "timed"
WITHIN_S = 1800.0


def time_side_by_side(machine: Machine, repetitions: int = REPETITIONS) -> tuple[str, tuple[Timed, ...]]:
    """Return the VF's PCI address, and the calls; on a machine that has just been started."""
    node = LabNode(machine, "w1", HARDWARE)
    node.start_without_server()
    vf = machine.run("basename", machine.run("readlink", "/sys/class/net/eth0/device/virtfn0").stdout.strip())
    pci = vf.stdout.strip()
    machine.run("ip", "netns", "add", POD)
    wanted = {"repetitions": repetitions, "pause_s": PAUSE_S, "calls": list(_calls(node, pci))}
    with step(f"{repetitions} times ADD and DEL by {OURS} and {PEER}"):
        said = machine.run(
            "python3", "/src/lab/report/inside/time_plugins.py", input=json.dumps(wanted), timeout_s=WITHIN_S
        )
    return pci, tuple(_timed(name, times) for name, times in json.loads(said.stdout).items())


def _calls(node: LabNode, pci: str) -> list[dict[str, Any]]:
    ours = node.network([{}]) | {"cniVersion": "1.0.0"}
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.57.0.0/24"}]], "dataDir": "/run/leases"}
    peer = {"cniVersion": "1.0.0", "name": "peer", "type": "host-device", "pciBusID": pci, "ipam": ipam}
    each = ((OURS, PLUGIN, ours), (PEER, PEER_PLUGIN, peer))
    return [
        {
            "name": f"{name} {command}",
            "argv": [path],
            "env": cni_environment(command, POD, POD, POD),
            "stdin": json.dumps(network),
        }
        for name, path, network in each
        for command in ("ADD", "DEL")
    ]


def _timed(name: str, milliseconds: list[float]) -> Timed:
    plugin, command = name.split()
    return Timed(plugin=plugin, command=command, milliseconds=tuple(round(each, 2) for each in milliseconds))
