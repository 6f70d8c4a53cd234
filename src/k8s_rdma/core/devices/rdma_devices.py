"""RDMA devices of a node, as containers are offered them and their programs learn of them.

Programs read environment variables and annotations. The device plugin writes them in its answer to kubelet
for exclusive and shared resources, by CDI or not. The agent writes them in CDI specifications for slots and
for shares of exclusive resources, because it alone knows their content. The agent's specification of one
exclusive device has no variables, because of several devices in a container only the last one's would be
left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique

from k8s_rdma.core.types import LinkType

RDMA_CM = "/dev/infiniband/rdma_cm"
"""The connection manager's device node, one for all devices (Linux `drivers/infiniband/core/ucma.c`)."""

INFINIBAND = "/dev/infiniband"


@unique
class NodeKind(StrEnum):
    """The use of an RDMA device's character device: verbs, management datagrams, a subnet manager."""

    UVERBS = "uverbs"
    UMAD = "umad"
    ISSM = "issm"


@unique
class NetnsMode(StrEnum):
    """The visibility of RDMA devices: in all namespaces, or each in its own only, which moving one needs."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterDevice:
    """A character device. path: `/dev/infiniband/uverbs0`, on the host and in containers."""

    kind: NodeKind
    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """An RDMA device of the host.

    name: `mlx5_0`.
    pci: its function's address, or its netdev's for a soft device; empty if unknown.
    pf, pf_name: address and netdev of the PF whose VF it is, or of its own function if it is no VF; empty if
        it has none.
    vf: the VF's index; None if it is no VF.
    netdev: the netdev of its function while that is at home; empty without one.
    vendor, pf_vendor: PCI vendor and device, of its function and of the PF: `15b3:1018`.
    pf_driver: of the PF.
    pcie_path: PCI bridges and switches from the root port down.
    nodes: its character devices that exist.
    faults: why it cannot be used now, one sentence each.
    at_home: whether the host's namespace has it. If not, a pod has it, or its namespace is unknown, and this
        is the last known state.
    """

    name: str
    pci: str = ""
    pf: str = ""
    pf_name: str = ""
    vf: int | None = None
    netdev: str = ""
    vendor: str = ""
    pf_vendor: str = ""
    driver: str = ""
    pf_driver: str = ""
    link_type: LinkType = LinkType.ETHERNET
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()
    nodes: tuple[CharacterDevice, ...] = ()
    faults: tuple[str, ...] = ()
    at_home: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """An RDMA device that the agent has given to a pod, by its report.

    name: at home.
    pci: its VF's address.
    pool: the exclusive resource whose device it is, if any.
    """

    name: str
    pci: str
    pf: str
    vf: int
    pod_uid: str
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInventory:
    """An observation of a node's RDMA devices.

    devices: by name, including those that pods have (their absence is no fault) and those that vanished.
    allocated, held_slots: devices that pods have, by name, and CDI devices of slots that attachments still
        hold (`core.devices.pod_devices`); None until the agent has reported. Its last report stands while it
        does not answer, because allocations end only by a report.
    netns_mode: None if the kernel knows no RDMA.
    rdma_cm, directory: whether `RDMA_CM` and `INFINIBAND` are there.
    published: CDI devices of shared resources that the agent has written, by `slots.shared_device`.
    unreadable: devices and files that could not be read, a sentence each; their last known state stands.
    """

    devices: Mapping[str, RdmaDevice] = field(default_factory=dict)
    allocated: Mapping[str, AllocatedDevice] | None = None
    netns_mode: NetnsMode | None = None
    rdma_cm: bool = False
    directory: bool = False
    held_slots: frozenset[str] | None = None
    published: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
