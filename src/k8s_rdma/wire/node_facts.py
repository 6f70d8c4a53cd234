"""Facts about a node: what it published in its `RdmaNode`, as core values; equal ones share objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING

from k8s_rdma.core.allocation import foreign_use
from k8s_rdma.core.inventory import CLAIMS_POOL, Gpu, Inventory, Pf
from k8s_rdma.core.mac_ranges import NO_MACS, MacRanges
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.pf_use import EVERY_DEVICE, Used
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import Enforce, LinkType, NodeName, PciAddress, PodUid, Setting, pci_address
from k8s_rdma.wire.rdma_node import decode_macs, in_use
from k8s_rdma.wire.report import MacRange, MentionedPod, RatesRefusal, ability_of

if TYPE_CHECKING:
    from k8s_rdma.wire.rdma_node import ForeignUse, GpuStatus, HeldInterfaces, PfStatus, RdmaNodeStatus

_pci = lru_cache(maxsize=4096)(pci_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsUse:
    """The use of a PF by ResourceClaims, for people to read: no decision depends on it.

    mbps: what reservations may add up to; None while that is unknown. reserved_mbps: None if the node's
        agent does not tell.
    """

    pf: str
    mbps: int | None
    reserved_mbps: int | None
    vfs: int
    free_vfs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node at one generation of its report.

    reported: what each pod holds there; the interfaces of several sandboxes of a pod together. Reservations
        are as programmed, which may be more than was asked for.
    entries: which of its request's interfaces these are, of each pod whose agent tells.
    namespaces: of these pods, in their order.
    foreign: VFs that someone else holds or rated.
    macs: of its PFs and VFs, and those that VFs have in pods.
    generations: of placements whose rates are programmed, of pods with another than the first.
    refusals: of later generations, which the node has not programmed.
    problems: what its agent says that an operator should know, one sentence each. mentions: the pods that
        they name.
    claims: what is for ResourceClaims of each PF that has VFs for them.
    takes_placements: whether its agent has later placements of pods sent to it.
    """

    generation: str
    inventory: Inventory
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]]
    foreign: Mapping[PciAddress, Used]
    entries: Mapping[PodUid, frozenset[int]]
    namespaces: tuple[str, ...] = ()
    macs: MacRanges = NO_MACS
    generations: Mapping[PodUid, int] = field(default_factory=dict)
    refusals: Mapping[PodUid, RatesRefusal] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    mentions: tuple[MentionedPod, ...] = ()
    claims: tuple[ClaimsUse, ...] = ()
    takes_placements: bool = False


def read_facts(status: RdmaNodeStatus, node: NodeName) -> NodeFacts:
    """Read the facts of what a node published, whether ready or not.

    ValueError when what it tells of a PF has no meaning.
    """
    pfs, foreign = [], {}
    for entry in status.pfs:
        pf = _pf(entry)
        pfs.append(pf)
        if entry.foreign:
            foreign[pf.pci] = Used.joined([*_foreign(pf, entry.foreign)])
    reported: dict[PodUid, tuple[PlacedInterface, ...]] = {}
    entries: dict[PodUid, frozenset[int]] = {}
    spaces: dict[PodUid, str] = {}
    for allocation in status.allocations:
        uid = PodUid(allocation.pod.uid)
        spaces[uid] = allocation.pod.namespace
        reported[uid], namespace_of_pod = _placed_interfaces(allocation.interfaces)
        if namespace_of_pod:
            entries[uid] = namespace_of_pod
    return NodeFacts(
        generation=status.generation,
        inventory=Inventory.of_node(node, pfs, tuple(map(_gpu, status.gpus))),
        reported=reported,
        foreign=foreign,
        entries=entries,
        namespaces=_namespaces(tuple(spaces.values())),
        macs=_macs(status.macs),
        generations={
            PodUid(allocation.pod.uid): allocation.generation
            for allocation in status.allocations
            if allocation.generation
        },
        refusals={
            PodUid(allocation.pod.uid): allocation.refused
            for allocation in status.allocations
            if allocation.refused is not None
        },
        mentions=status.mentions,
        problems=(*status.problems, *(f"{pf.name}: {why}" for pf in status.pfs for why in pf.problems)),
        claims=tuple(_claims(status)),
    )


def _claims(status: RdmaNodeStatus) -> Iterator[ClaimsUse]:
    pools = [(pf, pool.vfs) for pf in status.pfs for pool in pf.pools if pool.resource == CLAIMS_POOL]
    if not pools:
        return
    in_use_vfs = in_use(status.pfs, status.allocations).vfs
    for pf, vfs in pools:
        yield ClaimsUse(
            pf=pf.name,
            mbps=pf.claims.mbps if pf.claims else None,
            reserved_mbps=pf.claims.reserved_mbps if pf.claims else None,
            vfs=vfs,
            free_vfs=max(0, vfs - in_use_vfs[pf.pci, CLAIMS_POOL]),
        )


def _foreign(pf: Pf, uses: Iterable[ForeignUse]) -> Iterator[Used]:
    for alike in uses:
        pool_vfs = pf.pools.get(alike.pool, EVERY_DEVICE)
        yield from (foreign_use(pf.rates, alike.min_mbps, alike.pool, pool_vfs),) * alike.vfs


@lru_cache(maxsize=4096)
def _pf(entry: PfStatus) -> Pf:
    """Convert a PF; equal ones share one object."""
    return Pf(
        name=entry.name,
        pci=_pci(entry.pci),
        capacity_vfs=entry.capacity_vfs,
        link_mbps=entry.link_mbps,
        rates=ability_of(entry.rates),
        enforce=Enforce(entry.enforce),
        driver=entry.driver,
        supported_settings=_settings(entry.takes),
        link_type=LinkType(entry.link_type),
        mtu=entry.mtu,
        vendor=entry.vendor,
        numa_node=entry.numa_node,
        pcie_path=_path(entry.pcie_path),
        pools={pool.resource: pool.vfs for pool in entry.pools},
    )


@lru_cache(maxsize=4096)
def _gpu(entry: GpuStatus) -> Gpu:
    """Convert a GPU; equal ones share one object."""
    return Gpu(
        resource=intern(entry.resource),
        pci=_pci(entry.pci),
        pcie_path=_path(entry.pcie_path),
        numa_node=entry.numa_node,
        in_use=entry.in_use,
        devices=entry.devices,
    )


@lru_cache(maxsize=4096)
def _path(bridges: tuple[str, ...]) -> tuple[PciAddress, ...]:
    """Convert a path; equal ones share one object."""
    return tuple(map(_pci, bridges))


@lru_cache(maxsize=256)
def _settings(names: tuple[str, ...]) -> frozenset[Setting]:
    """Convert the settings known here, equal sets into one object; a newer agent may send others."""
    setting_names = {setting.value for setting in Setting}
    return frozenset(Setting(name) for name in names if name in setting_names)


@lru_cache(maxsize=65_536)
def _placed_interfaces(
    interfaces: tuple[HeldInterfaces, ...],
) -> tuple[tuple[PlacedInterface, ...], frozenset[int]]:
    """Convert a pod's interfaces and their entries; equal ones share one object."""
    placed = tuple(interface for alike in interfaces for interface in (_placed(alike),) * alike.vfs)
    return placed, frozenset(entry for alike in interfaces for entry in alike.entries)


def _placed(alike: HeldInterfaces) -> PlacedInterface:
    return PlacedInterface(
        pf=_pci(alike.pf),
        min_tx_rate_mbps=alike.min_mbps,
        max_tx_rate_mbps=alike.max_mbps,
        pool=alike.pool,
    )


def _macs(ranges: Iterable[MacRange]) -> MacRanges:
    firsts = ((address_number(macs.first), macs.number) for macs in ranges)
    return MacRanges.merge((first, first + number - 1) for first, number in firsts)


def reported_macs(status: bytes) -> MacRanges:
    """Read the MACs of an `RdmaNode`'s status alone; MalformedError as `rdma_node.decode_macs`."""
    return _macs(decode_macs(status))


@lru_cache(maxsize=4096)
def _namespaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """Share one object among all nodes that report the same."""
    return tuple(map(intern, names))
