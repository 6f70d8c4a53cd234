"""Hardware and ledger as a `NodeReport`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from k8s_rdma.core.allocation import foreign_vfs, mbps_by_claims, use_by_foreign, used_beside
from k8s_rdma.core.inventory import Generation, Gpu
from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Phase, Receipt
from k8s_rdma.core.losses import (
    holds_its_rates,
    lost_caps,
    lost_interfaces,
    lost_rates,
    lost_with_pfs,
    unkept_reservations,
)
from k8s_rdma.core.macs import macs_of
from k8s_rdma.core.mention import pod_mention
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import Enforcer, NodeName, PodUid, enforcer_of
from k8s_rdma.wire.annotation import format_options
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    GpuReport,
    Interface,
    MacRange,
    MentionedPod,
    NodeReport,
    PfReport,
    RatesRefusal,
    ReportedPod,
    VfReport,
    rates_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.kernel import Hardware, PfState, Vf


_Source = TypeVar("_Source")
_Part = TypeVar("_Part")

Refusals: TypeAlias = "Mapping[PodUid, RatesRefusal]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unenforced:
    """The rates that are not in force.

    caps: those that software keeps and that did not hold at the last check, with the reason in a clause.
    refusals: the changes of running pods' rates that are not made.
    """

    caps: Mapping[VfRef, str] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=dict)


ALL_ENFORCED = Unenforced()


class PfSource(NamedTuple):
    """All that a PF's part of a report is made of.

    pf: the PF as placement sees it, if it does. allocated: by the VF's index. attached: each interface with
    its pod, of attachments that are complete. caps_lost: as in `Unenforced`.
    """

    state: PfState
    pf: Pf | None
    used: Used
    foreign: tuple[ForeignVf, ...]
    allocated: Mapping[int, AllocatedInterface]
    attached: tuple[tuple[str, AllocatedInterface], ...]
    caps_lost: Mapping[VfRef, str]


class AllocationSource(NamedTuple):
    """All that an allocation's part of a report is made of. enforced: of each interface."""

    receipt: Receipt
    enforced: tuple[Enforced, ...]
    refused: RatesRefusal | None


class KeptParts(Generic[_Source, _Part]):
    """Parts of a report; one is made anew only if its source is another one than in the last report.

    A pod's beginning or end changes one PF and one allocation, and to make all takes the agent as long as to
    move a VF.
    """

    def __init__(self, make: Callable[[_Source], _Part]) -> None:
        """make: returns the part of a source."""
        self._make = make
        self._parts: dict[Hashable, tuple[_Source, _Part]] = {}

    def make_parts(self, sources: Mapping[Hashable, _Source]) -> tuple[_Part, ...]:
        """Return the parts of these sources, in their order; others are forgotten."""
        last = self._parts
        self._parts = {
            key: found
            if (found := last.get(key)) is not None and found[0] == source
            else (source, self._make(source))
            for key, source in sources.items()
        }
        return tuple(part for _, part in self._parts.values())


class ReportParts:
    """The parts of an observer's last report."""

    def __init__(self) -> None:
        """Keep none yet."""
        self.pfs = KeptParts(_pf)
        self.allocations = KeptParts(_allocation)


class NodeReports:
    """The reports of one observer; a generation is one content: only another content makes a new one."""

    def __init__(
        self, node: NodeName, epoch: str, agent_version: str = "", *, takes_placements: bool = False
    ) -> None:
        """epoch: another one for each observer that ever was. agent_version: of an agent that observes.

        takes_placements: as in `NodeReport`.
        """
        self._node = node
        self._agent_version, self._takes_placements = agent_version, takes_placements
        self._epoch = epoch
        self._counter = 0
        self._parts = ReportParts()
        self._last_report: NodeReport | None = None
        self._last_state: tuple[object, ...] = ()

    def build(
        self,
        hardware: Hardware,
        ledger: Ledger,
        unenforced: Unenforced = ALL_ENFORCED,
        problems: tuple[str, ...] = (),
        gpus: Iterable[Gpu] = (),
    ) -> NodeReport:
        """Return the report of this state; the very same object as before for the same state.

        problems: of the observer itself, one sentence each.
        gpus: that kubelet gives pods.
        """
        state = (hardware, ledger, unenforced, problems, tuple(gpus))
        if self._last_report is None or state != self._last_state:
            self._last_report = self._next(*state)
            self._last_state = state
        return self._last_report

    def _next(
        self,
        hardware: Hardware,
        ledger: Ledger,
        unenforced: Unenforced,
        problems: tuple[str, ...],
        gpus: tuple[Gpu, ...],
    ) -> NodeReport:
        """Make the report of a state; the last one if both have the same content."""
        report = node_report(
            node=self._node,
            generation=Generation(self._epoch, self._counter),
            hardware=hardware,
            ledger=ledger,
            unenforced=unenforced,
            parts=self._parts,
        )
        report = replace(
            report,
            agent_version=self._agent_version,
            takes_placements=self._takes_placements,
            problems=(*problems, *report.problems),
            gpus=tuple(map(_gpu, gpus)),
        )
        report = replace(report, mentions=tuple(_mentions(report, ledger)))
        if report == self._last_report:
            return self._last_report
        self._counter += 1
        return replace(report, generation=str(Generation(self._epoch, self._counter)))


def node_report(  # noqa: PLR0913 - what a report is made of
    *,
    node: NodeName,
    generation: Generation,
    hardware: Hardware,
    ledger: Ledger,
    unenforced: Unenforced = ALL_ENFORCED,
    parts: ReportParts | None = None,
) -> NodeReport:
    """Make the report of a node's hardware and its holders. parts: those of the report before, if any."""
    parts = parts or ReportParts()
    attached = _attached(ledger)
    return NodeReport(
        node=node,
        generation=str(generation),
        ledger="ok",
        pfs=parts.pfs.make_parts(_pf_sources(hardware, ledger, attached, unenforced.caps)),
        allocations=parts.allocations.make_parts(_allocation_sources(hardware, ledger, unenforced)),
        unreadable=tuple(f"{item.subject}: {item.why}" for item in hardware.unreadable),
        problems=(*hardware.problems, *lost_with_pfs(hardware, attached)),
        macs=tuple(map(_mac_range, macs_of(hardware, ledger))),
    )


def _pf_sources(
    hardware: Hardware,
    ledger: Ledger,
    attached: Iterable[tuple[str, AllocatedInterface]],
    caps_lost: Mapping[VfRef, str],
) -> dict[Hashable, PfSource]:
    found, inventory = foreign_vfs(hardware, ledger), hardware.inventory(NodeName(""))
    foreign: dict[str, list[ForeignVf]] = {}
    for vf in found:
        entry = ForeignVf(
            vf=vf.vf.index,
            why=vf.why,
            min_tx_rate=vf.min_tx_rate_mbps,
            max_tx_rate=vf.max_tx_rate_mbps,
            pool=vf.pool,
        )
        foreign.setdefault(vf.vf.pf, []).append(entry)
    by_pf: dict[str, list[tuple[str, AllocatedInterface]]] = {}
    for pod, interface in attached:
        by_pf.setdefault(interface.vf.pf, []).append((pod, interface))
    allocated = ledger.interfaces_by_pf()
    used = used_beside(use_by_foreign(hardware, found), ledger, inventory)
    return {
        pf.pci: PfSource(
            state=pf,
            pf=inventory.pf(pf.pci),
            used=used.get(pf.pci, NOTHING_USED),
            foreign=tuple(foreign.get(pf.pci, ())),
            allocated=allocated.get(pf.pci, {}),
            attached=tuple(by_pf.get(pf.pci, ())),
            caps_lost={vf: why for vf, why in caps_lost.items() if vf.pf == pf.pci},
        )
        for pf in hardware.pfs
    }


def _allocation_sources(
    hardware: Hardware, ledger: Ledger, unenforced: Unenforced
) -> dict[Hashable, AllocationSource]:
    return {
        attachment: AllocationSource(
            receipt=receipt,
            enforced=tuple(
                enforced_rates(
                    interface, hardware.pf(interface.vf.pf), cap_lost=interface.vf in unenforced.caps
                )
                for interface in receipt.interfaces
            ),
            refused=unenforced.refusals.get(receipt.pod.uid),
        )
        for attachment, receipt in ledger.receipts.items()
        if receipt.interfaces
    }


def _mentions(report: NodeReport, ledger: Ledger) -> Iterator[MentionedPod]:
    """Find the pods that problems name: each is one of the ledger's."""
    problems = "\n".join((*report.problems, *(why for pf in report.pfs for why in pf.problems)))
    if not problems:
        return
    attached = {(receipt.pod.namespace, receipt.pod.name) for receipt in ledger.receipts.values()}
    prepared = {(claim.pod.namespace, claim.pod.name) for claim in ledger.claims.values()}
    for namespace, name in sorted(attached | prepared):
        if pod_mention(namespace, name).text in problems:
            yield MentionedPod(namespace=namespace, name=name)


def _mac_range(found: tuple[int, int]) -> MacRange:
    first, last = found
    return MacRange(first=first.to_bytes(6).hex(":"), number=last - first + 1)


def _attached(ledger: Ledger) -> list[tuple[str, AllocatedInterface]]:
    return [
        (receipt.pod.full_name, interface)
        for receipt in ledger.receipts.values()
        if receipt.phase is Phase.ATTACHED
        for interface in receipt.interfaces
    ]


def _problems(source: PfSource) -> Iterator[str]:
    """Find the reservations on a PF that do not hold now."""
    state, attached = source.state, source.attached
    if source.pf is not None:
        yield from unkept_reservations(source.pf, source.used)
    yield from lost_interfaces(state, attached)
    yield from lost_rates(state, attached)
    yield from lost_caps(state, attached, source.caps_lost)


def _pf(source: PfSource) -> PfReport:
    pf = source.state
    return PfReport(
        name=pf.name,
        pci=pf.pci,
        driver=pf.driver,
        capacity_vfs=sum(not vf.pool for vf in pf.vfs),
        link_mbps=pf.link_mbps,
        mtu=pf.mtu,
        link_type=pf.link_type,
        rdma_device=pf.rdma_device,
        vendor=pf.vendor,
        firmware=pf.firmware,
        numa_node=pf.numa_node,
        pcie_path=tuple(pf.pcie_path),
        switchdev=pf.switchdev,
        rates=rates_of(pf.rates),
        enforce=pf.enforce,
        takes=tuple(sorted(pf.requestable_settings)),
        problems=(*pf.problems, *pf.failures, *_problems(source)),
        foreign=source.foreign,
        pools=pf.pools(),
        claims_mbps=None if pf.claims_mbps is None else max(pf.claims_mbps, mbps_by_claims(source.used)),
        vfs=tuple(_vf(vf, source.allocated.get(vf.index)) for vf in pf.vfs),
    )


def _gpu(gpu: Gpu) -> GpuReport:
    return GpuReport(
        resource=gpu.resource,
        pci=gpu.pci,
        pcie_path=tuple(gpu.pcie_path),
        numa_node=gpu.numa_node,
        in_use=gpu.in_use,
        devices=gpu.devices,
    )


def _vf(vf: Vf, interface: AllocatedInterface | None) -> VfReport:
    """Return a VF; MAC and rates of one in a pod are those that the pod was given, not its changes.

    A VF of an exclusive resource or for claims is as good as allocated for readers of `/getpfs`.
    """
    return VfReport(
        vf=vf.index,
        mac=interface.mac if interface else vf.mac,
        vlan=vf.vlan,
        qos=vf.qos,
        vlan_proto=vf.vlan_proto,
        spoof_check=vf.spoof_check,
        trust=vf.trust,
        link_state=vf.link_state,
        min_tx_rate=interface.min_tx_rate_mbps if interface else vf.min_tx_rate_mbps,
        max_tx_rate=interface.max_tx_rate_mbps if interface else vf.max_tx_rate_mbps,
        vgt_plus=vf.vgt_plus,
        rate_group=vf.rate_group,
        allocated=interface is not None or vf.netdev is None or bool(vf.pool),
    )


def _allocation(source: AllocationSource) -> Allocation:
    receipt = source.receipt
    return Allocation(
        pod=ReportedPod(namespace=receipt.pod.namespace, name=receipt.pod.name, uid=receipt.pod.uid),
        container_id=receipt.attachment.container,
        phase=receipt.phase,
        interfaces=tuple(map(_interface, receipt.interfaces, source.enforced)),
        slots=tuple(slot.device for slot in receipt.slots),
        generation=receipt.generation,
        refused=source.refused,
    )


def _interface(interface: AllocatedInterface, enforced: Enforced) -> Interface:
    rate = interface.rate()
    return Interface(
        pf=interface.vf.pf,
        vf=interface.vf.index,
        ifname=interface.ifname,
        mac=interface.mac,
        min_tx_rate=interface.min_tx_rate_mbps,
        max_tx_rate=interface.max_tx_rate_mbps,
        set_min_tx_rate=rate.min_tx_rate_mbps,
        set_max_tx_rate=rate.max_tx_rate_mbps,
        enforced=enforced,
        entry=interface.entry,
        pci=interface.pci,
        rdma_device=interface.rdma_device,
        pool=interface.pool,
        driver=interface.options.driver,
        options=format_options(interface.options),
        software_max_tx_rate=interface.software_max_tx_rate_mbps,
    )


def enforced_rates(interface: AllocatedInterface, pf: PfState | None, *, cap_lost: bool) -> Enforced:
    """Return the enforcement as programmed, while the PF still has it; a cap also by a link no faster.

    A PF that takes no minima any more enforces no minimum, for example beside groups of VFs that somebody
    made. A cap that software keeps counts until a scan finds it lost.
    """
    rate, cap = interface.rate(), interface.max_tx_rate_mbps
    programmed = pf is not None and holds_its_rates(pf, interface)
    takes_minima = pf is not None and pf.rates.min is not None
    by_link = pf is not None and pf.link_mbps is not None and pf.link_mbps <= cap
    by_software = interface.software_max_tx_rate_mbps > 0 and not cap_lost
    return Enforced(
        min=_enforcer(
            interface.min_tx_rate_mbps, pf, holds=programmed and takes_minima and rate.min_tx_rate_mbps > 0
        ),
        max="software"
        if by_software
        else _enforcer(cap, pf, holds=by_link or (programmed and rate.max_tx_rate_mbps > 0)),
    )


def _enforcer(rate_mbps: int, pf: PfState | None, *, holds: bool) -> Enforcer | None:
    if not rate_mbps:
        return None
    return enforcer_of(pf.driver) if pf is not None and holds else "accounted"
