"""Observation of the machine: sysfs, netlink and the configuration make one `Hardware`.

Where two sources disagree (a netdev renamed between two reads, a VF being moved) everything is read once
more. A disagreement that stays is reported and never taken for a smaller machine.

A PF's state has link speed, rates, problems and settings made by devlink.

This software never sets rates by devlink; administrators may. With the drivers of the table rates are set
through the PF's netdev, in switchdev mode as well (`linux.drivers`). mlx5 keeps the last value of each rate,
by either interface; rates that devlink set for ice are reported by devlink alone. VFs in a group share the
group's part of the link, so that a minimum rate is not guaranteed to them, nor to VFs beside the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, PfState, Unreadable, Vf
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.errors import KernelError, printable
from k8s_rdma.linux.discovery.functions import (
    AwaitedNetdevs,
    Discovery,
    FoundPf,
    Missing,
    Selected,
    SkippedPf,
    find_pfs,
    select,
)
from k8s_rdma.linux.discovery.ports import Speed, ethernet_speed, infiniband_speed
from k8s_rdma.linux.discovery.rdma_names import RdmaDevices
from k8s_rdma.linux.discovery.vf_settings import VfSettings, from_netlink, read_vf_settings
from k8s_rdma.linux.discovery.vf_state import ObservedVf, VfContext, observe_vf
from k8s_rdma.linux.drivers import ability, row_of, supported_settings
from k8s_rdma.linux.netlink.routes import below, carriers
from k8s_rdma.linux.pcie import slowest_link
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, Sysfs
from k8s_rdma.linux.vfio import can_have_vfio

if TYPE_CHECKING:
    from k8s_rdma.core.pf_selection import PfRule, Selection
    from k8s_rdma.core.rate_ability import RateAbility
    from k8s_rdma.linux.netlink.queries import DevlinkRate, Queries, VfInfo


class Observer:
    """Observes one machine repeatedly and queries again only parts that may have changed.

    Beside all of `Queries` it reads little: of every PCI device `sriov_totalvfs`; of a PF `class`, `vendor`,
    `device`, `driver`, `sriov_numvfs`, `numa_node`, `virtfn*`, `net/`, `infiniband/`, `sriov/*/config`; of it
    and the bridges above `current_link_speed`, `current_link_width`; of a VF `driver`, `net/`, `infiniband/`,
    and of the first one `iommu_group/`, with its devices' `class` and `driver`; of drivers whether `vfio-pci`
    is there, and of vfio `enable_unsafe_noiommu_mode`; of netdevs
    `speed`, `phys_port_id`, `phys_port_name`, `phys_switch_id`, `dev_port`; of RDMA devices `fw_ver`,
    `parent`, `sys_image_guid`, `ports/*/state`, `ports/*/rate`. A `Sysfs` of one's own can note which.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        queries: Queries,
        selection: Selection,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Observe the PFs that the configuration selects through `sysfs` and `queries`; `now` in seconds."""
        self._sysfs = sysfs
        self._queries = queries
        self._selection = selection
        self._ours: dict[PciAddress, PfRule] = {}
        self._written_settings: dict[PciAddress, _WrittenSettings] = {}
        self._by_devlink: dict[PciAddress, Mapping[int, DevlinkRate]] = {}
        self._latecomers = AwaitedNetdevs(now)
        self._lasting: frozenset[str] = frozenset()

    def observe(self, changed: Collection[int] | None = None) -> Hardware:
        """Return the machine's present state.

        changed: indexes of the PFs' links whose VFs may have other settings than at the last call; None for
            all. Settings of other PFs are queried only if their VFs changed or their link is down.
        KernelError when netlink does not answer at all, or there is no sysfs.
        """
        scan = self._scan(changed)
        if scan.doubts - self._lasting:
            scan = self._scan(scan.doubtful)
        self._lasting = scan.doubts
        return scan.hardware

    def note_settings(self, pf: PciAddress, infos: Iterable[VfInfo]) -> None:
        """Store VF settings that another caller has just read from a PF, so that they are not read again."""
        written = self._written_settings.get(pf)
        if written is not None:
            self._written_settings[pf] = _WrittenSettings(written.index, written.vfs, _settings(infos))

    def discover(self) -> Discovery:
        """Find the PFs of the machine and select those that the agent manages, without reading their VFs.

        KernelError as with `observe`; OSError when a PF cannot be read.
        """
        return self._discover(self._surroundings())

    def _surroundings(self) -> VfContext:
        links = self._queries.links()
        modes = self._queries.eswitch_modes()
        switchdev = frozenset(pci for pci, mode in modes.items() if mode == "switchdev")
        return VfContext(
            sysfs=self._sysfs,
            links={link.name: link for link in links},
            owners={link.device: link.name for link in links if link.device},
            default_route_links=self._queries.default_route_links(),
            addressed_links=below(links, self._queries.addressed_links()),
            carriers=carriers(links),
            rdma=RdmaDevices(self._sysfs, self._queries.rdma_devices()),
            switchdev=switchdev,
            devlink_rates=self._queries.devlink_rates() if switchdev else {},
            unsafe_noiommu=self._selection.unsafe_noiommu,
        )

    def _discover(self, context: VfContext) -> Discovery:
        return select(
            find_pfs(self._sysfs, context.links, context.rdma),
            self._selection,
            default_route_links=context.default_route_links,
            ours=self._ours,
        )

    def _scan(self, changed: Collection[int] | None) -> _Scan:
        context = self._surroundings()
        try:
            discovery = self._discover(context)
        except OSError as error:
            return _Scan(Hardware((), (Unreadable("PFs", str(error)),)), frozenset({str(error)}))
        self._remember(discovery)
        observed = [self._pf(context, selected_pf, changed) for selected_pf in discovery.selected]
        missing = [
            selected_pf
            for selected_pf in discovery.skipped
            if self._is_ours(selected_pf) or _may_hold_vfs(selected_pf)
        ]
        hardware = Hardware(
            pfs=tuple(
                selected_pf.state for selected_pf in observed if not isinstance(selected_pf.state, Unreadable)
            ),
            unreadable=(
                *(selected_pf.state for selected_pf in observed if isinstance(selected_pf.state, Unreadable)),
                *(
                    Unreadable(f"PF {selected_pf.pf.pci}", selected_pf.why, selected_pf.pf.pci)
                    for selected_pf in missing
                ),
            ),
            problems=(
                *(selected_pf.why for selected_pf in discovery.skipped if selected_pf not in missing),
                *map(str, discovery.absent),
            ),
        )
        doubts = {doubt for selected_pf in observed for doubt in selected_pf.doubts} | {
            selected_pf.why for selected_pf in missing
        }
        doubtful = {selected_pf.index for selected_pf in observed if selected_pf.doubts}
        return _Scan(hardware, frozenset(doubts), frozenset(doubtful))

    def _is_ours(self, skipped: SkippedPf) -> bool:
        return skipped.pf.pci in self._ours or skipped.pf.pci in self._selection.allocated

    def _remember(self, discovery: Discovery) -> None:
        """Keep the selected PFs while they exist, and the settings of those that can be read."""
        selected = {selected_pf.pf.pci: selected_pf.rule for selected_pf in discovery.selected}
        missing = {
            selected_pf.pf.pci: selected_pf.rule
            for selected_pf in discovery.skipped
            if self._is_ours(selected_pf)
        }
        self._ours = selected | missing
        self._written_settings = {
            pci: written_setting for pci, written_setting in self._written_settings.items() if pci in selected
        }
        self._latecomers.retain(selected)

    def _pf(self, context: VfContext, selected: Selected, changed: Collection[int] | None) -> _ObservedPf:
        pf, index = selected.pf, selected.link.index
        try:
            vfs = self._vfs(context, selected, changed)
            state = pf_state(context, selected, [vf.vf for vf in vfs], self._queries.firmware)
            pf.must_be_as_found()
        except (OSError, KernelError) as error:
            self._written_settings.pop(pf.pci, None)
            unreadable = Unreadable(f"PF {pf.name}", str(error), pf.pci)
            return _ObservedPf(unreadable, index, (f"{unreadable.subject}: {unreadable.why}",))
        doubts = (
            f"PF {pf.name}: VF {observed.vf.index}: {observed.doubt}" for observed in vfs if observed.doubt
        )
        return _ObservedPf(state, index, tuple(doubts))

    def _vfs(
        self, context: VfContext, selected: Selected, changed: Collection[int] | None
    ) -> list[ObservedVf]:
        pf, link = selected.pf, selected.link
        vfs = pf.function.vfs()
        if len(vfs) != pf.num_vfs:
            msg = f"sriov_numvfs says {pf.num_vfs}, and {len(vfs)} VFs are there"
            raise KernelError(msg)
        # The kernel sends no event for a link that is down (`netdev_state_change`, net/core/dev.c), nor for
        # a rate that devlink set, which the PF may report as its own (`mlx5_eswitch_get_vport_config`).
        by_devlink = context.devlink_rates.get(pf.pci, {})
        if not link.is_up or by_devlink != self._by_devlink.get(pf.pci, {}):
            changed = None
        self._by_devlink[pf.pci] = by_devlink
        settings = self._settings(pf.pci, link.index, vfs, changed)
        settings = with_devlink(pf.driver or "", settings, by_devlink)
        observed = [
            observe_vf(context, index, pci, settings.get(index), link.mtu) for index, pci in vfs.items()
        ]
        self._must_have_come(pf.pci, observed)
        return observed

    def _must_have_come(self, pf: PciAddress, observed: Iterable[ObservedVf]) -> None:
        """Raise KernelError while a VF's driver is still creating its netdev."""
        lacking = {observed_pf.vf.pci: observed_pf for observed_pf in observed if observed_pf.lacking}
        expected = self._latecomers.expected(
            pf, {pci: observed_pf.lacking for pci, observed_pf in lacking.items()}
        )
        if expected is not None:
            late = lacking[expected]
            msg = f"VF {late.vf.index} ({expected}): its driver {late.lacking} has made no netdev yet"
            raise KernelError(msg)

    def _settings(
        self, pf: PciAddress, index: int, vfs: Mapping[int, PciAddress], changed: Collection[int] | None
    ) -> Mapping[int, VfSettings]:
        """Read the settings of a PF's VFs from MLNX_OFED's files if there are any, otherwise by netlink."""
        if not vfs:
            return {}
        in_files = read_vf_settings(self._sysfs, pf)
        if in_files is not None:
            return in_files
        written = self._written_settings.get(pf)
        if (
            written is None
            or changed is None
            or index in changed
            or (written.index, written.vfs) != (index, vfs)
        ):
            written = _WrittenSettings(index, vfs, _settings(self._queries.vf_infos(index)))
            self._written_settings[pf] = written
        return written.settings


@dataclass(frozen=True, slots=True)
class _ObservedPf:
    """A PF, its link's index, and the disagreements between its sources."""

    state: PfState | Unreadable
    index: int
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scan:
    """Result of one scan.

    doubts: disagreements that another scan may settle, one sentence each.
    doubtful: links of the PFs concerned.
    """

    hardware: Hardware
    doubts: frozenset[str]
    doubtful: frozenset[int] = frozenset()


def _settings(infos: Iterable[VfInfo]) -> Mapping[int, VfSettings]:
    return {info.index: from_netlink(info) for info in infos}


def _may_hold_vfs(skipped: SkippedPf) -> bool:
    """Report whether a PF that cannot be observed may still have VFs.

    A driver that is unbound removes them, and the kernel counts them until the last one is removed (Linux
    `drivers/pci/iov.c`, sriov_disable): no pod depends on a PF that counts none. A PF counts VFs without a
    driver or a netdev while guests use some, or while its driver recovers from a fault.
    """
    if skipped.missing is Missing.AGREEMENT:
        return True
    coming = skipped.missing is Missing.DRIVER or (
        skipped.missing is Missing.NETDEV and skipped.pf.netdevs is None
    )
    return coming and skipped.pf.num_vfs > 0 and skipped.pf.driver not in USERSPACE_DRIVERS


def group_of(driver: str, rate: DevlinkRate) -> str:
    """Return the rate group that an administrator put a VF in or gave rates, if there is one."""
    return rate.group if rate.group_rated or not row_of(driver).own_groups else ""


def with_devlink(
    driver: str, settings: Mapping[int, VfSettings], rates: Mapping[int, DevlinkRate]
) -> Mapping[int, VfSettings]:
    """Return the settings of a PF's VFs, merged with their devlink rates.

    The larger of two minimum rates applies, and the smaller of two maximum rates.
    """
    return {
        index: _with_rate(driver, setting, rates[index]) if index in rates else setting
        for index, setting in settings.items()
    }


def without_minimums(
    driver: str, ability: RateAbility, rates: Mapping[int, DevlinkRate]
) -> tuple[RateAbility, str]:
    """Return the rates that a PF accepts beside groups of VFs, and a clause on their restrictions."""
    grouped = {index: group for index, rate in rates.items() if (group := group_of(driver, rate))}
    if not grouped:
        return ability, ""
    vfs, groups = ", ".join(map(str, sorted(grouped))), ", ".join(sorted(set(grouped.values())))
    why = (
        f"its VFs {vfs} are in groups of devlink rates ({groups}), beside which no minimum rate is guaranteed"
    )
    return replace(ability, min=None, weights=None), why


def _with_rate(driver: str, reported: VfSettings, rate: DevlinkRate) -> VfSettings:
    maxima = {reported.max_tx_rate_mbps, rate.max_tx_rate_mbps} - {0}
    return replace(
        reported,
        min_tx_rate_mbps=max(reported.min_tx_rate_mbps, rate.min_tx_rate_mbps),
        max_tx_rate_mbps=min(maxima, default=0),
        by_devlink=_describe(rate, group_of(driver, rate)),
    )


def _describe(rate: DevlinkRate, group: str) -> str:
    found = [
        f"tx_share {rate.min_tx_rate_mbps} Mb/s" if rate.min_tx_rate_mbps else "",
        f"tx_max {rate.max_tx_rate_mbps} Mb/s" if rate.max_tx_rate_mbps else "",
        f"group {group}" if group else "",
    ]
    if not any(found):
        return ""
    description = ", ".join(filter(None, found))
    return f"its rates are set by devlink ({description}); `devlink port function rate set` takes them back"


def pf_state(
    context: VfContext, selected: Selected, vfs: Iterable[Vf], query_firmware: Callable[[str], str]
) -> PfState:
    """Build the state of a PF with these VFs; `query_firmware` takes a netdev's name.

    Without a version of the netdev, that of the RDMA device is used, whose driver may have its own (irdma on
    ice). OSError or KernelError when the PF cannot be read.
    """
    pf, link = selected.pf, selected.link
    vfs = tuple(vfs)
    link_type = pf.link_type or LinkType.ETHERNET
    speed_mbps, unknown_speed = _speed(context, selected, link_type)
    link_mbps, limits = reservable_speed(selected, speed_mbps)
    firmware = query_firmware(link.name)
    if not firmware and pf.rdma_device:
        firmware = context.rdma.firmware(pf.rdma_device)
    driver, by_devlink = pf.driver or "", context.devlink_rates.get(pf.pci, {})
    rates = ability(
        driver=driver,
        link_type=link_type,
        link_mbps=speed_mbps,
        vendor=pf.vendor,
        vst=bool(vfs) and all(vf.vlan for vf in vfs),
    )
    rates, grouped = without_minimums(driver, rates, by_devlink)
    return PfState(
        name=link.name,
        altnames=link.altnames,
        pci=pf.pci,
        link_mbps=link_mbps,
        driver=driver,
        vfs=vfs,
        mtu=link.mtu,
        link_type=link_type,
        rdma_device=None if pf.rdma_device is None else printable(pf.rdma_device),
        vendor=pf.vendor,
        firmware=printable(firmware),
        numa_node=pf.function.numa_node(),
        pcie_path=pf.function.pcie_path(),
        switchdev=pf.pci in context.switchdev,
        rates=rates,
        enforce=selected.rule.enforce,
        supported_settings=supported_settings(
            driver=driver,
            link_type=link_type,
            switchdev=pf.pci in context.switchdev,
            vfio_pci=bool(vfs)
            and can_have_vfio(context.sysfs, vfs[0].pci, unsafe_noiommu=context.unsafe_noiommu),
        ),
        problems=tuple(_problems(context, selected, unknown_speed, *limits, grouped)),
        mac=link.mac,
    )


def _speed(context: VfContext, selected: Selected, link_type: LinkType) -> Speed:
    if link_type is LinkType.INFINIBAND and selected.pf.rdma_device:
        return infiniband_speed(context.sysfs, selected.link, selected.pf.rdma_device)
    return ethernet_speed(context.sysfs, selected.link)


def reservable_speed(selected: Selected, speed_mbps: int | None) -> tuple[int | None, tuple[str, ...]]:
    """Return the part of a port's speed that may be reserved on a PF, Mb/s, and a clause on each limit.

    PFs of one port share its speed evenly. No more is reserved on a PF than its PCIe link carries.
    """
    if speed_mbps is None:
        return None, ()
    clauses, reservable_mbps = [], selected.shared.share(speed_mbps)
    if names := selected.shared.pfs:
        clauses.append(
            f"it is one port with {', '.join(names)} ({selected.shared.identity}), so that each has "
            f"{reservable_mbps} of its {speed_mbps} Mb/s; select one of them in hardware.pfs to have it whole"
        )
    link = slowest_link(selected.pf.function)
    if link and link.mbps < reservable_mbps:
        clauses.append(
            f"its PCIe link carries {link.mbps} of its port's {speed_mbps} Mb/s ({link}), and no more is "
            "reservable; use a slot of more lanes or a higher generation"
        )
        reservable_mbps = link.mbps
    return reservable_mbps, tuple(clauses)


def no_vfs(pf: FoundPf) -> str:
    """Return the problem of a PF without VFs."""
    return f"PF {pf.name}: it has no VFs, of {pf.total_vfs} that it can have; run `k8s-rdma init`"


def _problems(context: VfContext, selected: Selected, *clauses: str) -> Iterator[str]:
    pf = selected.pf
    if not pf.num_vfs:
        yield no_vfs(pf)
    yield from (f"PF {pf.name}: {clause}" for clause in clauses if clause)
    if pf.pci in context.switchdev:
        why = "traffic of its VFs needs the representors up and forwarded, a task of the mode's owner"
        yield f"PF {pf.name}: its embedded switch is in switchdev mode: {why}"
    if selected.objection:
        yield selected.objection


@dataclass(frozen=True, slots=True)
class _WrittenSettings:
    """Settings of VFs as their PF's netdev reports them."""

    index: int
    vfs: Mapping[int, PciAddress]
    settings: Mapping[int, VfSettings]
