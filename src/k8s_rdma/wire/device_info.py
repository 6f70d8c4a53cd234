"""The device-information file of a network attachment, for whoever asked for the attachment.

Source: Kubernetes Network Plumbing Working Group, Device Information Specification 1.1.0, sections 3 and 4.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import AllocatedInterface

VERSION = "1.1.0"


class PciDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Section 3.1.3: addresses as `dddd:bb:dd.f`; rdma_device empty where there is none."""

    pci_address: str
    rdma_device: str = ""
    pf_pci_address: str = ""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.1. A VF is a PCI device whatever drives it: the specification has no type for vfio."""

    type: Literal["pci"] = "pci"
    version: str = VERSION
    pci: PciDevice


_encoder = msgspec.json.Encoder()


def device_info(interface: AllocatedInterface) -> DeviceInfo:
    """What an interface is made of."""
    pci = PciDevice(
        pci_address=interface.pci, rdma_device=interface.rdma_device, pf_pci_address=interface.vf.pf
    )
    return DeviceInfo(pci=pci)


def encode_device_info(info: DeviceInfo) -> bytes:
    """The file's content."""
    return _encoder.encode(info)
