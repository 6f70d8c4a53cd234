"""`k8s-rdma recommend`: what pods reserve beside what they use, and what they might ask for instead.

Pods are those that the API server lets the user list; readings are of Prometheus, or of the nodes for as long
as the command runs. Nothing is changed.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.cli.console import for_terminal
from k8s_rdma.cli.formats import Answer, Output
from k8s_rdma.cli.node_readings import MAX_NODES, NodeFactsOfUse, NodeReader, Sampling
from k8s_rdma.cli.options import Chart, PodScope
from k8s_rdma.cli.prometheus_address import PrometheusAddress
from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.cli.prometheus_readings import PrometheusReadings
from k8s_rdma.cli.recommend_document import Recommendations, freed, workload_recommendation
from k8s_rdma.cli.recommend_page import show
from k8s_rdma.cli.service_proxy import ServiceProxy
from k8s_rdma.core.recommendation import MeasuredInterface, advise_workloads, freed_by_pf
from k8s_rdma.core.refusal import count
from k8s_rdma.core.usage import CounterSeries, use_of
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.calls import Documents
from k8s_rdma.kube.kubeconfig import command_namespace
from k8s_rdma.kube.pod_owners import owned_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.core.recommendation import WorkloadAdvice
    from k8s_rdma.kube.pod_owners import OwnedPod

UNMET, INTERRUPTED = 1, 130

_MOST_NOTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendOptions:
    """Options of the command.

    subject: a pod or a workload, as `NAME`, `pod/NAME` or `KIND/NAME`; None for all of the scope.
    window_s: of Prometheus' readings. sample_s: the time for which nodes are read.
    """

    pods: PodScope
    chart: Chart
    subject: str | None
    prometheus: PrometheusAddress
    window_s: float
    sample_s: float
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Readings of the pods' interfaces in a window, with what nodes know of them."""

    series: Sequence[CounterSeries]
    window: tuple[float, float]
    facts: NodeFactsOfUse
    complete: bool
    notes: Sequence[str]


def recommend(options: RecommendOptions) -> int:
    """Print recommendations; return the exit status. K8sRdmaError without pods, or without any answer."""
    with ExitStack() as stack:
        api = stack.enter_context(Documents(options.pods.kubeconfig))
        pods = selected_pods(api, options)
        proxy = ServiceProxy(api=api, namespace=options.chart.namespace, secret=options.chart.secret)
        reader = NodeReader(proxy=proxy)
        if options.prometheus.url:
            measured = _by_prometheus(options, pods, reader)
        else:
            measured = _by_nodes(options, pods, reader)
        advice = advise_workloads(_interfaces(measured, pods))
    found = _document(options, measured, advice)
    _require_readings(found)
    options.output.write(
        Answer(
            document=lambda: msgspec.json.format(msgspec.json.encode(found)) + b"\n",
            names=(f"{entry.kind.lower()}/{entry.name}" for entry in found.workloads),
            show=lambda page: show(for_terminal(found), page),
        )
    )
    return INTERRUPTED if not found.complete else UNMET if found.has_unmet_demand else 0


def selected_pods(api: Documents, options: RecommendOptions) -> list[OwnedPod]:
    """List the pods that are asked about. MalformedError where there is none."""
    scope = options.pods
    namespace = None if scope.all_namespaces else command_namespace(scope.kubeconfig)
    found = [pod for pod in owned_pods(api, namespace) if _is_of(options.subject, pod)]
    if not found:
        scope_text = f"of namespace {namespace}" if namespace else "of any namespace"
        hint = "; --all-namespaces looks in every one" if namespace else ""
        if options.subject is None:
            msg = f"no pod {scope_text} asks for interfaces{hint}"
        else:
            msg = f"{options.subject}: no pod or workload {scope_text} with interfaces has this name{hint}"
        raise MalformedError(msg)
    return found


def _is_of(subject: str | None, pod: OwnedPod) -> bool:
    if subject is None:
        return True
    kind, slash, name = subject.rpartition("/")
    names = {("pod", pod.name), (pod.workload.kind.lower(), pod.workload.name)}
    return (kind.lower(), name) in names if slash else name in {entry for _, entry in names}


def _by_prometheus(options: RecommendOptions, pods: Sequence[OwnedPod], reader: NodeReader) -> _Measured:
    to_s = reader.clock()
    from_s = to_s - options.window_s
    scope = options.pods
    with PrometheusClient(options.prometheus) as client:
        readings = PrometheusReadings(
            client=client,
            pods=_names(pods),
            namespace=None if scope.all_namespaces else command_namespace(scope.kubeconfig),
        )
        series = readings.series(from_s, to_s)
    notes = []
    nodes = sorted({counters.holder.node for counters in series})
    if len(nodes) > MAX_NODES:
        notes.append(f"who enforces rates, and drivers, are read of {MAX_NODES} nodes at most: name a pod")
    for node in nodes[:MAX_NODES]:
        reader.read_facts(node)
    return _Measured(
        series=series,
        window=(from_s, to_s),
        facts=reader.facts,
        complete=True,
        notes=[*notes, *_node_notes(reader)],
    )


def _by_nodes(options: RecommendOptions, pods: Sequence[OwnedPod], reader: NodeReader) -> _Measured:
    nodes = sorted({pod.node for pod in pods if pod.node})
    notes = []
    if len(nodes) > MAX_NODES:
        notes.append(f"{MAX_NODES} of {len(nodes)} nodes are read: name a pod, or use --prometheus")
    sampling = Sampling(reader=reader, nodes=nodes[:MAX_NODES], pods=_names(pods))
    from_s = reader.clock()
    with _progress(len(sampling.nodes), options.sample_s) as sleep:
        complete = sampling.run(options.sample_s, sleep)
    series = sampling.series()
    earliest_s = min((counters.readings[0].at_s for counters in series), default=from_s)
    return _Measured(
        series=series,
        window=(min(from_s, earliest_s), reader.clock()),
        facts=reader.facts,
        complete=complete,
        notes=[*notes, *_node_notes(reader)],
    )


def _names(pods: Sequence[OwnedPod]) -> frozenset[tuple[str, str]]:
    return frozenset((pod.namespace, pod.name) for pod in pods)


def _node_notes(reader: NodeReader) -> list[str]:
    return [f"{node}: {why}" for node, why in reader.notes.items()]


@contextmanager
def _progress(nodes: int, seconds: float) -> Iterator[Callable[[float], object]]:
    """Show a bar on a terminal; yield how to wait, which advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        text = f"reading {count(nodes, 'node')}; Ctrl-C ends it with the figures until then"
        task = bar.add_task(text, total=seconds)
        began_s = time.monotonic()

        def wait(left_s: float) -> None:
            ends_s = time.monotonic() + left_s
            while (now_s := time.monotonic()) < ends_s:
                bar.update(task, completed=now_s - began_s)
                time.sleep(min(1.0, ends_s - now_s))

        yield wait


def _interfaces(measured: _Measured, pods: Sequence[OwnedPod]) -> Iterator[MeasuredInterface]:
    """Join the series of each pod's interface, by its name in the pod."""
    owners = {(pod.namespace, pod.name): pod.workload for pod in pods}
    groups: dict[tuple[str, str, str], list[CounterSeries]] = defaultdict(list)
    for counters in measured.series:
        groups[counters.holder.namespace, counters.holder.pod, counters.holder.interface].append(counters)
    for (namespace, pod, _), series in sorted(groups.items()):
        use = use_of(series, *measured.window)
        holder, facts = use.holder, measured.facts
        pf = facts.pfs.get((holder.node, holder.pci))
        enforcement_of = facts.enforcement.get((holder.node, holder.pci, namespace, pod, holder.interface))
        yield MeasuredInterface(
            workload=owners[namespace, pod],
            use=use,
            driver=pf.driver if pf else "",
            min_by=enforcement_of.min_by if enforcement_of else None,
            max_by=enforcement_of.max_by if enforcement_of else None,
        )


def _document(
    options: RecommendOptions, measured: _Measured, advice: Sequence[WorkloadAdvice]
) -> Recommendations:
    notes = list(measured.notes)
    omitted = [f"and {len(notes) - _MOST_NOTES} more"] if len(notes) > _MOST_NOTES else []
    resolutions = [pod.use.coverage.resolution_s for entry in advice for pod in entry.pods]
    from_s, to_s = measured.window
    return Recommendations(
        source="prometheus" if options.prometheus.url else "nodes",
        window_s=round(to_s - from_s, 1),
        resolution_s=round(max(resolutions, default=0.0), 1),
        complete=measured.complete,
        workloads=tuple(map(workload_recommendation, advice)),
        freed=tuple(map(freed, freed_by_pf(advice))),
        notes=(*notes[:_MOST_NOTES], *omitted),
    )


def _require_readings(found: Recommendations) -> None:
    """Raise K8sRdmaError where there is nothing to say, with the reasons that there are."""
    if not found.workloads:
        source = "Prometheus" if found.source == "prometheus" else "the nodes"
        msg = f"no interface of these pods has readings of {source}"
        raise K8sRdmaError(msg, details="\n".join(found.notes))
