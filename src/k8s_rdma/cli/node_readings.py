"""Readings of interfaces' counters from the nodes' servers, by the API server's proxy, for a limited time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.cli.node_servers import NodeServers, why_not_read
from k8s_rdma.core.traffic import NO_LOSSES
from k8s_rdma.core.usage import CounterSeries, HeldInterface, Reading
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.node_metrics import CounterReader
from k8s_rdma.wire.report import MAX_HELD_VFS
from k8s_rdma.wire.state_socket import SAMPLE_EVERY_S

if TYPE_CHECKING:
    from k8s_rdma.core.traffic import CounterSample
    from k8s_rdma.core.types import Enforcer
    from k8s_rdma.wire.report import NodeReport

MAX_NODES = 64
"""Nodes whose servers are read, one after the other, each in a few milliseconds."""


class Enforcement(NamedTuple):
    """The enforcers of the rates of an interface on a node, if the rates are enforced."""

    min_by: Enforcer | None
    max_by: Enforcer | None


class PfOfNode(NamedTuple):
    """A PF's driver and its link's speed, if that is known."""

    driver: str
    link_mbps: int | None


@dataclass(slots=True, kw_only=True)
class NodeFactsOfUse:
    """Facts that counters do not show, by PF, and by PF, namespace, pod and interface."""

    pfs: dict[tuple[str, str], PfOfNode] = field(default_factory=dict)
    enforcement: dict[tuple[str, str, str, str, str], Enforcement] = field(default_factory=dict)

    def add(self, node: str, report: NodeReport) -> None:
        """Take a node's report."""
        for pf in report.pfs:
            self.pfs[node, pf.pci] = PfOfNode(pf.driver, pf.link_mbps)
        for allocation in report.allocations:
            for interface in allocation.interfaces:
                key = (node, interface.pf, allocation.pod.namespace, allocation.pod.name, interface.ifname)
                self.enforcement[key] = Enforcement(interface.enforced.min, interface.enforced.max)


@dataclass(slots=True, kw_only=True)
class NodeReader:
    """Reads the servers of nodes.

    notes: why one could not be read, the last reason by node.
    clock: seconds since the epoch.
    """

    servers: NodeServers
    clock: Callable[[], float] = time.time
    notes: dict[str, str] = field(default_factory=dict)
    facts: NodeFactsOfUse = field(default_factory=NodeFactsOfUse)

    def read_facts(self, node: str) -> None:
        """Read a node's report; a note if that fails."""
        try:
            self.facts.add(node, self.servers.report(node))
        except K8sRdmaError as error:
            self.notes[node] = why_not_read(error)

    def sample(self, node: str) -> CounterSample | None:
        """Read a node's counters, if it has any; a failure, or their absence, is noted."""
        try:
            counters = CounterReader(max_vfs=MAX_HELD_VFS, node=node, losses=True)
            self.servers.port(node)
            asked_s = self.clock()
            self.servers.feed(counters, node)
            found = counters.sample((asked_s + self.clock()) / 2)  # of an answer that took its time
        except K8sRdmaError as error:
            self.notes[node] = why_not_read(error)
            return None
        if found is None:
            self.notes[node] = "its agent has no counters"
        else:
            self.notes.pop(node, None)
        return found


@dataclass(slots=True, kw_only=True)
class Sampling:
    """Readings of the pods' interfaces on some nodes. pods: by namespace and name."""

    reader: NodeReader
    nodes: Sequence[str]
    pods: frozenset[tuple[str, str]]
    _readings: dict[HeldInterface, list[Reading]] = field(default_factory=lambda: defaultdict(list))

    def run(self, seconds: float, sleep: Callable[[float], object]) -> bool:
        """Sample until the time is over; return False after Ctrl-C. sleep: waits, and may show progress."""
        ends_s = self.reader.clock() + seconds
        try:
            for node in self.nodes:
                self.reader.read_facts(node)
            while True:
                began_s = self.reader.clock()
                for node in self.nodes:
                    self._take(node)
                if began_s >= ends_s:
                    return True
                next_s = min(began_s + SAMPLE_EVERY_S, max(ends_s, began_s + 1.0))
                sleep(max(0.0, next_s - self.reader.clock()))
        except KeyboardInterrupt:
            return False

    def series(self) -> list[CounterSeries]:
        """Return the readings by interface."""
        pfs = self.reader.facts.pfs
        return [
            CounterSeries(
                holder=holder,
                readings=readings,
                link_mbps=pf.link_mbps if (pf := pfs.get((holder.node, holder.pci))) else None,
            )
            for holder, readings in self._readings.items()
        ]

    def _take(self, node: str) -> None:
        sample = self.reader.sample(node)
        for holder, programmed in sample.programmed.items() if sample else ():
            counts = sample.counts.get(holder) if sample else None
            if counts is None or sample is None or (holder.namespace, holder.pod) not in self.pods:
                continue
            losses = sample.losses.get(holder, NO_LOSSES)
            interface = HeldInterface(node, *holder)
            reading = Reading(sample.sampled_at, *counts, *losses, *programmed)
            self._readings[interface].append(reading)
