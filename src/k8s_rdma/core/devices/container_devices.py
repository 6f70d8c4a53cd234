"""Devices of a container as its program sees them: environment variables and annotations of CDI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANNOTATION_PREFIX = "devices.k8s-rdma.io"
MAX_GPU_ID_BYTES = 128
"""The longest id of a GPU in a variable: 256 interfaces' stay below `MAX_ARG_STRLEN`, 128 KiB (Linux
`include/uapi/linux/binfmts.h`)."""

_NO_LETTER_OR_DIGIT = re.compile(r"[^A-Z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device in a container.

    rdma: its RDMA device's name, which is the same in every namespace; empty without one, for example for a
        function that a program drives.
    pci: its function's address; empty for a soft device.
    gpu: the id of the GPU to which it belongs, as kubelet has it; empty if it belongs to no GPU.
    interface: its network interface's name, if it belongs to a GPU.
    """

    rdma: str
    pci: str = ""
    gpu: str = ""
    interface: str = ""


def device_variables(
    resource: str, devices: Sequence[NamedDevice], *, hints: bool = False
) -> Mapping[str, str]:
    """Return environment variables that name the devices, in their order; a list is separated by commas.

    `PCIDEVICE_<RESOURCE>`: PCI addresses, in the form of other plugins of SR-IOV devices.
    `K8S_RDMA_DEVICES_<RESOURCE>`: names of RDMA devices.
    With hints, the variables of communication libraries: `NCCL_IB_HCA` (names to be matched whole, `=`; all
    ports) and `UCX_NET_DEVICES` (a port each, the first: VFs have one).
    `K8S_RDMA_GPUS`: for each device that belongs to a GPU, `<GPU's id>=<interface>/<RDMA device>`, or its PCI
    address if it has no RDMA device. Ids and interface names are percent-encoded (RFC 3986) except `:`, so
    that no character in them ends an entry. A GPU whose id is longer than `MAX_GPU_ID_BYTES` is left out.
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
    """Return a container's annotation, in the runtime's words, that lists its devices of a resource."""
    return {f"{_ANNOTATION_PREFIX}/{resource.replace('/', '_')}": ",".join(ids)}
