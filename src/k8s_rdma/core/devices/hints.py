"""How programs in a container learn which devices are theirs: environment variables and annotations.

Who writes them: the device plugin, in its answer to kubelet, for exclusive and shared resources, by CDI or
not; the agent, in CDI specifications, for slots and for shares of exclusive resources, as it alone knows what
those are. So the agent's specification of one exclusive device has no variables: of several devices in a
container, only the last one's would be left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANNOTATION_PREFIX = "devices.k8s-rdma.io"
_NO_LETTER_OR_DIGIT = re.compile(r"[^A-Z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device in a container.

    rdma: its RDMA device's name, which is the same in every namespace; empty for none, as of a function that
        a program drives. pci: its function's address; empty for a soft one.
    """

    rdma: str
    pci: str = ""


def device_variables(
    resource: str, devices: Sequence[NamedDevice], *, hints: bool = False
) -> Mapping[str, str]:
    """Environment variables that name them, in their order; a list is separated by commas, none is left out.

    `PCIDEVICE_<RESOURCE>`: PCI addresses, as other plugins of SR-IOV devices tell them.
    `K8S_RDMA_DEVICES_<RESOURCE>`: names of RDMA devices.
    With hints, what communication libraries are told by: `NCCL_IB_HCA` (names to be matched whole, `=`; all
    ports) and `UCX_NET_DEVICES` (a port each, the first: VFs have one).
    """
    suffix = _NO_LETTER_OR_DIGIT.sub("_", resource.upper())
    names = [each.rdma for each in devices if each.rdma]
    found = {
        f"PCIDEVICE_{suffix}": ",".join(each.pci for each in devices if each.pci),
        f"K8S_RDMA_DEVICES_{suffix}": ",".join(names),
    }
    if hints and names:
        found["NCCL_IB_HCA"] = f"={','.join(names)}"
        found["UCX_NET_DEVICES"] = ",".join(f"{name}:1" for name in names)
    return {name: value for name, value in found.items() if value}


def device_annotations(resource: str, ids: Sequence[str]) -> Mapping[str, str]:
    """A container's annotation, in the runtime's words, of what it was given of a resource."""
    return {f"{_ANNOTATION_PREFIX}/{resource.replace('/', '_')}": ",".join(ids)}
