"""The state of one VF at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.kernel import Vf
from k8s_rdma.errors import printable
from k8s_rdma.linux.discovery.netdevs import vf_link
from k8s_rdma.linux.discovery.rdma_names import RdmaDevices
from k8s_rdma.linux.discovery.vf_settings import NOTHING_TOLD, VfSettings
from k8s_rdma.linux.netlink.queries import DevlinkRate
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, PciFunction, Sysfs

if TYPE_CHECKING:
    from k8s_rdma.core.types import PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class VfContext:
    """State of the machine at one moment, against which VFs are observed.

    links: by name.
    owners: names of links by the PCI address that netlink reports for them.
    default_route_links: by index.
    addressed_links: by index, links with an IP address and the links that carry their frames.
    carriers: by index, links that other links are made on.
    switchdev: PCI addresses of PFs whose embedded switch is in that mode.
    devlink_rates: as in `Queries.devlink_rates`, for these PFs.
    unsafe_noiommu: as in `Selection`.
    """

    sysfs: Sysfs
    links: Mapping[str, Link]
    owners: Mapping[str, str]
    default_route_links: frozenset[int]
    addressed_links: frozenset[int]
    carriers: frozenset[int]
    rdma: RdmaDevices
    switchdev: frozenset[str]
    devlink_rates: Mapping[str, Mapping[int, DevlinkRate]]
    unsafe_noiommu: bool


@dataclass(frozen=True, slots=True)
class ObservedVf:
    """A VF as observed.

    doubt: a disagreement of its sources, which another scan may settle, or empty.
    lacking: its driver if that should create a netdev and has created none, or empty.
    """

    vf: Vf
    doubt: str
    lacking: str


class _Netdev(NamedTuple):
    """Name and link of a VF's netdev in this namespace, and a disagreement of sysfs and netlink."""

    name: str | None
    link: Link | None = None
    doubt: str = ""


def observe_vf(
    context: VfContext, index: int, pci: PciAddress, settings: VfSettings | None, pf_mtu: int
) -> ObservedVf:
    """Observe a VF; `settings` is None if its PF has no entry for it.

    OSError when it cannot be read. The MTU is the PF's while the netdev is in another namespace.
    """
    function = PciFunction(context.sysfs, pci)
    driver = function.driver()
    names = function.netdevs()
    netdev = _netdev(context, function, names)
    no_driver = _of_no_driver(driver)
    lacking = driver if driver and names is None and not no_driver else ""
    doubt = printable(netdev.doubt) or ("" if settings else "its PF does not report it")
    known_settings = settings or NOTHING_TOLD
    vf = Vf(
        index=index,
        pci=pci,
        netdev=None if netdev.name is None else printable(netdev.name),
        mac=netdev.link.mac if netdev.link else known_settings.mac,
        mtu=netdev.link.mtu if netdev.link else pf_mtu,
        min_tx_rate_mbps=known_settings.min_tx_rate_mbps,
        max_tx_rate_mbps=known_settings.max_tx_rate_mbps,
        vlan=known_settings.vlan,
        qos=known_settings.qos,
        vlan_proto=known_settings.vlan_proto,
        spoof_check=known_settings.spoof_check,
        trust=known_settings.trust,
        link_state=known_settings.link_state,
        vgt_plus=known_settings.vgt_plus,
        rate_group=known_settings.rate_group,
        rdma_device=context.rdma.name_of(function, netdev.link),
        admin_mac=known_settings.mac,
        node_guid=known_settings.node_guid,
        driver=driver or "",
        unusable=(
            doubt
            or no_driver
            or _without_netdev(lacking)
            or _of_no_text(netdev)
            or (known_settings.by_devlink if netdev.link else "")
            or _in_use(context, netdev.link)
        ),
    )
    return ObservedVf(vf, doubt, lacking)


def _netdev(context: VfContext, function: PciFunction, names: list[str] | None) -> _Netdev:
    elsewhere = context.owners.get(function.pci)
    if not names:
        doubt = f"netlink has {elsewhere} as its netdev, sysfs has none" if elsewhere else ""
        return _Netdev(elsewhere, doubt=doubt)
    link = vf_link(function, names, context.links)
    if link is None:
        doubt = f"sysfs has {', '.join(sorted(names))} as its netdev, netlink has {elsewhere or 'none'}"
        return _Netdev(min(names), doubt=doubt)
    return _Netdev(link.name, link)


def _of_no_driver(driver: str | None) -> str:
    if driver is None:
        return "no driver is bound to it"
    return f"it is bound to {driver}, which makes no netdev" if driver in USERSPACE_DRIVERS else ""


def _without_netdev(driver: str) -> str:
    return f"its driver {driver} made no netdev of it" if driver else ""


def _of_no_text(netdev: _Netdev) -> str:
    """Describe a netdev's name that is not text: a pod can set one, and it stays when its namespace ends."""
    shown = printable(netdev.name or "")
    return "" if shown == (netdev.name or "") else f"the name of its netdev {shown} is not valid text"


def _in_use(context: VfContext, link: Link | None) -> str:
    """Describe the host's own use of a VF in the host's namespace."""
    if link is None:
        return ""
    if link.index in context.default_route_links:
        return f"the host's default route leads through its netdev {link.name}"
    if link.master:
        return f"its netdev {link.name} is part of link #{link.master} of the host"
    if link.index in context.addressed_links:
        address_use = f"the host has an IP address on its netdev {link.name}, or on a link above that"
        return f"{address_use}; take the address off to have the VF for pods, or leave it to the host"
    if link.index in context.carriers:
        return f"the host has a VLAN, macvlan or macvtap on its netdev {link.name}"
    return ""
