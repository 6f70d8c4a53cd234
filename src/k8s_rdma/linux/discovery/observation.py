"""Observation of the machine: sysfs, netlink and the configuration make one `Hardware`.

Where two sources disagree (a netdev renamed between two reads, a VF being moved) everything is read once
more. A disagreement that stays is reported and never taken for a smaller machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.kernel import Hardware, PfState, Unreadable
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.pf_state import pf_state, with_devlink
from k8s_rdma.linux.discovery.pfs import Missing, find_pfs, select
from k8s_rdma.linux.discovery.rdma_devices import RdmaDevices
from k8s_rdma.linux.discovery.vf_settings import VfSettings, from_netlink, read_vf_settings
from k8s_rdma.linux.discovery.vfs import AwaitedNetdevs, VfContext, observe_vf
from k8s_rdma.linux.netlink.routes import below, carriers
from k8s_rdma.linux.pci import USERSPACE_DRIVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from k8s_rdma.core.selection import PfRule, Selection
    from k8s_rdma.linux.discovery.pfs import Discovery, Selected, SkippedPf
    from k8s_rdma.linux.discovery.vfs import ObservedVf
    from k8s_rdma.linux.netlink.queries import DevlinkRate, Queries, VfInfo
    from k8s_rdma.linux.sysfs import Sysfs


@dataclass(frozen=True, slots=True)
class _WrittenSettings:
    """Settings of VFs as their PF's netdev reports them."""

    index: int
    vfs: Mapping[int, PciAddress]
    settings: Mapping[int, VfSettings]


@dataclass(frozen=True, slots=True)
class _Scan:
    """Result of one scan.

    doubts: disagreements that another scan may settle, one sentence each. doubtful: links of the PFs
    concerned.
    """

    hardware: Hardware
    doubts: frozenset[str]
    doubtful: frozenset[int] = frozenset()


class Observer:
    """Observes one machine repeatedly and queries again only what may have changed.

    Beside all of `Queries` it reads little: of every PCI device `sriov_totalvfs`; of a PF `class`, `vendor`,
    `device`, `driver`, `sriov_numvfs`, `numa_node`, `virtfn*`, `net/`, `infiniband/`, `sriov/*/config`; of a
    VF `driver`, `net/`, `infiniband/`, and of the first one `iommu_group/`, with its devices' `class` and
    `driver`; of drivers whether `vfio-pci` is there, and of vfio `enable_unsafe_noiommu_mode`; of netdevs
    `speed`, `phys_port_name`, `dev_port`; of RDMA devices `fw_ver`, `parent`, `ports/*/state`,
    `ports/*/rate`. A `Sysfs` of one's own can note which.
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

        changed: indexes of the PFs' links whose VFs may have other settings than at the last call; None when
            any may. Others are asked about theirs only if they are other VFs now, or their link is down.
        KernelError when netlink cannot be asked at all, or there is no sysfs.
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
        observed = [self._pf(context, each, changed) for each in discovery.selected]
        missing = [each for each in discovery.skipped if self._is_ours(each) or _may_hold_vfs(each)]
        hardware = Hardware(
            pfs=tuple(each.state for each in observed if not isinstance(each.state, Unreadable)),
            unreadable=(
                *(each.state for each in observed if isinstance(each.state, Unreadable)),
                *(Unreadable(f"PF {each.pf.pci}", each.why) for each in missing),
            ),
            problems=(*(each.why for each in discovery.skipped if each not in missing), *discovery.problems),
        )
        doubts = {doubt for each in observed for doubt in each.doubts} | {each.why for each in missing}
        doubtful = {each.index for each in observed if each.doubts}
        return _Scan(hardware, frozenset(doubts), frozenset(doubtful))

    def _is_ours(self, skipped: SkippedPf) -> bool:
        return skipped.pf.pci in self._ours or skipped.pf.pci in self._selection.allocated

    def _remember(self, discovery: Discovery) -> None:
        """Keep the selected PFs while they exist, and the settings of those that can be read."""
        selected = {each.pf.pci: each.rule for each in discovery.selected}
        missing = {each.pf.pci: each.rule for each in discovery.skipped if self._is_ours(each)}
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
            unreadable = Unreadable(f"PF {pf.name}", str(error))
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
        # Of a link that is down the kernel tells nobody (`netdev_state_change`, net/core/dev.c), and of no
        # rate that devlink set, which the PF may tell as its own (`mlx5_eswitch_get_vport_config`).
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
        lacking = {each.vf.pci: each for each in observed if each.lacking}
        expected = self._latecomers.expected(pf, {pci: each.lacking for pci, each in lacking.items()})
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
