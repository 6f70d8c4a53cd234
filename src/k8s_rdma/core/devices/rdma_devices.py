"""RDMA devices of a node, as containers are offered them and their programs learn of them.

Programs read environment variables and annotations. The device plugin writes them in its answer to kubelet
for exclusive and shared resources, by CDI or not; the agent writes them in CDI specifications for slots and
for shares of exclusive resources, as it alone knows what those are. So the agent's specification of one
exclusive device has no variables: of several devices in a container, only the last one's would be left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from urllib.parse import quote

from k8s_rdma.core.types import LinkType

_ANNOTATION_PREFIX = "devices.k8s-rdma.io"
MAX_GPU_ID_BYTES = 128
"""The longest id of a GPU in a variable: 256 interfaces' stay below `MAX_ARG_STRLEN`, 128 KiB (Linux
`include/uapi/linux/binfmts.h`)."""

_NO_LETTER_OR_DIGIT = re.compile(r"[^A-Z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device in a container.

    rdma: its RDMA device's name, which is the same in every namespace; empty for none, as of a function that
        a program drives. pci: its function's address; empty for a soft one.
    gpu: the id of the GPU to which it belongs, as kubelet has it; empty for none. interface: its network
        interface's name, where it belongs to a GPU.
    """

    rdma: str
    pci: str = ""
    gpu: str = ""
    interface: str = ""


def device_variables(
    resource: str, devices: Sequence[NamedDevice], *, hints: bool = False
) -> Mapping[str, str]:
    """Environment variables that name them, in their order; a list is separated by commas, none is left out.

    `PCIDEVICE_<RESOURCE>`: PCI addresses, as other plugins of SR-IOV devices tell them.
    `K8S_RDMA_DEVICES_<RESOURCE>`: names of RDMA devices.
    With hints, the variables of communication libraries: `NCCL_IB_HCA` (names to be matched whole, `=`; all
    ports) and `UCX_NET_DEVICES` (a port each, the first: VFs have one).
    `K8S_RDMA_GPUS`: for each device that belongs to a GPU, `<GPU's id>=<interface>/<RDMA device>`, or its PCI
    address where it has no RDMA device. Ids and interface names are percent-encoded (RFC 3986) but for `:`,
    so that nothing in them ends an entry; a GPU whose id is longer than `MAX_GPU_ID_BYTES` is left out.
    """
    suffix = _NO_LETTER_OR_DIGIT.sub("_", resource.upper())
    names = [device.rdma for device in devices if device.rdma]
    found = {
        f"PCIDEVICE_{suffix}": ",".join(function.pci for function in devices if function.pci),
        f"K8S_RDMA_DEVICES_{suffix}": ",".join(names),
    }
    if hints and names:
        found["NCCL_IB_HCA"] = f"={','.join(names)}"
        found["UCX_NET_DEVICES"] = ",".join(f"{name}:1" for name in names)
    found["K8S_RDMA_GPUS"] = ",".join(
        f"{quote(device.gpu, safe=':')}={quote(device.interface, safe='')}/{device.rdma or device.pci}"
        for device in devices
        if 0 < len(device.gpu.encode()) <= MAX_GPU_ID_BYTES
    )
    return {name: value for name, value in found.items() if value}


def device_annotations(resource: str, ids: Sequence[str]) -> Mapping[str, str]:
    """A container's annotation, in the runtime's words, of what it was given of a resource."""
    return {f"{_ANNOTATION_PREFIX}/{resource.replace('/', '_')}": ",".join(ids)}


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

    name: `mlx5_0`. pci: its function's address, of a soft one that of its netdev's; empty for none.
    pf, pf_name: address and netdev of the PF whose VF it is, of its own function where that is no VF; empty
        where it has none. vf: the VF's index; None where it is none's.
    netdev: of its function while that is at home; empty for none.
    vendor: of its function, PCI vendor and device: `15b3:1018`. pf_vendor: of the PF. pf_driver: of the PF.
    pcie_path: PCI bridges and switches from the root port down.
    nodes: its character devices that exist. faults: why it cannot be used now, one sentence each.
    at_home: whether the host's namespace has it; else a pod has it, or its namespace is unknown, and this is
        the last known state.
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

    name: at home. pci: its VF's address. pool: the exclusive resource whose device it is; empty for none.
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

    devices: by name, also those that pods have (no faults of theirs because they are away) and those that
        vanished.
    allocated, held_slots: devices that pods have, by name, and CDI devices of slots that attachments still
        hold (`core.devices.pod_devices`); None until the agent has reported. Its last report stands while it
        does not answer: without it nothing ends.
    netns_mode: None where the kernel knows no RDMA. rdma_cm, directory: whether `RDMA_CM` and `INFINIBAND`
        are there.
    published: CDI devices of shared resources that the agent has written, by `slots.shared_device`.
    unreadable: what could not be looked at, a sentence each; what was seen last stands for it.
    """

    devices: Mapping[str, RdmaDevice] = field(default_factory=dict)
    allocated: Mapping[str, AllocatedDevice] | None = None
    netns_mode: NetnsMode | None = None
    rdma_cm: bool = False
    directory: bool = False
    held_slots: frozenset[str] | None = None
    published: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
