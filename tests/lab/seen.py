"""The interfaces of pods, by the agent's report and by the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.lab.home import vfs_of

if TYPE_CHECKING:
    from tests.lab.cluster import Pod


def held(pod: Pod) -> list[dict[str, Any]]:
    """The interfaces of a pod's only allocation, as its node's agent reports them."""
    allocations = pod.node.report()["allocations"]
    (ours,) = (each for each in allocations if each["pod"]["uid"] == pod.uid)
    return list(ours["interfaces"])


def programmed(pod: Pod) -> dict[str, tuple[int, int]]:
    """Minimum and maximum rate of a pod's interfaces, as the PFs have them for their MACs."""
    by_mac = {vf.pf_mac: vf for vf in vfs_of(pod.node.machine).values()}
    vfs = {name: by_mac[link["address"]] for name, link in pod.links().items() if name != "eth0"}
    return {name: (vf.min_tx_rate, vf.max_tx_rate) for name, vf in vfs.items()}
