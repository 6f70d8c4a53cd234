"""NUMA nodes that are as near to a device as its own, as Kubernetes' drivers list them.

Source: `makeNUMANodeListAttribute` in k8s.io/dynamic-resource-allocation/deviceattribute, Kubernetes 1.37;
Documentation/ABI/stable/sysfs-devices-node of the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.linux.sysfs import Sysfs

_NODES, _CPUS = "devices/system/node", "devices/system/cpu"


def nearest_nodes(sysfs: Sysfs, node: int) -> tuple[int, ...]:
    """Return a node, and those of its socket at the least distance from it by the firmware's table (SLIT).

    The node alone where the kernel has no distances of it. A node without processors counts for each socket.
    OSError other than for an absent file.
    """
    online = _numbers(sysfs.value_if_any(f"{_NODES}/online"))
    row = (sysfs.value_if_any(f"{_NODES}/node{node}/distance") or "").split()
    distances = {
        index: int(text)
        for index, text in zip(online, row, strict=False)
        if text.isdecimal() and index != node
    }
    if len(row) != len(online) or not distances:
        return (node,)
    least, socket = min(distances.values()), _socket(sysfs, node)
    near = [index for index, distance in distances.items() if distance == least]
    return (node, *(index for index in near if socket is None or _socket(sysfs, index) in (None, socket)))


def _socket(sysfs: Sysfs, node: int) -> int | None:
    """Return the socket of a node's first processor, if it has one."""
    cpus = _numbers(sysfs.value_if_any(f"{_NODES}/node{node}/cpulist"))
    return sysfs.number_if_any(f"{_CPUS}/cpu{cpus[0]}/topology/physical_package_id") if cpus else None


def _numbers(ranges: str | None) -> list[int]:
    """Read the kernel's list of numbers: `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, (ranges or "").split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
