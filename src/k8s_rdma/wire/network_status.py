"""The pod annotation `k8s-rdma.io/network-status`: which interfaces the pod was given, one entry each.

Its form is that of `k8s.v1.cni.cncf.io/network-status` (Network Plumbing Working Group, Kubernetes Network
Custom Resource Definition De-facto Standard 1.3, section 5), which Multus writes and owns; hence a key of
ours. Addresses are without prefix length, as Multus writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.wire.cdi import qualified_name
from k8s_rdma.wire.device_info import DeviceInfo, device_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.wire.ipam_result import IpamResult

NETWORK_STATUS_ANNOTATION = "k8s-rdma.io/network-status"


class _Dns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class NetworkStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """One interface.

    name: the network's. interface: its name in the pod; of a PCI function, which has none, the one that it
    would have. default: never, a pod's default network is another plugin's. cdi_device: of a PCI function for
    a program in the pod, the qualified name of its CDI device (our own addition).
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


_encoder = msgspec.json.Encoder()


def network_status(receipt: Receipt, results: Mapping[str, IpamResult]) -> tuple[NetworkStatus, ...]:
    """The entries of an attachment; results: by the interfaces' names, of those that have addresses."""
    return tuple(_status(receipt.network, each, results.get(each.ifname)) for each in receipt.interfaces)


def encode_network_status(entries: Iterable[NetworkStatus]) -> str:
    """The annotation's value."""
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
        dns=_dns(ipam) if ipam else None,
        device_info=device_info(interface),
        cdi_device="" if interface.is_netdev else qualified_name(interface.pci),
    )


def _dns(ipam: IpamResult) -> _Dns | None:
    given = ipam.dns
    dns = _Dns(
        nameservers=given.nameservers or (),
        domain=given.domain or "",
        search=given.search or (),
        options=given.options or (),
    )
    return None if dns == _Dns() else dns
