"""Descriptions of a pod's interfaces for its program: device information, and a pod annotation.

The annotation is `k8s-rdma.io/network-status`, which has the form of Multus' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from k8s_rdma.wire.cdi import qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.wire.ipam_result import IpamResult


_encoder = msgspec.json.Encoder()

DEVICE_INFO_VERSION = "1.1.0"

NETWORK_STATUS_ANNOTATION = "k8s-rdma.io/network-status"


class PciDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Section 3.1.3: addresses as `dddd:bb:dd.f`; rdma_device is empty without one."""

    pci_address: str
    rdma_device: str = ""
    pf_pci_address: str = ""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.1. A VF is a PCI device with any driver: the specification has no type for vfio."""

    type: Literal["pci"] = "pci"
    version: str = DEVICE_INFO_VERSION
    pci: PciDevice


def device_info(interface: AllocatedInterface) -> DeviceInfo:
    """Return the device of an interface."""
    pci = PciDevice(
        pci_address=interface.pci, rdma_device=interface.rdma_device, pf_pci_address=interface.vf.pf
    )
    return DeviceInfo(pci=pci)


def encode_device_info(info: DeviceInfo) -> bytes:
    """Encode the file's content."""
    return _encoder.encode(info)


class _Dns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class NetworkStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """The status of one interface.

    name: the network's.
    interface: its name in the pod; a PCI function, which has no name, is listed under the one that it would
        have.
    default: never, a pod's default network is another plugin's.
    cdi_device: of a PCI function for a program in the pod, the qualified name of its CDI device (our own
        addition).
    """

    name: str
    interface: str
    ips: tuple[str, ...] = ()
    mac: str = ""
    mtu: int = 0
    default: bool | None = None
    dns: _Dns | None = None
    device_info: DeviceInfo
    cdi_device: str = ""


def network_status(receipt: Receipt, results: Mapping[str, IpamResult]) -> tuple[NetworkStatus, ...]:
    """Return the entries of an attachment; results: of the interfaces with addresses, by their names."""
    return tuple(
        _status(receipt.network, interface, results.get(interface.ifname)) for interface in receipt.interfaces
    )


def encode_network_status(entries: Iterable[NetworkStatus]) -> str:
    """Encode the annotation's value."""
    return _encoder.encode(tuple(entries)).decode()


def _status(network: str, interface: AllocatedInterface, ipam: IpamResult | None) -> NetworkStatus:
    addresses = ipam.addresses if ipam else ()
    return NetworkStatus(
        name=interface.options.network or network,
        interface=interface.ifname,
        ips=tuple(address.partition("/")[0] for address in addresses),
        mac=interface.mac,
        mtu=(interface.options.mtu or interface.home.mtu) if interface.is_netdev else 0,
        default=False,
        dns=_status_dns(ipam) if ipam else None,
        device_info=device_info(interface),
        cdi_device="" if interface.is_netdev else qualified_name(interface.pci),
    )


def _status_dns(ipam: IpamResult) -> _Dns | None:
    ipam_dns = ipam.dns
    dns = _Dns(
        nameservers=ipam_dns.nameservers or (),
        domain=ipam_dns.domain or "",
        search=ipam_dns.search or (),
        options=ipam_dns.options or (),
    )
    return None if dns == _Dns() else dns
