"""Scenarios of a simulation: nodes, pods that arrive, failures, the scheduler; in YAML with camelCase keys.

Times are in seconds, rates in Mb/s.
"""

from __future__ import annotations

import csv
import io
import json
from bisect import bisect_right
from itertools import accumulate
from math import isfinite, log
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from k8s_rdma.config.bounded_files import read_named_text
from k8s_rdma.config.files import load_config
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.types import NodeName, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, POLICY_ANNOTATION, read_pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.request import Request

MAX_NODES = 10_000
MAX_PFS = 64
MAX_PODS = 10_000_000

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1e9)]

TRACE_COLUMNS = ("arrival_s", "lifetime_s", "shape")

_MAX_TRACE_BYTES = 256 << 20


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file."""


class LogNormal(_Section, frozen=True, kw_only=True):
    """median: in seconds. sigma: the standard deviation of the logarithm."""

    median: Positive
    sigma: Annotated[float, msgspec.Meta(gt=0, le=10)]


class Distribution(_Section, frozen=True, kw_only=True):
    """A distribution of times in seconds: exactly one of these.

    fixed: always this time.
    exponential: with this mean.
    uniform: between two.
    lognormal: see `LogNormal`.
    empirical: one of these, each as likely.
    """

    fixed: Positive | None = None
    exponential: Positive | None = None
    uniform: tuple[Positive, Positive] | None = None
    lognormal: LogNormal | None = None
    empirical: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1, max_length=1_000_000)] | None = None

    def __post_init__(self) -> None:
        """Refuse no distribution and several, and an interval that ends before it begins."""
        kinds = [self.fixed, self.exponential, self.uniform, self.lognormal, self.empirical]
        if sum(kind is not None for kind in kinds) != 1:
            msg = "fixed: exactly one of fixed, exponential, uniform, lognormal, empirical is needed"
            raise ValueError(msg)
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            msg = "uniform: the first number is the smaller one"
            raise ValueError(msg)

    def draw(self, random: Random) -> float:
        """Draw a time."""
        if self.fixed is not None:
            return self.fixed
        if self.exponential is not None:
            return random.expovariate(1 / self.exponential)
        if self.uniform is not None:
            return random.uniform(*self.uniform)
        if self.lognormal is not None:
            return random.lognormvariate(log(self.lognormal.median), self.lognormal.sigma)
        return random.choice(self.empirical or ())


class PfGroup(_Section, frozen=True, kw_only=True):
    """Equal PFs of a node. vfs: that pods may get, of each."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_PFS)] = 1
    link_mbps: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    vfs: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    numa_node: Annotated[int, msgspec.Meta(ge=0, le=1_023)] | None = None


class NodeGroup(_Section, frozen=True, kw_only=True):
    """Equal nodes."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)] = 1
    pfs: Annotated[tuple[PfGroup, ...], msgspec.Meta(min_length=1, max_length=MAX_PFS)]

    def inventory(self, name: NodeName) -> Inventory:
        """Make the inventory of a node of that name."""
        groups = [group for group in self.pfs for _ in range(group.count)]
        pfs = [
            Pf(
                name=f"pf{index}",
                pci=pci_address(f"0000:{index + 1:02x}:00.0"),
                capacity_vfs=group.vfs,
                link_mbps=group.link_mbps,
                numa_node=group.numa_node,
            )
            for index, group in enumerate(groups)
        ]
        return Inventory.of_node(name, pfs)


class PodShape(_Section, frozen=True, kw_only=True):
    """Pods that arrive.

    share: of all arrivals, beside those of the other shapes.
    interfaces: the objects of the annotation `rdma_interfaces_required`.
    policy: as `k8s-rdma.io/policy`.
    gang: pods that come, are placed and end together.
    lifetime: from the bind on.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    share: Share = 1.0
    interfaces: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1, max_length=1_024)]
    policy: str = "any"
    gang: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    lifetime: Distribution

    def request(self) -> Request:
        """Read the interfaces as the extender does. MalformedError names the key."""
        annotations = {ANNOTATION: json.dumps(self.interfaces), POLICY_ANNOTATION: self.policy}
        return read_pod(annotations, strict=True).request

    def __post_init__(self) -> None:
        """Refuse a request that the extender would refuse."""
        try:
            self.request()
        except MalformedError as error:
            message = error.message.replace(ANNOTATION, "interfaces").replace(POLICY_ANNOTATION, "policy")
            raise ValueError(message) from error


class Failures(_Section, frozen=True, kw_only=True):
    """Failures of nodes or links. every: between two of one node or PF. repair: how long it takes."""

    every: Distribution
    repair: Distribution


class SchedulerSettings(_Section, frozen=True, kw_only=True):
    """The schedulers.

    percentage_of_nodes: that are searched for each pod, as `percentageOfNodesToScore` of kube-scheduler; null
        for its default, which falls with their number.
    backoff, max_backoff: seconds after the first refusal and at most (`podInitialBackoffSeconds`,
        `podMaxBackoffSeconds`).
    report_delay: seconds after which a pod's end is known.
    replicas: schedulers that work at the same time, each on one pod or gang.
    bind_delay: seconds from a decision to its bind, in which the decision grows stale.
    judge_binds: whether the binder judges again on its own books, as the extender does; else binds take
        effect as they were decided.
    """

    percentage_of_nodes: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    backoff: Positive = 1.0
    max_backoff: Positive = 10.0
    report_delay: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    bind_delay: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    judge_binds: bool = True

    def nodes_to_find(self, nodes: int) -> int:
        """Count the fitting nodes at which a search ends (kube-scheduler 1.36, `numFeasibleNodesToFind`)."""
        if nodes < 100:
            return nodes
        percentage = self.percentage_of_nodes or max(5, 50 - nodes // 125)
        return max(100, nodes * percentage // 100)


class Arrival(NamedTuple):
    """A pod or a gang that arrives. at_s: since the beginning. shape: index in `Scenario.pods`."""

    at_s: float
    lifetime_s: float
    shape: int


class Scenario(_Section, frozen=True, kw_only=True):
    """A scenario. duration: simulated time. warm_up: the time at its beginning that figures leave out.

    arrivals: the time between two, of pods or gangs.
    trace: instead, a file of them in CSV, beside this one.
    max_pods: after which no more arrive.
    stop_at_first_refusal: to measure the load that a policy reaches before it refuses a pod.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    duration: Positive
    warm_up: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    nodes: Annotated[tuple[NodeGroup, ...], msgspec.Meta(min_length=1, max_length=100)]
    pods: Annotated[tuple[PodShape, ...], msgspec.Meta(min_length=1, max_length=1_000)]
    arrivals: Distribution | None = None
    trace: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    max_pods: Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)] = MAX_PODS
    stop_at_first_refusal: bool = False
    node_failures: Failures | None = None
    link_failures: Failures | None = None
    scheduler: SchedulerSettings = SchedulerSettings()

    def __post_init__(self) -> None:
        """Refuse too many nodes, shapes of one name, a warm-up of all the time, and two sources of pods."""
        if (self.arrivals is None) == (self.trace is None):
            msg = "arrivals: exactly one of arrivals and trace is needed"
            raise ValueError(msg)
        total = sum(group.count for group in self.nodes)
        if total > MAX_NODES:
            msg = f"nodes: {total} nodes, and at most {MAX_NODES} can be simulated"
            raise ValueError(msg)
        if any(sum(pf.count for pf in group.pfs) > MAX_PFS for group in self.nodes):
            msg = f"nodes: more than {MAX_PFS} PFs on a node"
            raise ValueError(msg)
        if len({shape.name for shape in self.pods}) < len(self.pods):
            msg = "pods: two shapes have one name"
            raise ValueError(msg)
        if self.warm_up >= self.duration:
            msg = "warmUp: nothing is left of the duration"
            raise ValueError(msg)

    def inventories(self) -> list[Inventory]:
        """Make all nodes."""
        groups = [group for group in self.nodes for _ in range(group.count)]
        return [group.inventory(NodeName(f"node-{index}")) for index, group in enumerate(groups)]

    def shares(self) -> dict[Request, float]:
        """Map each request to its share of arrivals; a gang counts once."""
        shares: dict[Request, float] = {}
        for shape in self.pods:
            request = shape.request()
            shares[request] = shares.get(request, 0.0) + shape.share
        return shares

    def draw(self, seed: int) -> Iterator[Arrival]:
        """Draw arrivals, the same for equal seeds."""
        if self.arrivals is None:
            return
        random = Random(f"arrivals {seed}")
        shares = [*accumulate(shape.share for shape in self.pods)]
        at_s, pods = 0.0, 0
        while pods < self.max_pods:
            at_s += self.arrivals.draw(random)
            shape = min(bisect_right(shares, random.random() * shares[-1]), len(shares) - 1)
            yield Arrival(at_s, self.pods[shape].lifetime.draw(random), shape)
            pods += self.pods[shape].gang


def load_scenario(path: str) -> Scenario:
    """Read a scenario. MalformedError names the file and the field."""
    return load_config(Scenario, path, {})


def load_trace(scenario: Scenario, path: str) -> list[Arrival] | None:
    """Read the trace that a scenario names beside its file, unless it draws arrivals.

    MalformedError names the file, the line and the column.
    """
    if scenario.trace is None:
        return None
    trace = Path(path).parent / scenario.trace
    try:
        text = read_named_text(trace, _MAX_TRACE_BYTES).removeprefix("\ufeff")  # as spreadsheets write CSV
        return [*_read_trace(csv.DictReader(io.StringIO(text, newline="")), scenario)]
    except OSError as error:
        msg = f"trace {trace}: {error.strerror}"
        raise MalformedError(msg) from error
    except (ValueError, csv.Error) as error:
        msg = f"trace {trace}: {error}"
        raise MalformedError(msg) from error


def _read_trace(rows: csv.DictReader[str], scenario: Scenario) -> Iterable[Arrival]:
    if sorted(rows.fieldnames or ()) != sorted(TRACE_COLUMNS):
        msg = f"line 1: wanted the columns {','.join(TRACE_COLUMNS)}"
        raise ValueError(msg)
    shapes = {shape.name: index for index, shape in enumerate(scenario.pods)}
    latest_s, pods = 0.0, 0
    for row in rows:
        at_s, lifetime_s = (_time(row, column, rows.line_num) for column in TRACE_COLUMNS[:2])
        shape = shapes.get(row["shape"])
        if shape is None:
            msg = f"line {rows.line_num}: shape: {row['shape']!r} is none of the scenario's pods"
            raise ValueError(msg)
        if at_s < latest_s:
            msg = f"line {rows.line_num}: arrival_s: earlier than the line before"
            raise ValueError(msg)
        latest_s, pods = at_s, pods + scenario.pods[shape].gang
        if pods > scenario.max_pods:
            return
        yield Arrival(at_s, lifetime_s, shape)


def _time(row: dict[str, str], column: str, line: int) -> float:
    try:
        found = float(row[column])
    except (TypeError, ValueError):
        found = -1.0
    if not (isfinite(found) and found >= 0):
        msg = f"line {line}: {column}: wanted seconds, from 0 on"
        raise ValueError(msg)
    return found
