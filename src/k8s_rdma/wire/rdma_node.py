"""`RdmaNode` of `k8s-rdma.io/v1alpha1`: what `/v1/node` tells, in the API server, as small as can be.

One object a node, of the node's name. Everything that is decided of a node is decided of this status,
also where its report came over HTTP, so that the two sources cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from k8s_rdma.wire.json import decode
from k8s_rdma.wire.rates import PfRates, published_rates
from k8s_rdma.wire.rest import GenerationText, Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.wire.rest import Allocation, NodeReport, PfReport

GROUP, VERSION, PLURAL, KIND = "k8s-rdma.io", "v1alpha1", "rdmanodes", "RdmaNode"

MOST_VFS = 4096
"""On one PF for one pod; SR-IOV itself has 16 bits for them, cards have hundreds."""

_MOST_PROBLEMS = 5
_MOST_OF_PROBLEM = 300
_MOST_OF_MESSAGE = 1024

Count = Annotated[int, msgspec.Meta(ge=0)]
_Kind: TypeAlias = tuple[str, str, int, int]
"""Of a held interface: PF, pool, minimum and maximum rate."""


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """VFs that someone else holds or rated, alike in their minimum rate in Mb/s, and of one pool.

    pool: the exclusive resource that they belong to; absent for those that pods ask for by annotation.
    """

    vfs: Annotated[int, msgspec.Meta(ge=1, le=MOST_VFS)] = 1
    min_mbps: Count = 0
    pool: str = ""


class PoolVfs(msgspec.Struct, frozen=True, kw_only=True):
    """How many VFs of a PF an exclusive device-plugin resource has."""

    resource: str
    vfs: Count


class PfStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A PF; as in `/v1/node`, link speed in Mb/s and MTU in bytes, absent where they are not known.

    capacity_vfs: for pods that ask by annotation. pools: those of exclusive resources.
    """

    name: str
    pci: str
    driver: str = ""
    vendor: str = ""
    numa_node: int | None = None
    link_mbps: Count | None = None
    link_type: str = "ethernet"
    mtu: Count = 0
    capacity_vfs: Count = 0
    pools: tuple[PoolVfs, ...] = ()
    rates: PfRates
    enforce: str = "auto"
    takes: tuple[str, ...] = ()
    foreign: tuple[ForeignUse, ...] = ()
    problems: tuple[str, ...] = ()


class HeldInterfaces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Interfaces of one pod on one PF that are alike; rates in Mb/s.

    min_mbps: what counts as reserved: the minimum rate that was asked for, or that is programmed if that is
        more. entries: their places in the pod's request, of those for which the agent knows it.
    pool: as in `ForeignUse`.
    """

    pf: str
    vfs: Annotated[int, msgspec.Meta(ge=1, le=MOST_VFS)] = 1
    min_mbps: Count = 0
    max_mbps: Count = 0
    entries: tuple[Count, ...] = ()
    pool: str = ""


class PodAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod holds on the node, in all of its sandboxes."""

    pod: Pod
    interfaces: tuple[HeldInterfaces, ...]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A condition as in Kubernetes' API conventions."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What kubectl prints: how many PFs, and what of them is free of what there is.

    devices: VFs of exclusive resources; absent where there are none.
    """

    pfs: Count
    vfs: str
    bandwidth: str
    devices: str = ""


class RdmaNodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's RDMA hardware and who holds it, at one generation of its report."""

    generation: GenerationText
    summary: Summary
    pfs: tuple[PfStatus, ...] = ()
    allocations: tuple[PodAllocation, ...] = ()
    conditions: tuple[Condition, ...] = ()
    problems: tuple[str, ...] = ()

    def ready(self) -> Condition | None:
        """The condition that says whether the rest may be relied upon; None where there is none."""
        return next((each for each in self.conditions if each.type == "Ready"), None)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RdmaNodeStatus)


def encode_status(status: RdmaNodeStatus) -> bytes:
    """The status' bytes."""
    return _encoder.encode(status)


def decode_status(data: bytes | msgspec.Raw) -> RdmaNodeStatus:
    """Parse a status; unknown fields are tolerated (a newer agent), wrong ones are MalformedError."""
    return decode(data, _decoder, "RdmaNode status")


def status_of(report: NodeReport) -> RdmaNodeStatus:
    """The status that says the same as the report; its condition without a time."""
    pfs = tuple(_pf(pf) for pf in report.pfs)
    allocations = _allocations(report.allocations)
    return RdmaNodeStatus(
        generation=report.generation,
        summary=_summary(pfs, allocations),
        pfs=pfs,
        allocations=allocations,
        conditions=(_ready(report),),
        problems=_few(report.problems),
    )


def vfs_for_pods(status: RdmaNodeStatus) -> int:
    """How many VFs pods can have by annotation, together: all such but those that somebody else holds."""
    return sum(max(0, _left_by_others(pf)) for pf in status.pfs)


def _left_by_others(pf: PfStatus) -> int:
    return pf.capacity_vfs - sum(use.vfs for use in pf.foreign if not use.pool)


def _pf(pf: PfReport) -> PfStatus:
    foreign = Counter((vf.pool, vf.min_tx_rate) for vf in pf.foreign)
    return PfStatus(
        name=pf.name,
        pci=pf.pci,
        driver=pf.driver,
        vendor=pf.vendor,
        numa_node=pf.numa_node,
        link_mbps=pf.link_mbps,
        link_type=pf.link_type,
        mtu=pf.mtu,
        capacity_vfs=pf.capacity_vfs,
        pools=tuple(PoolVfs(resource=resource, vfs=vfs) for resource, vfs in sorted(pf.pools.items())),
        rates=published_rates(pf.rates),
        enforce=pf.enforce,
        takes=pf.takes,
        foreign=tuple(
            ForeignUse(vfs=vfs, min_mbps=rate, pool=pool) for (pool, rate), vfs in sorted(foreign.items())
        ),
        problems=_few(pf.problems),
    )


def _allocations(allocations: Iterable[Allocation]) -> tuple[PodAllocation, ...]:
    """By pod. One that got nothing but its ordinary interface is left out: some agents tell of those, too."""
    pods: dict[str, Pod] = {}
    alike: dict[str, dict[_Kind, list[int | None]]] = {}
    for allocation in allocations:
        for each in allocation.interfaces:
            uid = pods.setdefault(allocation.pod.uid, allocation.pod).uid
            kind = (each.pf, each.pool, max(each.min_tx_rate, each.set_min_tx_rate), each.max_tx_rate)
            alike.setdefault(uid, {}).setdefault(kind, []).append(each.entry)
    return tuple(
        PodAllocation(pod=pod, interfaces=tuple(_held(kind, entries) for kind, entries in alike[uid].items()))
        for uid, pod in pods.items()
    )


def _held(kind: _Kind, entries: Sequence[int | None]) -> HeldInterfaces:
    pf, pool, min_mbps, max_mbps = kind
    told = tuple(sorted(entry for entry in entries if entry is not None))
    return HeldInterfaces(
        pf=pf, vfs=len(entries), min_mbps=min_mbps, max_mbps=max_mbps, entries=told, pool=pool
    )


def _summary(pfs: Sequence[PfStatus], allocations: Sequence[PodAllocation]) -> Summary:
    """What is free by the report alone: of what pods were promised and do not hold yet it does not know."""
    vfs = {pf.pci: _left_by_others(pf) for pf in pfs}
    mbps = {pf.pci: (pf.link_mbps or 0) - sum(use.vfs * use.min_mbps for use in pf.foreign) for pf in pfs}
    for held in (each for allocation in allocations for each in allocation.interfaces):
        if held.pf in vfs:
            vfs[held.pf] -= 0 if held.pool else held.vfs
            mbps[held.pf] -= held.vfs * held.min_mbps
    return Summary(
        pfs=len(pfs),
        vfs=f"{_free(vfs.values())}/{sum(pf.capacity_vfs for pf in pfs)}",
        bandwidth=f"{_gbps(_free(mbps.values()))}/{_gbps(sum(pf.link_mbps or 0 for pf in pfs))}Gb/s",
        devices=_devices(pfs, allocations),
    )


def _devices(pfs: Sequence[PfStatus], allocations: Iterable[PodAllocation]) -> str:
    devices = sum(pool.vfs for pf in pfs for pool in pf.pools)
    held = sum(each.vfs for allocation in allocations for each in allocation.interfaces if each.pool)
    foreign = sum(use.vfs for pf in pfs for use in pf.foreign if use.pool)
    return f"{max(0, devices - held - foreign)}/{devices}" if devices else ""


def _free(each: Iterable[int]) -> int:
    return sum(max(0, left) for left in each)


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
    why = "its agent serves, and sees all of its hardware"
    return Condition(type="Ready", status="True", reason="AgentServes", message=why)


def _few(problems: Sequence[str]) -> tuple[str, ...]:
    """The first of them: the object must stay small, and `/v1/node` tells them all."""
    few = tuple(_clipped(each, _MOST_OF_PROBLEM) for each in problems[:_MOST_PROBLEMS])
    more = len(problems) - len(few)
    return (*few, f"and {more} more") if more else few


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
