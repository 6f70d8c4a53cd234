"""PFs of the machine that a configuration selects."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import TYPE_CHECKING

from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netdevs import is_representor, own_link
from k8s_rdma.linux.discovery.ports import (
    OWN_PORT,
    UNKNOWN_PORT,
    PortIdentity,
    SharedPort,
    read_identity,
    shared_port,
)
from k8s_rdma.linux.drivers import row_of
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.sysfs import PciFunction, Sysfs, pfs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.linux.discovery.rdma_names import RdmaDevices


_LINK_TYPES = {1: LinkType.ETHERNET, 32: LinkType.INFINIBAND}
"""Link types by ARPHRD_* (Linux `include/uapi/linux/if_arp.h`)."""

_BONDS = frozenset({"bond", "team"})
"""Kinds of links (`IFLA_INFO_KIND`) that join ports."""

_SCHEME_ENDING = re.compile(r"(f\d+)?(n\w+|d\d+)?")
"""The ending that naming schemes of systemd differ by: function, port name or number of the port
(systemd.net-naming-scheme(7))."""

PATIENCE_S = 10.0
"""Time to wait for the netdev of a VF with a driver; one that appears later is used as well."""

_Lacking = tuple[PciAddress, str]


@unique
class Missing(Enum):
    """Requirement that a PF does not meet.

    DRIVER: no driver is bound.
    NETDEV: its driver made no netdev, or that is in another network namespace.
    AGREEMENT: netlink does not list the netdev that sysfs names, or no driver is bound that could have made
        it.
    RDMA: it has no RDMA device.
    LEAVE: it carries the default route, and its rule does not name it.
    BOND: it is a port of a bond and has no VFs, and its rule does not name it.
    RULE: no rule matches it.
    """

    DRIVER = "driver"
    NETDEV = "netdev"
    AGREEMENT = "agreement"
    RDMA = "rdma"
    LEAVE = "leave"
    BOND = "bond"
    RULE = "rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPf:
    """A PF of the machine. total_vfs: the most VFs it supports. num_vfs: the VFs it is set to have.

    netdevs: names in sysfs, without representors; None while its driver has made none.
    link: the PF's own netdev.
    bond: the name of the bond that this is a port of, if any.
    port: the identities of its port; none while it has no netdev.
    representors: names of netdevs that are the host's ends of others.
    """

    function: PciFunction
    vendor: str
    driver: str | None
    total_vfs: int
    num_vfs: int
    netdevs: tuple[str, ...] | None
    link: Link | None
    rdma_device: str | None
    port: PortIdentity = UNKNOWN_PORT
    bond: str = ""
    representors: tuple[str, ...] = ()

    @property
    def pci(self) -> PciAddress:
        """The PF's PCI address."""
        return self.function.pci

    @property
    def name(self) -> str:
        """Name of its netdev, or its PCI address while it has none."""
        return self.link.name if self.link else self.pci

    @property
    def names(self) -> frozenset[str]:
        """All names by which a rule may call it: those of its netdevs, and altnames (`ip link property`).

        systemd keeps the name of an older naming scheme as an altname; ens7f0 became ens7f0np0 so.
        """
        return frozenset(self.netdevs or ()) | frozenset(self.link.altnames if self.link else ())

    @property
    def link_type(self) -> LinkType | None:
        """Link layer of its port, if it has a netdev and is Ethernet or InfiniBand."""
        return _LINK_TYPES.get(self.link.type) if self.link else None

    def must_be_as_found(self) -> None:
        """Raise KernelError when its driver or its number of VFs has changed since."""
        now = self.function.driver(), self.function.num_vfs()
        if now != (self.driver, self.num_vfs):
            msg = f"its driver {self.driver} and {self.num_vfs} VFs became {now[0]} and {now[1]} meanwhile"
            raise KernelError(msg)


@dataclass(frozen=True, slots=True)
class Selected:
    """A selected PF, its netdev, and the rule that selects it.

    objection: a sentence on why it would not be selected if it were not in use already, or empty.
    shared: the other selected PFs of its port.
    """

    pf: FoundPf
    link: Link
    rule: PfRule
    objection: str = ""
    shared: SharedPort = OWN_PORT


@dataclass(frozen=True, slots=True)
class SkippedPf:
    """A PF that a rule selects but that cannot be used, the unmet requirement, and a sentence about it."""

    pf: FoundPf
    rule: PfRule
    missing: Missing
    why: str

    @property
    def advice(self) -> str:
        """Return the remedy: a command, or a line of configuration."""
        name_it = "name it in hardware.pfs (names or pcis)"
        driver = self.pf.driver or ""
        match self.missing:
            case Missing.NETDEV if lacks_ipoib(self.pf):
                advice = "modprobe ib_ipoib && echo ib_ipoib > /etc/modules-load.d/ib_ipoib.conf"
            case Missing.NETDEV if self.pf.netdevs is not None:
                advice = "move its netdev back into the host's network namespace, or exclude the PF"
            case Missing.DRIVER | Missing.NETDEV | Missing.AGREEMENT:
                advice = f"see the lines of {driver or 'its driver'} in dmesg"
            case Missing.RDMA if self.pf.bond and driver == "ice":  # ice_lag_monitor_rdma, Linux 6.12
                advice = f"take it out of {self.pf.bond}: ice has no RDMA on ports of a bond"
            case Missing.RDMA:
                module = row_of(driver).rdma_module
                load = f"modprobe {module}; " if module else ""
                advice = f"{load}for a card without RDMA, hardware.requireRdma: false, or exclude it"
            case Missing.BOND:
                advice = f"{name_it} to have VFs on it, or take it out of {self.pf.bond}, or exclude it"
            case _:
                advice = f"{name_it}, or exclude it"
        return advice


@dataclass(frozen=True, slots=True)
class AbsentPf:
    """A PF that a rule names and that does not exist.

    name: of its netdev, or its PCI address.
    likely: the name of a PF that no rule selects and that differs from it by an ending alone, as ens7f0np0
        from ens7f0, if there is one.
    """

    name: str
    likely: str = ""

    def __str__(self) -> str:
        """Describe it in a sentence."""
        kind = "network card" if ":" in self.name else "network device"
        absent = "is there" if ":" in self.name else "is called so"
        hint = f"; {self.likely} is not selected: is it meant?" if self.likely else ""
        return f"hardware.pfs names {self.name}, and no {kind} that can have VFs {absent}{hint}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """The selected PFs and the others, ordered by PCI address.

    skipped: PFs that a rule selects but that cannot be used.
    absent: names and addresses of rules that do not exist.
    unmeant: PFs that no rule matches.
    """

    selected: tuple[Selected, ...]
    skipped: tuple[SkippedPf, ...]
    absent: tuple[AbsentPf, ...]
    unmeant: tuple[FoundPf, ...] = ()


def find_pfs(sysfs: Sysfs, links: Mapping[str, Link], rdma: RdmaDevices) -> tuple[FoundPf, ...]:
    """Return all PFs of network cards by address; `links` by name. OSError when one cannot be read."""
    found = [_found_pf(function, links, rdma) for function in pfs(sysfs)]
    return tuple(_with_rdma_of_bond(pf, found, links, rdma) for pf in found)


def _found_pf(function: PciFunction, links: Mapping[str, Link], rdma: RdmaDevices) -> FoundPf:
    netdevs = function.netdevs()
    representors = sorted(name for name in netdevs or () if is_representor(function.sysfs, name))
    link = own_link(function, netdevs or (), links)
    rdma_device = rdma.name_of(function, link)
    return FoundPf(
        function=function,
        vendor=function.vendor(),
        driver=function.driver(),
        total_vfs=function.total_vfs(),
        num_vfs=function.num_vfs(),
        netdevs=None if netdevs is None else tuple(sorted(set(netdevs) - set(representors))),
        link=link,
        rdma_device=rdma_device,
        port=read_identity(function, link, rdma_device) if link else UNKNOWN_PORT,
        bond=_bond_of(link, links) if link else "",
        representors=tuple(representors),
    )


def _bond_of(link: Link, links: Mapping[str, Link]) -> str:
    bonds = {bond.index: bond.name for bond in links.values() if bond.kind in _BONDS}
    return bonds.get(link.master, "")


def _with_rdma_of_bond(
    pf: FoundPf, found: Iterable[FoundPf], links: Mapping[str, Link], rdma: RdmaDevices
) -> FoundPf:
    """Return a PF with the RDMA device that a LAG's ports have in common, if it has none of its own.

    mlx5 joins the ports of a card and keeps the RDMA device of one function alone, mlx5_bond_0, both in VF
    LAG and in RoCE LAG (drivers/net/ethernet/mellanox/mlx5/core/lag/lag.c, 6.12).
    """
    if pf.rdma_device is not None or not pf.bond:
        return pf
    of_bond = rdma.on_netdev(links[pf.bond])
    card = pf.pci.rpartition(".")[0]
    for port in found:
        same_lag = (port.bond, port.driver) == (pf.bond, pf.driver)
        same_card = port.pci.rpartition(".")[0] == card
        if port.rdma_device and same_lag and (same_card or port.rdma_device in of_bond):
            return replace(pf, rdma_device=port.rdma_device)
    return pf


def select(
    found: Iterable[FoundPf],
    selection: Selection,
    *,
    default_route_links: frozenset[int],
    ours: Mapping[PciAddress, PfRule],
) -> Discovery:
    """Apply the configuration.

    ours: PFs selected before, with their rules. They stay selected whatever their name and routes are now,
    because pods may have their VFs, and so do those of `selection.allocated`; only a PF without a driver or a
    netdev is not.
    """
    selected, skipped, unmeant = [], [], []
    found = tuple(found)
    names = frozenset(name for pf in found for name in pf.names)
    for pf in found:
        retained = pf.pci in ours or pf.pci in selection.allocated
        rule = ours.get(pf.pci) or next((rule for rule in selection.rules if _matches(rule, pf, names)), None)
        if rule is None and not retained:
            unmeant.append(pf)
            continue
        objection = _objection(pf, rule, selection, default_route_links)
        rule = rule or PfRule(pcis=frozenset({pf.pci}))
        if pf.link is None or pf.driver is None:
            skipped.append(_incomplete(pf, rule))
        elif objection is None:
            selected.append(Selected(pf, pf.link, rule))
        elif retained:
            problem = f"{objection[1]}; as it was in use before, it is until a restart without pods on it"
            selected.append(Selected(pf, pf.link, rule, problem))
        else:
            skipped.append(SkippedPf(pf, rule, *objection))
    absent = tuple(_absent(selection, found, unmeant))
    return Discovery(_with_shared_ports(selected), tuple(skipped), absent, tuple(unmeant))


def _with_shared_ports(selected: Iterable[Selected]) -> tuple[Selected, ...]:
    selected = tuple(selected)
    identities = {selection.pf.name: selection.pf.port for selection in selected}
    return tuple(
        replace(selection, shared=shared_port(selection.pf.name, identities)) for selection in selected
    )


def _matches(rule: PfRule, pf: FoundPf, names: frozenset[str]) -> bool:
    """Report whether all selectors match; selectors on unknown properties (driver, netdev) count as matching.

    names: of all PFs; a PF without a netdev matches a rule with names only if one of them is missing.
    """
    named = rule.names & pf.names if pf.names else rule.names - names
    vendors = {pf.vendor, pf.vendor.partition(":")[0]}
    return (
        (not rule.pcis or pf.pci in rule.pcis)
        and (not rule.vendors or bool(rule.vendors & vendors))
        and (not rule.drivers or pf.driver is None or pf.driver in rule.drivers)
        and (not rule.names or bool(named))
        and (not rule.link_types or pf.link is None or pf.link_type in rule.link_types)
    )


def _incomplete(pf: FoundPf, rule: PfRule) -> SkippedPf:
    subject = f"PF {pf.pci} ({pf.vendor})"
    if pf.driver is None and not pf.netdevs:
        return SkippedPf(pf, rule, Missing.DRIVER, f"{subject} is not used: no driver is bound to it")
    if pf.netdevs:
        reason = "which netlink does not list" if pf.driver else "and no driver that could have made it"
        why = f"sysfs has {', '.join(pf.netdevs)} as its netdev, {reason}"
        return SkippedPf(pf, rule, Missing.AGREEMENT, f"{subject} is not used: {why}")
    if pf.netdevs is not None:
        beside = f"; only representors are here: {', '.join(pf.representors)}" if pf.representors else ""
        why = f"has its netdev in another network namespace{beside}"
    elif lacks_ipoib(pf):
        why = f"has made no netdev: ib_ipoib makes it for {pf.rdma_device} and is not loaded"
    else:
        why = "has made no netdev"
    return SkippedPf(pf, rule, Missing.NETDEV, f"{subject} is not used: its driver {pf.driver} {why}")


def lacks_ipoib(pf: FoundPf) -> bool:
    """Report whether a PF has no netdev because ib_ipoib, which makes those of InfiniBand, is not loaded.

    A PF whose RDMA device does not report a link layer counts as InfiniBand: every Ethernet driver makes a
    netdev before its RDMA device.
    """
    if pf.netdevs is not None or pf.rdma_device is None:
        return False
    sysfs = pf.function.sysfs
    layer = sysfs.value_if_any(f"class/infiniband/{pf.rdma_device}/ports/1/link_layer")
    return layer in (None, "InfiniBand") and sysfs.names_if_any("module/ib_ipoib") is None


def _objection(
    pf: FoundPf, rule: PfRule | None, selection: Selection, default_route_links: frozenset[int]
) -> tuple[Missing, str] | None:
    """Requirement of a rule that a PF does not meet, and the sentence about it."""
    subject = f"PF {pf.name} ({pf.pci}) is not to be used"
    if rule is None:
        return Missing.RULE, f"{subject}: nothing in hardware.pfs selects it"
    if pf.link and pf.link.index in default_route_links and not rule.names_it:
        why = "it carries the default route, and no name or address in hardware.pfs is its"
        return Missing.LEAVE, f"{subject}: {why}"
    if pf.bond and not pf.num_vfs and not rule.names_it:
        has_lag = pf.driver == "mlx5_core" and pf.rdma_device
        ends = f"; VFs would end the LAG of {pf.rdma_device}" if has_lag else ""
        why = f"it is a port of {pf.bond} and has no VFs, and no name or address in hardware.pfs is its"
        return Missing.BOND, f"{subject}: {why}{ends}"
    if selection.require_rdma and pf.rdma_device is None:
        return Missing.RDMA, f"{subject}: it has no RDMA device, which hardware.requireRdma demands"
    return None


def _absent(selection: Selection, found: Sequence[FoundPf], unmeant: Iterable[FoundPf]) -> Iterator[AbsentPf]:
    names = frozenset(name for pf in found for name in pf.names)
    pcis = {pf.pci for pf in found}
    candidates = sorted(name for pf in unmeant for name in pf.names)
    for rule in selection.rules:
        for name in sorted(rule.names - names):
            likely = (candidate for candidate in candidates if _differ_by_scheme(name, candidate))
            yield AbsentPf(name, next(likely, ""))
        yield from map(AbsentPf, sorted(rule.pcis - pcis))


def _differ_by_scheme(name: str, candidate: str) -> bool:
    shorter, longer = sorted((name, candidate), key=len)
    return longer.startswith(shorter) and _SCHEME_ENDING.fullmatch(longer[len(shorter) :]) is not None


class AwaitedNetdevs:
    """Waiting times of VFs that have a driver and no netdev, by PF."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start without VFs; `now` returns the seconds of a monotonic clock."""
        self._now = now
        self._missing_since: dict[PciAddress, dict[_Lacking, float]] = {}

    def expected(self, pf: PciAddress, lacking: Mapping[PciAddress, str]) -> PciAddress | None:
        """Return the first VF in `lacking` (drivers of VFs without a netdev) that may still get one."""
        now, previous = self._now(), self._missing_since.get(pf, {})
        missing_since = {missing: previous.get(missing, now) for missing in lacking.items()}
        self._missing_since[pf] = missing_since
        return next((vf for (vf, _), began in missing_since.items() if now - began < PATIENCE_S), None)

    def retain(self, pfs: Collection[PciAddress]) -> None:
        """Forget the VFs of other PFs, whose drivers start again."""
        self._missing_since = {pf: time for pf, time in self._missing_since.items() if pf in pfs}
