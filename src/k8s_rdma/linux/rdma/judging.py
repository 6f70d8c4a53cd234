"""What keeps an RDMA device that is here from being of use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.seen import NodeKind
from k8s_rdma.core.options import LinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.core.devices.seen import CharacterDevice
    from k8s_rdma.linux.discovery.queries import RdmaPort
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.rdma.character_devices import DeviceNodes
    from k8s_rdma.linux.rdma.functions import FunctionFacts

_ACTIVE = frozenset({"ACTIVE", "ACTIVE_DEFER"})


def function_faults(function: FunctionFacts | None, pci: str = "") -> tuple[str, ...]:
    """Of a device's function; pci: which it was, where there is none any more."""
    if function is None:
        return (f"its PCI function {pci} is gone",) if pci else ()
    return () if function.driver else (f"no driver is bound to {function.pci}",)


def node_faults(
    devices: Sequence[CharacterDevice], nodes: DeviceNodes
) -> Mapping[CharacterDevice | None, str]:
    """Of its character devices, a sentence each; None stands for a `uverbs` device that it does not have."""
    faults: dict[CharacterDevice | None, str] = {
        device: fault for device in devices if (fault := nodes.fault(device))
    }
    if not any(device.kind is NodeKind.UVERBS for device in devices):
        faults[None] = "it has no uverbs device (is the kernel module ib_uverbs loaded?)"
    return faults


def port_faults(
    ports: Sequence[RdmaPort], links: Mapping[int, Link], own: Link | None, link_type: LinkType
) -> tuple[str, ...]:
    """Why nothing passes through any of its ports; none where one is of use.

    links: by index. own: its function's netdev, which is its port's where netlink does not tell one. The
    netdev of an InfiniBand port (IPoIB) has no say.
    """
    faults: list[str] = []
    for port in ports:
        link = own if port.netdev_index is None else links.get(port.netdev_index)
        found = tuple(_port_faults(port, link if link_type is LinkType.ETHERNET else None))
        if not found:
            return ()
        faults += found
    return tuple(faults or ["it has no port"])


def _port_faults(port: RdmaPort, link: Link | None) -> Iterator[str]:
    if port.state not in _ACTIVE:
        yield f"port {port.number} is {port.state}, not ACTIVE"
    yield from link_faults(link)


def link_faults(link: Link | None) -> tuple[str, ...]:
    """Of a netdev."""
    if link is None or (link.up and link.carrier):
        return ()
    return (f"netdev {link.name} {'has no carrier' if link.up else 'is set down'}",)
