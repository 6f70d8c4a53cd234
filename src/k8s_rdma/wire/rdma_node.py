"""`RdmaNode` of `k8s-rdma.io/v1alpha1`: what `/v1/node` tells, in the API server, as small as can be.

One object a node, of the node's name. Everything that is decided of a node is decided of this status,
also where its report came over HTTP, so that the two sources cannot disagree.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire import report as bounds
from k8s_rdma.wire.json import decode_large
from k8s_rdma.wire.report import (
    Entry,
    Generation,
    GpuReport,
    Label,
    MacRange,
    Mbps,
    MentionedPod,
    Message,
    Mtu,
    Name,
    NodeReport,
    NumaNode,
    Pci,
    PfRates,
    PfReport,
    Problem,
    RatesGeneration,
    RatesRefusal,
    ReportedPod,
    Resource,
    SomeVfs,
    Vfs,
    held_vfs,
    published_rates,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


GROUP, VERSION, PLURAL, KIND = "k8s-rdma.io", "v1alpha1", "rdmanodes", "RdmaNode"
LIST_PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"

_MOST_PROBLEMS = 5
_MOST_OF_PROBLEM = 300
_MOST_OF_MESSAGE = 1024

_LABEL = re.compile(bounds.LABEL)
_Bridge: TypeAlias = Annotated[str, Meta(max_length=16, pattern=bounds.PCI)]
PciePath: TypeAlias = Annotated[tuple[_Bridge, ...], Meta(max_length=bounds.MAX_BRIDGES)]
"""PCI bridges and switches from the root port down."""

_Kind: TypeAlias = tuple[str, str, int, int]
"""The kind of a held interface: PF, pool, minimum and maximum rate."""

_PfUse: TypeAlias = tuple[str, bool]
"""A PF, and whether its VFs for ResourceClaims are meant or the others."""

_Macs: TypeAlias = Annotated[tuple[MacRange, ...], Meta(max_length=bounds.MAX_MACS)]

_SUBJECT = "RdmaNode status"
_encoder = msgspec.json.Encoder()


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """VFs that someone else holds or rated, alike in their minimum rate in Mb/s, and of one pool.

    pool: the exclusive resource that they belong to; absent for those that pods ask for by annotation.
    """

    vfs: SomeVfs = 1
    min_mbps: Mbps = 0
    pool: Resource = ""


class PoolVfs(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a PF's VFs in an exclusive device-plugin resource."""

    resource: Resource
    vfs: Vfs


_Pools: TypeAlias = Annotated[tuple[PoolVfs, ...], Meta(max_length=bounds.MAX_POOLS)]


class ClaimsStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The bandwidth of a PF that is for ResourceClaims, Mb/s.

    mbps: what they may reserve together; absent while the link speed is not known. reserved_mbps: what the
    VFs that pods or others have of it reserve.
    """

    mbps: Mbps | None = None
    reserved_mbps: Annotated[int, Meta(ge=0, le=bounds.MAX_VFS * MAX_RATE_MBPS)]


class PfStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A PF; as in `/v1/node`, link speed in Mb/s and MTU in bytes, absent where they are not known.

    capacity_vfs: for pods that ask by annotation. pools: those of exclusive resources.
    link_mbps: where the PF is split, less the part for ResourceClaims, whose VFs reserve nothing of the rest.
    claims: of a PF that has VFs for them; absent in objects of agents that do not tell.
    """

    name: Label
    pci: Pci
    driver: Label = ""
    vendor: Label = ""
    numa_node: NumaNode | None = None
    pcie_path: PciePath = ()
    link_mbps: Mbps | None = None
    link_type: Label = "ethernet"
    mtu: Mtu = 0
    capacity_vfs: Vfs = 0
    pools: _Pools = ()
    claims: ClaimsStatus | None = None
    rates: PfRates
    enforce: Label = "auto"
    takes: Annotated[tuple[Label, ...], Meta(max_length=bounds.MAX_SETTINGS)] = ()
    foreign: Annotated[tuple[ForeignUse, ...], Meta(max_length=bounds.MAX_VFS)] = ()
    problems: Annotated[tuple[Problem, ...], Meta(max_length=bounds.MAX_PROBLEMS)] = ()


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A GPU that kubelet gives pods; as in `/v1/node`."""

    resource: Resource
    pci: Pci
    pcie_path: PciePath = ()
    numa_node: NumaNode | None = None
    in_use: bool = False
    devices: Annotated[int, Meta(ge=1, le=bounds.MAX_GPU_DEVICES)] = 1


class HeldInterfaces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Interfaces of one pod on one PF that are alike; rates in Mb/s.

    min_mbps: what counts as reserved: the minimum rate that was asked for, or that is programmed if that is
        more. entries: their places in the pod's request, of those for which the agent knows it.
    pool: as in `ForeignUse`.
    """

    pf: Pci
    vfs: SomeVfs = 1
    min_mbps: Mbps = 0
    max_mbps: Mbps = 0
    entries: Annotated[tuple[Entry, ...], Meta(max_length=bounds.MAX_VFS)] = ()
    pool: Resource = ""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by name and UID."""

    namespace: Name
    name: Name
    uid: Name


class PodAllocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The interfaces of a pod on the node, in all of its sandboxes.

    generation: of its placement, whose rates they all have; absent while they have those of the first.
    refused: the later generation that the node has not programmed, as in `/v1/node`.
    """

    pod: Holder
    interfaces: Annotated[tuple[HeldInterfaces, ...], Meta(max_length=bounds.MAX_VFS)]
    generation: RatesGeneration = 0
    refused: RatesRefusal | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A condition as in Kubernetes' API conventions, with a heartbeat as those of nodes have."""

    type: Name
    status: Literal["True", "False", "Unknown"]
    reason: Name
    message: Message
    last_transition_time: Label = ""
    last_heartbeat_time: Label = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The columns of kubectl: the number of PFs, and their free and whole capacity.

    vfs, bandwidth: for pods that ask by annotation. devices: VFs of exclusive resources; absent where there
    are none. claims: VFs and bandwidth of PFs for ResourceClaims, less what pods have; absent likewise.
    """

    pfs: Annotated[int, Meta(ge=0, le=bounds.MAX_PFS)]
    vfs: Label
    bandwidth: Label
    devices: Label = ""
    claims: Label = ""


class RdmaNodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's RDMA hardware and who holds it, at one generation of its report.

    macs: of its PFs and VFs, and those that VFs have in pods; none of an older agent.
    gpus: that kubelet gives pods; none if the agent does not know them.
    mentions: the pods that problems name, as in `/v1/node`.
    """

    generation: Generation
    summary: Summary
    pfs: Annotated[tuple[PfStatus, ...], Meta(max_length=bounds.MAX_PFS)] = ()
    allocations: Annotated[tuple[PodAllocation, ...], Meta(max_length=bounds.MAX_PODS)] = ()
    macs: _Macs = ()
    gpus: Annotated[tuple[GpuStatus, ...], Meta(max_length=bounds.MAX_GPUS)] = ()
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=bounds.MAX_CONDITIONS)] = ()
    problems: Annotated[tuple[Problem, ...], Meta(max_length=bounds.MAX_PROBLEMS)] = ()
    mentions: Annotated[tuple[MentionedPod, ...], Meta(max_length=bounds.MAX_PODS)] = ()

    def ready(self) -> Condition | None:
        """Return the condition that says whether the rest may be relied upon; None if there is none."""
        return next((condition for condition in self.conditions if condition.type == "Ready"), None)

    def unready_reason(self) -> str:
        """Describe why nothing may be concluded from the status; empty if it may be relied upon."""
        ready = self.ready()
        if ready is None:
            return "it does not say whether its agent serves"
        return "" if ready.status == "True" else ready.message


_decoder = msgspec.json.Decoder(RdmaNodeStatus)


def encode_status(status: RdmaNodeStatus) -> bytes:
    """Encode the status."""
    return _encoder.encode(status)


def decode_status(data: bytes | msgspec.Raw) -> RdmaNodeStatus:
    """Parse a status; unknown fields are tolerated (a newer agent), wrong ones are MalformedError.

    So is a status beyond `report_bounds`, and one with duplicates: of two claims of a pod one would be lost.
    """
    status = decode_large(data, _decoder, _SUBJECT)
    for why in contradictions(status):
        msg = f"{_SUBJECT}: {why}"
        raise MalformedError(msg)
    return status


def read_status(rdma_node: Mapping[str, Any]) -> RdmaNodeStatus:
    """Read the status of an `RdmaNode` that is there as plain values; as `decode_status`."""
    return decode_status(msgspec.json.encode(rdma_node.get("status") or {}))


def contradictions(status: RdmaNodeStatus) -> Iterator[str]:
    """Find contradictions that no schema excludes, or one that the API server lacks."""
    yield from _twice("pfs[].pci", [pf.pci for pf in status.pfs])
    for pf in status.pfs:
        yield from _twice(f"pools[].resource of PF {pf.pci}", [pool.resource for pool in pf.pools])
    yield from _twice("gpus[].pci", [f"{gpu.resource} {gpu.pci}" for gpu in status.gpus])
    yield from _twice("allocations[].pod.uid", [allocation.pod.uid for allocation in status.allocations])
    number = sum([use.vfs for pf in status.pfs for use in pf.foreign])
    number += sum([alike.vfs for allocation in status.allocations for alike in allocation.interfaces])
    if number > bounds.MAX_HELD_VFS:
        yield f"it tells of {number} VFs that are held, which is more than {bounds.MAX_HELD_VFS}"
    if why := _excess_macs(status):
        yield why


class _PfVfs(msgspec.Struct, frozen=True, rename="camel"):
    capacity_vfs: Vfs = 0
    pools: _Pools = ()


class _MacsStatus(msgspec.Struct, frozen=True):
    """The part of a status that says its MACs, and how many there may be."""

    pfs: Annotated[tuple[_PfVfs, ...], Meta(max_length=bounds.MAX_PFS)] = ()
    macs: _Macs = ()


_macs_decoder = msgspec.json.Decoder(_MacsStatus)


def decode_macs(status: bytes) -> tuple[MacRange, ...]:
    """Parse the MACs of a status alone, to look for one among all nodes.

    MalformedError as of `decode_status`, but for the rest of the status.
    """
    if not status:
        return ()
    found = decode_large(status, _macs_decoder, _SUBJECT)
    if why := _excess_macs(found):
        msg = f"{_SUBJECT}: {why}"
        raise MalformedError(msg)
    return found.macs


def _excess_macs(status: RdmaNodeStatus | _MacsStatus) -> str:
    """Describe why a node cannot have these MACs; empty if it can."""
    macs, max_macs = sum(found.number for found in status.macs), sum(map(_most_macs, status.pfs))
    if macs > max_macs:
        return f"macs: {macs} of them, and its PFs and VFs have {max_macs} at most"
    beyond = [found.first for found in status.macs if not _is_within_macs(found)]
    return f"macs: those from {beyond[0]} on go beyond the last there is" if beyond else ""


def _most_macs(pf: PfStatus | _PfVfs) -> int:
    """The most MACs of a PF: its own, and of each VF one on the host and one in a pod."""
    return 1 + 2 * (pf.capacity_vfs + sum(pool.vfs for pool in pf.pools))


def _is_within_macs(macs: MacRange) -> bool:
    return int(macs.first.replace(":", ""), 16) + macs.number <= 1 << 48


def _twice(field: str, values: Sequence[str]) -> Iterator[str]:
    if len(set(values)) < len(values):
        found = Counter(values).items()
        yield from (f"{field}: {value} is there twice" for value, times in found if times > 1)


def status_of(report: NodeReport) -> RdmaNodeStatus:
    """The status that says the same as the report; its condition without a time.

    Of a report that goes beyond `report_bounds` it says that alone, and is not ready.
    """
    reserved = _reserved(report)
    pfs = tuple(_pf(pf, reserved) for pf in report.pfs)
    allocations = _allocations(report)
    status = RdmaNodeStatus(
        generation=report.generation,
        summary=_summary(pfs, allocations),
        pfs=pfs,
        allocations=allocations,
        macs=report.macs,
        gpus=tuple(map(_gpu, report.gpus)),
        conditions=(_ready(report),),
        problems=_truncated(report.problems),
        mentions=report.mentions,
    )
    try:
        return decode_status(encode_status(status))
    except MalformedError as error:
        return _beyond_bounds(report, error.message)


def _beyond_bounds(report: NodeReport, why: str) -> RdmaNodeStatus:
    why = _clipped(f"its report goes beyond what is read of a node: {why}", _MOST_OF_MESSAGE)
    return RdmaNodeStatus(
        generation=report.generation,
        summary=_summary((), ()),
        conditions=(Condition(type="Ready", status="False", reason="BeyondBounds", message=why),),
    )


class InUse(NamedTuple):
    """The use of PFs by pods and others, as far as the node says.

    vfs: by PF and pool, which is empty for those that pods request by annotation. mbps: what VFs reserve of
        each PF's `link_mbps`.
    """

    vfs: Counter[tuple[str, str]]
    mbps: Counter[str]


def in_use(pfs: Iterable[PfStatus], allocations: Iterable[PodAllocation] = ()) -> InUse:
    """Add up the use of PFs."""
    vfs: Counter[tuple[str, str]] = Counter()
    mbps: Counter[str] = Counter()
    uses: list[tuple[str, ForeignUse | HeldInterfaces]] = [(pf.pci, use) for pf in pfs for use in pf.foreign]
    uses += [(alike.pf, alike) for allocation in allocations for alike in allocation.interfaces]
    for pci, alike in uses:
        place = pci, alike.pool
        vfs[place] += alike.vfs
        mbps[pci] += alike.vfs * alike.min_mbps
    return InUse(vfs, mbps)


def vfs_for_pods(status: RdmaNodeStatus) -> int:
    """Return the number of VFs that pods can have by annotation: all but those that are foreign."""
    foreign, _ = in_use(status.pfs)
    return sum(max(0, pf.capacity_vfs - foreign[pf.pci, ""]) for pf in status.pfs)


def _for_annotations(pf: PfReport, pool: str, mbps: int) -> int:
    """The reservation of a VF as far as it is on what annotations have of the link."""
    return 0 if pool == CLAIMS_POOL and pf.claims_mbps is not None else mbps


def _reserved(report: NodeReport) -> Counter[_PfUse]:
    """Add up what VFs reserve of each PF, Mb/s, those for claims apart."""
    reserved: Counter[_PfUse] = Counter()
    for pci, pool, mbps in held_vfs(report):
        reserved[pci, pool == CLAIMS_POOL] += mbps
    return reserved


def _claims(pf: PfReport, reserved: Mapping[_PfUse, int]) -> ClaimsStatus | None:
    """The part of a PF that is for claims, or all that others leave of it; None if it has none."""
    if pf.claims_mbps is None and CLAIMS_POOL not in pf.pools:
        return None
    mbps = None
    if pf.link_mbps is not None:
        unreserved = pf.link_mbps - reserved[pf.pci, False]
        mbps = max(0, unreserved if pf.claims_mbps is None else min(pf.claims_mbps, unreserved))
    return ClaimsStatus(mbps=mbps, reserved_mbps=reserved[pf.pci, True])


def _pf(pf: PfReport, reserved: Mapping[_PfUse, int]) -> PfStatus:
    foreign = Counter((vf.pool, _for_annotations(pf, vf.pool, vf.min_tx_rate)) for vf in pf.foreign)
    return PfStatus(
        name=_label(pf.name),
        pci=pf.pci,
        driver=_label(pf.driver),
        vendor=_label(pf.vendor),
        numa_node=pf.numa_node,
        pcie_path=pf.pcie_path,
        link_mbps=None if pf.link_mbps is None else max(0, pf.link_mbps - (pf.claims_mbps or 0)),
        link_type=pf.link_type,
        mtu=pf.mtu,
        capacity_vfs=pf.capacity_vfs,
        pools=tuple(PoolVfs(resource=resource, vfs=vfs) for resource, vfs in sorted(pf.pools.items())),
        claims=_claims(pf, reserved),
        rates=published_rates(pf.rates),
        enforce=pf.enforce,
        takes=pf.takes,
        foreign=tuple(
            ForeignUse(vfs=vfs, min_mbps=rate, pool=pool) for (pool, rate), vfs in sorted(foreign.items())
        ),
        problems=_truncated(pf.problems),
    )


def _gpu(gpu: GpuReport) -> GpuStatus:
    return GpuStatus(
        resource=gpu.resource,
        pci=gpu.pci,
        pcie_path=gpu.pcie_path,
        numa_node=gpu.numa_node,
        in_use=gpu.in_use,
        devices=gpu.devices,
    )


def _allocations(report: NodeReport) -> tuple[PodAllocation, ...]:
    """Group allocations by pod; pods with only their ordinary interface are left out."""
    pfs = {pf.pci: pf for pf in report.pfs}
    pods: dict[str, ReportedPod] = {}
    generations: dict[str, int] = {}
    refusals = {allocation.pod.uid: allocation.refused for allocation in report.allocations}
    alike: dict[str, dict[_Kind, list[int | None]]] = {}
    for allocation in report.allocations:
        if not allocation.interfaces:
            continue
        uid = pods.setdefault(allocation.pod.uid, allocation.pod).uid
        generations[uid] = min(generations.get(uid, allocation.generation), allocation.generation)
        kinds = alike.setdefault(uid, {})
        for interface in allocation.interfaces:
            reserved, pf = interface.reserved_mbps, pfs.get(interface.pf)
            if pf is not None:
                reserved = _for_annotations(pf, interface.pool, reserved)
            kind = (interface.pf, interface.pool, reserved, interface.max_tx_rate)
            kinds.setdefault(kind, []).append(interface.entry)
    return tuple(
        PodAllocation(
            pod=Holder(namespace=pod.namespace, name=pod.name, uid=uid),
            interfaces=tuple(_interfaces(kind, entries) for kind, entries in alike[uid].items()),
            generation=generations[uid],
            refused=refusals[uid],
        )
        for uid, pod in pods.items()
    )


def _interfaces(kind: _Kind, entries: Sequence[int | None]) -> HeldInterfaces:
    pf, pool, min_mbps, max_mbps = kind
    annotated = tuple(sorted({entry for entry in entries if entry is not None}))
    return HeldInterfaces(
        pf=pf, vfs=len(entries), min_mbps=min_mbps, max_mbps=max_mbps, entries=annotated, pool=pool
    )


def _summary(pfs: Sequence[PfStatus], allocations: Sequence[PodAllocation]) -> Summary:
    """Sum up what is free by the report alone, without what pods were promised and do not hold yet."""
    vfs, mbps = in_use(pfs, allocations)
    free_vfs = _free(pf.capacity_vfs - vfs[pf.pci, ""] for pf in pfs)
    by_annotation = [pf for pf in pfs if not _is_for_claims(pf)]
    claims_vfs = _devices(pfs, vfs, of_claims=True)
    parts = [(pf.claims.mbps or 0, pf.claims.reserved_mbps) for pf in pfs if pf.claims]
    claims_mbps = _gbps_of(_free(mbps - reserved for mbps, reserved in parts), sum(mbps for mbps, _ in parts))
    return Summary(
        pfs=len(pfs),
        vfs=f"{free_vfs}/{sum(pf.capacity_vfs for pf in pfs)}",
        bandwidth=_bandwidth(by_annotation, mbps),
        devices=_devices(pfs, vfs, of_claims=False),
        claims=f"{claims_vfs} VFs {claims_mbps}" if claims_vfs else "",
    )


def _is_for_claims(pf: PfStatus) -> bool:
    return not pf.capacity_vfs and {pool.resource for pool in pf.pools} == {CLAIMS_POOL}


def _bandwidth(pfs: Sequence[PfStatus], in_use_mbps: Mapping[str, int]) -> str:
    free_mbps = _free((pf.link_mbps or 0) - in_use_mbps[pf.pci] for pf in pfs)
    return _gbps_of(free_mbps, sum(pf.link_mbps or 0 for pf in pfs))


def _gbps_of(free_mbps: int, all_mbps: int) -> str:
    return f"{_gbps(free_mbps)}/{_gbps(all_mbps)}Gb/s"


def _devices(pfs: Sequence[PfStatus], vfs: Mapping[tuple[str, str], int], *, of_claims: bool) -> str:
    """Return VFs in pools, free and all: in that of claims, or in those of exclusive resources.

    vfs: those in use, by PF and pool.
    """

    def counts(pool: str) -> bool:
        return bool(pool) and (pool == CLAIMS_POOL) is of_claims

    devices = sum(pool.vfs for pf in pfs for pool in pf.pools if counts(pool.resource))
    if not devices:
        return ""
    in_use_vfs = sum(number for (_, pool), number in vfs.items() if counts(pool))
    return f"{max(0, devices - in_use_vfs)}/{devices}"


def _free(amounts: Iterable[int]) -> int:
    return sum(max(0, amount) for amount in amounts)


def _gbps(mbps: int) -> str:
    return f"{mbps / 1000:.3f}".rstrip("0").rstrip(".")


def _ready(report: NodeReport) -> Condition:
    if report.ledger != "ok":
        why = "its agent is down, so that what it has allocated is not known"
        return Condition(type="Ready", status="False", reason="LedgerUnavailable", message=why)
    if report.unreadable:
        why = f"not all of its hardware could be looked at: {'; '.join(report.unreadable)}"
        why = _clipped(why, _MOST_OF_MESSAGE)
        return Condition(type="Ready", status="False", reason="HardwareUnreadable", message=why)
    if report.problems:
        why = _clipped(
            f"its agent serves, and reports problems: {'; '.join(report.problems)}", _MOST_OF_MESSAGE
        )
        return Condition(type="Ready", status="True", reason="ProblemsReported", message=why)
    why = "its agent serves, and sees all of its hardware"
    return Condition(type="Ready", status="True", reason="AgentServes", message=why)


def _truncated(problems: Sequence[str]) -> tuple[str, ...]:
    """The first of them: the object must stay small, and `/v1/node` tells them all."""
    shown = tuple(_clipped_at_word(problem, _MOST_OF_PROBLEM) for problem in problems[:_MOST_PROBLEMS])
    omitted = len(problems) - len(shown)
    return (*shown, f"and {omitted} more") if omitted else shown


def _label(text: str) -> str:
    """A name of the machine's, which may have any characters: escaped where it is no label."""
    if len(text) <= bounds.MAX_LABEL and _LABEL.search(text):
        return text
    return _clipped(ascii(text)[1:-1], bounds.MAX_LABEL)


def _clipped_at_word(text: str, limit: int) -> str:
    """The beginning of a text; a pod's name stays whole, by which its mention finds it, or goes."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 3].rpartition(' ')[0] or text[: limit - 3]}..."


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
