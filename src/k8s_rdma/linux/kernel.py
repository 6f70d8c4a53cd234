"""`core.kernel.Kernel` on SR-IOV hardware, in the network namespace where it is made.

`KnownPfs` caches the state of PFs; a PF that may have changed is read again on access.

Traffic counters come from the PF's driver if that counts, otherwise from the VF's netdev, in whichever
namespace that is. The PF's counters include traffic that bypasses the VF's netdev, above all RDMA. The kernel
reports zeros for a driver that does not count.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, LocatedVf, PauseFrames, PfState, PodInterface, VfCounters
from k8s_rdma.core.step import (
    BindVf,
    BringHome,
    CapInterface,
    CleanVf,
    ClearInterface,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    NetnsRef,
    ProgramVfs,
    SetRates,
    Step,
    UnbindVf,
    VfRate,
    VfRef,
)
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import Changes, files_without_events
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.netlink.rtnl import Link, LinkCounters, Rtnl, counters_of_all
from k8s_rdma.linux.netlink.sriov import set_rates as write_rates
from k8s_rdma.linux.netlink.sriov import set_vfs, vlan
from k8s_rdma.linux.netns import Namespaces, current_namespace
from k8s_rdma.linux.pod_interface import (
    CapAbility,
    announce,
    cap_interface,
    change_interface,
    interfaces_in,
    located_vfs,
    make_bare,
)
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from k8s_rdma.linux.vf.binding import VfBinding
from k8s_rdma.linux.vf.homes import VfHomes
from k8s_rdma.linux.vf.moves import (
    RETURN_TIMEOUT_S,
    HostNamespace,
    VfLocator,
    VfMoves,
    VfRdma,
    netdevs_by_device,
)
from k8s_rdma.linux.vf.netdev import describe
from k8s_rdma.linux.vf.programming import configure_vfs, present_rates, program_vfs, set_rates, with_rates

if TYPE_CHECKING:
    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.core.pf_selection import Selection
    from k8s_rdma.linux.netlink.queries import VfInfo


SLOW_S, REST_FACTOR = 0.5, 10
"""A namespace whose links took longer to look through rests for so many times as long: the pod decides how
many links it has (10,000 take more than a second), and others wait meanwhile."""

_LIFESPAN = "lifespan"
"""File beside the counters in sysfs with the time in ms for which their values are cached."""


class SriovKernel:
    """Implements `core.kernel.Kernel`; made and used on one thread, which must stay in its namespace."""

    def __init__(
        self,
        namespaces: Namespaces,
        selection: Selection,
        *,
        sysfs: Path | str = "/sys",
        queries: NetlinkQueries | None = None,
        return_timeout_s: float = RETURN_TIMEOUT_S,
    ) -> None:
        """Work with the PFs that are selected.

        sysfs: its mount point, for the same network namespace.
        queries: closed with this kernel.
        """
        self._namespaces = namespaces
        self._watchers: list[Callable[[], None]] = []
        self._watching = threading.Lock()
        with ExitStack() as undo:
            namespace = current_namespace()
            undo.callback(os.close, namespace)
            self._root, self._sysfs = Path(sysfs), Sysfs(sysfs)
            self._queries = undo.enter_context(queries or NetlinkQueries())
            self._changes = undo.enter_context(Changes(self._notify))
            observer = Observer(self._sysfs, self._queries, selection)
            self._pfs = KnownPfs(observer=observer, queries=self._queries, changes=self._changes)
            host = HostNamespace(self._queries.rtnl, namespace)
            self._caps = CapAbility(self._queries.rtnl.socket)
            self._places = VfLocator(host, self._sysfs)
            rdma = VfRdma(queries=self._queries, sysfs=self._sysfs, host=namespace)
            self._moves = VfMoves(
                host=host,
                namespaces=namespaces,
                places=self._places,
                rdma=rdma,
                return_timeout_s=return_timeout_s,
            )
            self._binding = VfBinding(
                rtnl=self._queries.rtnl,
                sysfs=self._sysfs,
                places=self._places,
                rdma=rdma,
                timeout_s=return_timeout_s,
                unsafe_noiommu=selection.unsafe_noiommu,
            )
            attributes = undo.enter_context(NetdevAttributes(self._queries.rtnl, self._sysfs))
            self._homes = VfHomes(
                attributes=attributes, places=self._places, rdma=rdma, binding=self._binding
            )
            self._traffic = VfTrafficSampler(
                queries=self._queries, sysfs=self._sysfs, namespaces=namespaces, rdma=rdma
            )
            self._files: frozenset[str] = frozenset()
            self._open = undo.pop_all()

    def observe(self) -> Hardware:
        """Observe the hardware; VFs of PFs without a change are not queried again."""
        hardware = self._pfs.scan()
        with _sysfs_failures():
            files = files_without_events(self._sysfs, hardware)
        if files != self._files:
            self._files = files
            self._changes.watch_files(self._root / file for file in files)
            hardware = self._pfs.scan()  # they may have changed before they were watched
        return self._caps.shown_in(replace(hardware, problems=(*hardware.problems, *self._untold())))

    def apply(self, step: Step) -> Attributes | None:
        """Apply the step; a repeated call has no further effect."""
        with _sysfs_failures():
            if isinstance(step, BringHome):
                return self._bring_home(step)
            self._apply(step)
        return None

    def attributes(self, vf: VfRef) -> Attributes:
        """Return the attributes of a VF's netdev at home."""
        with _sysfs_failures():
            return self._homes.attributes(vf)

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Report whether exactly this namespace still exists."""
        return self._namespaces.alive(netns)

    def interfaces(self, netns: NetnsRef) -> Mapping[str, PodInterface]:
        """Return the interfaces of a namespace."""
        return interfaces_in(netns, self._namespaces)

    def located(self, netns: NetnsRef) -> Mapping[PciAddress, LocatedVf]:
        """Return the functions that have a netdev in a namespace."""
        with self._namespaces.existing(netns) as namespace, Rtnl(namespace) as rtnl:
            found = netdevs_by_device(rtnl, namespace)
            links = {PciAddress(device): link for device, link in found.items()}
            return located_vfs(links, rtnl, f"namespace {netns.path}")

    def announce(self, netns: NetnsRef, addresses: Mapping[str, Collection[str]]) -> None:
        """Announce an interface's addresses on its network."""
        with self._namespaces.existing(netns) as namespace:
            announce(addresses, namespace)

    def sample(self, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:
        """Read the traffic counters of all VFs, from their PFs or from their netdevs."""
        with _sysfs_failures():
            return self._traffic.sample(self.observe(), holders)

    def pause_frames(self, pf: str) -> Mapping[int, PauseFrames]:
        """Read a PF's pause frames by priority."""
        try:
            return self._queries.pause_frames(pf)
        except KernelError:  # it went after the last observation
            return {}

    def reset(self, vf: VfRef) -> None:
        """Reset a VF in the host's namespace and verify that it is unused."""
        with _sysfs_failures():
            self._reset(vf)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from a thread of the kernel's own after something may have changed."""
        with self._watching:
            self._watchers.append(changed)

        def end() -> None:
            with self._watching:
                if changed in self._watchers:
                    self._watchers.remove(changed)

        return end

    def close(self) -> None:
        """Release sockets and threads; a second call has no effect."""
        self._open.close()

    def _apply(self, step: Step) -> None:
        match step:
            case SetRates():
                self._set_rates(step)
            case ConfigureVfs():
                self._configure_vfs(step)
            case ProgramVfs():
                self._program_vfs(step)
            case BindVf() | UnbindVf():
                self._change_driver(step)
            case GiveVf():
                self._moves.move_to_pod(step)
            case CleanVf():
                self._homes.clean(step)
            case ConfigureInterface() | ClearInterface():
                change_interface(step, self._namespaces)
            case CapInterface():
                cap_interface(step, self._namespaces)

    def _change_driver(self, step: BindVf | UnbindVf) -> None:
        if isinstance(step, BindVf):
            self._binding.bind(step)
        else:
            self._binding.unbind(step)

    def _bring_home(self, step: BringHome) -> Attributes | None:
        self._binding.end_renewal(step.vf)
        if not self._moves.bring_home(step):
            return None
        return self._homes.restore(step, self._moves.links_above(step))

    def _reset(self, vf: VfRef) -> None:
        link = self._places.at_home(vf)
        if link is None:
            msg = f"{describe(vf)}: not in the host's namespace, so it is not reset"
            raise KernelError(msg)
        operation = f"{describe(vf)}: reset"
        make_bare(link, self._queries.rtnl, operation)
        self._set_rates(SetRates(pf=vf.pf, rates=(VfRate(vf.index),), previous=(VfRate(vf.index),)))
        pf = self._pfs.pf(vf.pf)
        found = pf.vf(vf.index)
        if found is not None and (found.vlan or found.qos):
            set_vfs(self._queries.rtnl, self._pfs.index(pf), operation, [vlan(vf.index, 0)])
        self._require_unused(vf, operation)

    def _notify(self) -> None:
        with self._watching:
            for changed in self._watchers:
                changed()

    def _untold(self) -> Iterator[str]:
        if self._changes.failure is not None:
            yield f"changes are reported late, because a notification failed: {self._changes.failure!r}"

    def _set_rates(self, step: SetRates) -> None:
        if not step.rates:
            return
        pf, index = self._to_be_changed(step.pf)
        now = set_rates(
            step,
            pf,
            write=self._rate_writer(pf, index),
            read=partial(self._pfs.read_back, pf.pci, index),
            observed=present_rates(pf),
        )
        self._pfs.update(with_rates(pf, now))

    def _configure_vfs(self, step: ConfigureVfs) -> None:
        if not step.configs:
            return
        pf, index = self._to_be_changed(step.pf)
        now = configure_vfs(
            step,
            pf,
            write=partial(set_vfs, self._queries.rtnl, index, "settings"),
            read=partial(self._pfs.read_back, pf.pci, index),
        )
        self._pfs.update(now)
        self._take_guids(step)

    def _program_vfs(self, step: ProgramVfs) -> None:
        pf, index = self._to_be_changed(step.pf)
        now = program_vfs(
            step,
            pf,
            write_rates=self._rate_writer(pf, index),
            write_settings=partial(set_vfs, self._queries.rtnl, index, "settings"),
            read=partial(self._pfs.read_back, pf.pci, index),
        )
        self._pfs.update(now)
        self._take_guids(step.settings)

    def _rate_writer(self, pf: PfState, index: int) -> Callable[[Sequence[VfRate]], None]:
        return partial(write_rates, self._queries.rtnl, index, f"rates on PF {pf.pci} ({pf.name})")

    def _take_guids(self, step: ConfigureVfs) -> None:
        for config, home in zip(step.configs, step.homes, strict=False):
            if config.guid is not None:
                self._binding.take_guid(VfRef(step.pf, config.index), config.guid, home)

    def _to_be_changed(self, pci: PciAddress) -> tuple[PfState, int]:
        """Return a PF's state and the index of its netdev, and mark it as about to be changed."""
        pf = self._pfs.pf(pci)
        index = self._pfs.index(pf)
        self._pfs.changing(pf, index)
        return pf, index

    def _require_unused(self, vf: VfRef, operation: str) -> None:
        self.observe()
        state = next((vf_state for vf_state in self._pfs.pf(vf.pf).vfs if vf_state.index == vf.index), None)
        link = self._places.at_home(vf)
        if state is None or link is None:
            msg = f"{operation}: it has just disappeared"
            raise KernelError(msg)
        uses = {
            "is up": link.is_up,
            "has addresses": bool(self._queries.rtnl.addresses(link.index)),
            f"has VLAN {state.vlan}, QoS {state.qos}": bool(state.vlan or state.qos),
        }
        if any(uses.values()):
            msg = f"{operation}: it still {', '.join(use for use, holds in uses.items() if holds)}"
            raise KernelError(msg)


class KnownPfs:
    """Cache of one machine's PFs that records which of them changed since they were read."""

    def __init__(self, *, observer: Observer, queries: NetlinkQueries, changes: Changes) -> None:
        """Work with these, all of the host's namespace."""
        self._observer = observer
        self._queries = queries
        self._changes = changes
        self._pfs: dict[PciAddress, PfState] = {}
        self._stale: frozenset[int] = frozenset()
        self._all_stale = True

    def scan(self) -> Hardware:
        """Observe the hardware; VFs of PFs without a change are not queried again."""
        self._gather()
        hardware = self._observer.observe(None if self._all_stale else self._stale)
        self._stale, self._all_stale = frozenset(), False
        self._pfs = {pf.pci: pf for pf in hardware.pfs}
        return hardware

    def pf(self, pci: PciAddress) -> PfState:
        """Return the present state of a PF; KernelError when it is not among the selected ones."""
        self._gather()
        cached = self._pfs.get(pci)
        link = self._link(cached) if cached else None
        if link is None or not link.is_up or self._all_stale or link.index in self._stale:
            self.scan()  # a link that is down sends no events
            cached = self._pfs.get(pci)
        if cached is None:
            msg = f"PF {pci}: there is no such PF among those that are ours"
            raise KernelError(msg)
        return cached

    def index(self, pf: PfState) -> int:
        """Return the index of its netdev; 0, which no link has, when the netdev was renamed."""
        link = self._link(pf)
        return 0 if link is None else link.index

    def _link(self, pf: PfState) -> Link | None:
        link = self._queries.rtnl.link(pf.name)
        return link if link is not None and link.device in ("", pf.pci) else None

    def changing(self, pf: PfState, index: int) -> None:
        """Mark a PF whose VFs are about to be changed: its state is unknown until `update`.

        Not every change is reported: a driver may make one of two settings and refuse the other.
        """
        self._pfs.pop(pf.pci, None)
        self._stale |= {index}

    def update(self, pf: PfState) -> None:
        """Store the state of a PF with the settings that were read back."""
        self._pfs[pf.pci] = pf

    def read_back(self, pf: PciAddress, index: int) -> Sequence[VfInfo]:
        """Read the VFs of a PF, with all changes up to now, including those of other processes."""
        self._gather()
        infos = self._queries.vf_infos(index)
        self._observer.note_settings(pf, infos)
        self._stale -= {index}
        return infos

    def _gather(self) -> None:
        """Mark everything that changed since the last call as stale."""
        dirty = self._changes.dirty()
        self._stale |= dirty.links
        self._all_stale |= dirty.everything


@contextmanager
def _sysfs_failures() -> Iterator[None]:
    """Turn a failure to read sysfs into a KernelError."""
    try:
        yield
    except OSError as error:
        msg = f"sysfs: {error}"
        raise KernelError(msg) from error


class VfTrafficSampler:
    """Samples counters; it remembers only which namespaces took long."""

    def __init__(
        self,
        *,
        queries: NetlinkQueries,
        sysfs: Sysfs,
        namespaces: Namespaces,
        rdma: VfRdma,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Work with these, all of the host's namespace. now: in seconds."""
        self._queries = queries
        self._sysfs = sysfs
        self._namespaces = namespaces
        self._rdma = rdma
        self._now = now
        self._rests_until: dict[NetnsRef, float] = {}

    def sample(self, hardware: Hardware, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:
        """Return the counters of the VFs of this hardware, ordered; see `core.kernel.Kernel.sample`."""
        counted = dict(self._at_home(hardware))
        began_s = self._now()
        rests_until = {
            netns: self._rests_until[netns]
            for netns in holders.values()
            if self._rests_until.get(netns, began_s) > began_s
        }
        for netns in dict.fromkeys(netns for netns in holders.values() if netns not in rests_until):
            vfs = {vf: pci for vf, pci in _functions(hardware) if holders.get(vf) == netns}
            began_s = self._now()
            with suppress(KernelError):  # VFs in a namespace that cannot be looked into are left out
                counted.update(self._in(netns, vfs))
            ended_s = self._now()
            if ended_s - began_s > SLOW_S:
                rests_until[netns] = ended_s + REST_FACTOR * (ended_s - began_s)
        self._rests_until = rests_until
        for pf in hardware.pfs:
            for vf, link in self._by_pf(pf):
                counted[vf] = _Counted(link, counted[vf].rdma if vf in counted else {})
        return tuple(
            VfCounters(vf=vf, **asdict(counted[vf].link), rdma=counted[vf].rdma) for vf in sorted(counted)
        )

    def _at_home(self, hardware: Hardware) -> Iterator[tuple[VfRef, _Counted]]:
        indexes = {link.name: link.index for link in self._queries.links()}
        counters = counters_of_all(self._queries.rtnl.socket)
        for pf in hardware.pfs:
            for vf in pf.vfs:
                index = indexes.get(vf.netdev or "")
                if index in counters:
                    yield VfRef(pf.pci, vf.index), _Counted(counters[index], self._by_sysfs(vf.rdma_device))

    def _in(self, netns: NetnsRef, vfs: Mapping[VfRef, PciAddress]) -> Iterator[tuple[VfRef, _Counted]]:
        with self._namespaces.opened(netns) as namespace:
            if namespace is None:
                return
            with Rtnl(namespace) as pod_rtnl:
                netdevs = netdevs_by_device(pod_rtnl, namespace)
                counters = counters_of_all(pod_rtnl.socket)
            for vf, pci in vfs.items():
                link = netdevs.get(pci)
                if link is not None and link.index in counters:
                    rdma = self._rdma.counters(pci, link.index, namespace)
                    yield vf, _Counted(counters[link.index], rdma)

    def _by_pf(self, pf: PfState) -> Iterator[tuple[VfRef, LinkCounters]]:
        """Yield the PF's counters, if the driver counts and can report all VFs."""
        link = self._queries.rtnl.link(pf.name)
        try:
            stats = self._queries.vf_stats(link.index) if link else ()
        except KernelError:
            return
        if any(vf.rx_packets or vf.tx_packets for vf in stats):
            for vf in stats:
                yield (
                    VfRef(pf.pci, vf.index),
                    LinkCounters(
                        tx_bytes=vf.tx_bytes,
                        rx_bytes=vf.rx_bytes,
                        tx_packets=vf.tx_packets,
                        rx_packets=vf.rx_packets,
                        tx_dropped=vf.tx_dropped,
                        rx_dropped=vf.rx_dropped,
                    ),
                )

    def _by_sysfs(self, rdma_device: str | None) -> dict[str, int]:
        """Return the `hw_counters` of a device's first port."""
        directory = f"class/infiniband/{rdma_device}/ports/1/hw_counters"
        names = self._sysfs.names_if_any(directory) if rdma_device else None
        values = {}
        for name in sorted(names or ()):
            with suppress(OSError):  # one that holds no number is left out
                values[name] = self._sysfs.number(f"{directory}/{name}")
        return {name: value for name, value in values.items() if value is not None and name != _LIFESPAN}


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counters of a VF's netdev and RDMA device."""

    link: LinkCounters
    rdma: Mapping[str, int] = field(default_factory=dict)


def _functions(hardware: Hardware) -> Iterator[tuple[VfRef, PciAddress]]:
    for pf in hardware.pfs:
        for vf in pf.vfs:
            yield VfRef(pf.pci, vf.index), vf.pci
