"""Source of the states of nodes: the protocol of the RdmaNode informer and the HTTP poller.

`NodeFacts` are one node's report as core values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

import structlog

from k8s_rdma.core.allocation import foreign_use
from k8s_rdma.core.inventory import CLAIMS_POOL, EVERY_DEVICE, Gpu, Inventory, Pf, Used
from k8s_rdma.core.macs import NO_MACS, MacRanges
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import Enforce, LinkType, NodeName, PciAddress, PodUid, Setting, pci_address
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.metrics import Reading, samples
from k8s_rdma.wire.rdma_node import ForeignUse, GpuStatus, HeldInterfaces, PfStatus, RdmaNodeStatus, status_of
from k8s_rdma.wire.rest import MAX_NAME, MacRange, NodeReport, RatesRefusal, ability_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType


class NodeSource(Protocol):
    """Brings what nodes report into a `ClusterState`.

    Times are seconds of the clock that the state's other inputs use. A node that cannot be read is
    noted in the state with the reason; nothing is raised for its sake.
    """

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Return when each node's state is one that was so at `newer_than` or later, as far as can be known.

        It stems from a question asked at `newer_than` or later, or there is a watch (a long poll is one) that
        would have reported any other state by now and that was heard from within the configured time. Where
        something waits for an answer to a question from after a pod's end (`ClusterState.ended`), the node
        is asked: neither a watch nor a young state tells that. A node that did not answer lately may be left
        alone for a while, and then stays unreadable.
        """
        ...

    async def request_report(self, node: NodeName) -> None:
        """Return when the node's state stems from a question asked now or later, or it did not answer it.

        Where nodes cannot be asked, their last report stands for as long as they are heard from.
        """
        ...

    async def deliver(self, node: NodeName, placement: str) -> str:
        """Send a pod's placement to its node, if that has it sent.

        Return why the node refuses it; empty where it does not, where it does not answer, and where its agent
        follows placements in the API server.
        """
        ...

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """The API server says that the node is to be reached at these addresses."""
        ...

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        """Learn from an older source; only for nodes that are still unknown. addresses: decodes them."""
        ...

    def forget(self, node: NodeName) -> None:
        """The node does not exist any more."""
        ...

    def awaited(self) -> int:
        """The number of nodes without any state, not even an unreadable one; 0 from the first 0 on.

        To be asked once the nodes are known.
        """
        ...


class ObservableNodeSource(NodeSource, Protocol):
    """`NodeSource` that runs as an async context manager, and that metrics can show."""

    async def __aenter__(self) -> Self:
        """Begin to ask nodes, or to watch them."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking or watching nodes."""
        ...

    def sources(self) -> Counter[tuple[str, ...]]:
        """Count the nodes by how their states are known, or `unreadable`."""
        ...

    def oldest_s(self) -> float:
        """The time since the last answer of the readable node that has been silent for longest."""
        ...

    def readings(self) -> dict[str, Reading]:
        """Return further readings for metrics."""
        ...


def source_readings(source: ObservableNodeSource) -> dict[str, Reading]:
    """Readings of a source for metrics."""
    return {
        **source.readings(),
        "nodes": (
            "Nodes by how their states are known.",
            "gauge",
            lambda: samples(("source",), source.sources()),
        ),
        "node_state_age_seconds": (
            "Time since the readable node was heard from that is silent for longest.",
            "gauge",
            source.oldest_s,
        ),
    }


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsUse:
    """The use of a PF by ResourceClaims, for people to read: no decision depends on it.

    mbps: what reservations may add up to; None while that is unknown. reserved_mbps: None where the node's
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
    problems: what its agent says that an operator should know, one sentence each.
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
    claims: tuple[ClaimsUse, ...] = ()
    takes_placements: bool = False


def facts_of(report: NodeReport, node: NodeName) -> NodeFacts:
    """The facts of a report that `node` was asked for; as `facts_of_status`.

    MalformedError (`UNREADABLE_NODE`) also when another node answered.
    """
    if report.node != node:
        _refuse(f"the address answers for node {report.node[:MAX_NAME]!r}")
    with _reading(node):
        status = status_of(report)
    facts = facts_of_status(status, node)
    return replace(facts, takes_placements=True) if report.takes_placements else facts


def facts_of_status(status: RdmaNodeStatus, node: NodeName) -> NodeFacts:
    """The facts of what a node published.

    MalformedError (`UNREADABLE_NODE`) when nothing may be concluded from it: its agent is down (its
    allocations are not known, and no pod could start there), what it tells of a PF has no meaning, or not
    everything could be seen: what is missing must not look like less hardware.
    """
    ready = status.ready()
    if ready is None or ready.status != "True":
        _refuse(ready.message if ready else "it does not say whether its agent serves")
    with _reading(node):
        return _facts(status, node)


@contextmanager
def _reading(node: NodeName) -> Iterator[None]:
    """Refuse a report that has no meaning, or that makes reading it fail: a defect, which costs this node."""
    try:
        yield
    except ValueError as error:
        _refuse(str(error))
    except Exception as error:
        _log.exception("report_failed", node=node)
        _refuse(f"its report makes reading it fail: {type(error).__name__}: {error}")


def _facts(status: RdmaNodeStatus, node: NodeName) -> NodeFacts:
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
        problems=(*status.problems, *(f"{pf.name}: {why}" for pf in status.pfs for why in pf.problems)),
        claims=tuple(_claims(status)),
    )


def _claims(status: RdmaNodeStatus) -> Iterator[ClaimsUse]:
    pools = [(pf, pool.vfs) for pf in status.pfs for pool in pf.pools if pool.resource == CLAIMS_POOL]
    if not pools:
        return
    held_vfs: Counter[str] = Counter()
    for interface in chain.from_iterable(allocation.interfaces for allocation in status.allocations):
        if interface.pool == CLAIMS_POOL:
            held_vfs[interface.pf] += interface.vfs
    for pf, vfs in pools:
        foreign_vfs = sum(use.vfs for use in pf.foreign if use.pool == CLAIMS_POOL)
        yield ClaimsUse(
            pf=pf.name,
            mbps=pf.claims.mbps if pf.claims else None,
            reserved_mbps=pf.claims.reserved_mbps if pf.claims else None,
            vfs=vfs,
            free_vfs=max(0, vfs - held_vfs[pf.pci] - foreign_vfs),
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


_pci = lru_cache(maxsize=4096)(pci_address)


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


@lru_cache(maxsize=4096)
def _namespaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """Share one object among all nodes that report the same."""
    return tuple(map(intern, names))


def _refuse(why: str) -> NoReturn:
    raise MalformedError(why, reason=Reason.UNREADABLE_NODE)
