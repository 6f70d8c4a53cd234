"""Facts of a node and of the pods on it that must not change, whatever becomes of the processes."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from e2e.processes import NodeProcesses


def facts(node: NodeProcesses, namespaces: Mapping[str, str]) -> dict[str, Any]:
    """Links, addresses, rates, and which queueing disciplines; of the node, and of each namespace."""
    found: dict[str, Any] = {"node": (node.kernel_state(), qdiscs())}
    for name, netns in namespaces.items():
        links = node.ip("address", "show", netns=netns)
        found[name] = (
            [
                (each["ifname"], each["ifindex"], each["address"], each["mtu"], each["flags"])
                for each in links
            ],
            [(each["ifname"], ip["local"]) for each in links for ip in each["addr_info"]],
            qdiscs(f"--net={netns}"),
        )
    return found


def qdiscs(*inside: str) -> list[tuple[str, str, str]]:
    """Kind, handle and device of those that hold for all of a device; one made anew has another handle.

    Queues of single VFs are left out: they are made anew with the class of a free VF.
    """
    enter = ["nsenter", *inside] if inside else []
    shown = subprocess.run([*enter, "tc", "-json", "qdisc", "show"], capture_output=True, check=True)
    whole = (each for each in json.loads(shown.stdout) if each["kind"] not in {"noqueue", "bfifo"})
    return sorted((each["kind"], each["handle"], each["dev"]) for each in whole)
