"""`k8s-rdma recommend`: reservations of pods beside their use, and better requests.

Pods are those that the API server lets the user list; readings are of Prometheus, or of the nodes for as long
as the command runs. The cluster is not changed.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.cli.console import for_terminal
from k8s_rdma.cli.formats import CommandAnswer, Format, Output, indented
from k8s_rdma.cli.node_readings import MAX_NODES, NodeFactsOfUse, NodeReader, Sampling
from k8s_rdma.cli.node_servers import NodeServers, chart_proxy
from k8s_rdma.cli.omissions import first_notes
from k8s_rdma.cli.options import Chart, PodScope
from k8s_rdma.cli.prometheus_address import PrometheusAddress
from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.cli.prometheus_readings import PrometheusReadings
from k8s_rdma.cli.recommend_document import Recommendations, freed, workload_recommendation
from k8s_rdma.cli.recommend_page import show
from k8s_rdma.cli.recommend_requests import suggested_requests
from k8s_rdma.cli.whatif import Question, planned_cluster
from k8s_rdma.cli.whatif_source import WhatifSource
from k8s_rdma.cli.yaml_output import write_yaml
from k8s_rdma.config.manifests import read_text
from k8s_rdma.core.recommendation import MeasuredInterface, advise_workloads, freed_by_pf
from k8s_rdma.core.refusal import count
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.core.usage import CounterSeries, use_of
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.kubeconfig import command_namespace
from k8s_rdma.kube.pod_owners import owned_pods
from k8s_rdma.planning.right_sizing import ResizedInterface, room_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.core.recommendation import WorkloadAdvice
    from k8s_rdma.kube.pod_owners import OwnedPod

UNMET, INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendOptions:
    """Options of the command.

    subject: a pod or a workload, as `NAME`, `pod/NAME` or `KIND/NAME`; by default all of the scope.
    window_s: of Prometheus' readings.
    sample_s: the time for which nodes are read.
    shape: manifests of pods that are to be counted, if any.
    requests_only: whether to print the requests alone.
    """

    pods: PodScope
    chart: Chart
    subject: str | None
    prometheus: PrometheusAddress
    window_s: float
    sample_s: float
    shape: Path | None
    requests_only: bool
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Readings of the pods' interfaces in a window, with the facts of their nodes."""

    series: Sequence[CounterSeries]
    window: tuple[float, float]
    facts: NodeFactsOfUse
    complete: bool
    notes: Sequence[str]


def recommend(options: RecommendOptions) -> int:
    """Print recommendations; return the exit status. K8sRdmaError without pods, or without any answer."""
    if options.shape is not None and options.shape != Path("-"):
        read_text(options.shape)  # a fault is found now, and not after the sampling
    with ExitStack() as stack:
        api = stack.enter_context(Documents(options.pods.kubeconfig))
        pods = selected_pods(api, options)
        reader = NodeReader(servers=NodeServers(proxy=chart_proxy(api, options.chart)))
        if options.prometheus.url:
            measured = _by_prometheus(options, pods, reader)
        else:
            measured = _by_nodes(options, pods, reader)
        advice = advise_workloads(_interfaces(measured, pods))
        found = _document(options, measured, advice)
        _require_readings(found)
        if options.requests_only:
            _print_requests(api, options.output, advice, pods)
            return _status(found)
    found = msgspec.structs.replace(found, **_room(options, advice, pods, found.notes))
    options.output.write(
        CommandAnswer(
            document=lambda: indented(found),
            names=(f"{entry.kind.lower()}/{entry.name}" for entry in found.workloads),
            show=lambda page: show(for_terminal(found), page),
        )
    )
    return _status(found)


def _status(found: Recommendations) -> int:
    return INTERRUPTED if not found.complete else UNMET if found.has_unmet_demand else 0


def _print_requests(
    api: Documents, output: Output, advice: Sequence[WorkloadAdvice], pods: Sequence[OwnedPod]
) -> None:
    """Print annotations and claim templates with the suggested rates; warnings go to standard error."""

    def warn(sentence: str) -> None:
        sys.stderr.write(f"k8s-rdma: warning: {visible(sentence)}\n")

    by_name = {(pod.namespace, pod.name): pod for pod in pods}
    documents = list(suggested_requests(api, advice, by_name, warn))
    if output.format in (None, Format.WIDE, Format.YAML):
        write_yaml(documents, allow_unicode=True)
        return
    output.write(
        CommandAnswer(
            document=lambda: indented(documents),
            names=(str(found.get("workload") or found["metadata"]["name"]) for found in documents),
            show=lambda _: None,
        )
    )


def _room(
    options: RecommendOptions,
    advice: Sequence[WorkloadAdvice],
    pods: Sequence[OwnedPod],
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Count the pods of the shape that fit now and with the suggestions; a note if that is not known."""
    if options.shape is None:
        return {}
    source = WhatifSource(kubeconfig=options.pods.kubeconfig, namespace=options.chart.namespace)
    try:
        planned = planned_cluster(source)
    except API_ERRORS as error:
        return {"notes": (*notes, f"how many more pods fit is not known: {error.message}")}
    shapes = Question(manifest=options.shape).shapes(planned)
    uids = {(pod.namespace, pod.name): PodUid(pod.uid) for pod in pods}
    return {"room": room_after(planned, _resized(advice, uids), shapes)}


def _resized(
    advice: Sequence[WorkloadAdvice], uids: Mapping[tuple[str, str], PodUid]
) -> Iterator[ResizedInterface]:
    for row in advice:
        minimum = row.suggestion.min_tx_rate_mbps
        for pod in row.pods if minimum is not None else ():
            holder, reserved = pod.use.holder, pod.use.reserved_mbps
            if reserved is not None:
                yield ResizedInterface(
                    uid=uids[holder.namespace, holder.pod],
                    node=NodeName(holder.node),
                    pci=PciAddress(holder.pci),
                    reserved_mbps=reserved,
                    min_tx_rate_mbps=minimum or 0,
                )


def selected_pods(api: Documents, options: RecommendOptions) -> list[OwnedPod]:
    """List the requested pods. MalformedError if there are no such pods."""
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
    from k8s_rdma.cli.progress_bar import progress_bar

    with progress_bar() as bar:
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
    resolutions = [pod.use.coverage.resolution_s for entry in advice for pod in entry.pods]
    from_s, to_s = measured.window
    return Recommendations(
        source="prometheus" if options.prometheus.url else "nodes",
        window_s=round(to_s - from_s, 1),
        resolution_s=round(max(resolutions, default=0.0), 1),
        complete=measured.complete,
        workloads=tuple(map(workload_recommendation, advice)),
        freed=tuple(map(freed, freed_by_pf(advice))),
        notes=first_notes(measured.notes),
    )


def _require_readings(found: Recommendations) -> None:
    """Raise K8sRdmaError with the reasons if there are no readings, unless Ctrl-C ended it."""
    if not found.workloads and found.complete:
        source = "Prometheus" if found.source == "prometheus" else "the nodes"
        msg = f"no interface of these pods has readings of {source}"
        raise K8sRdmaError(msg, details="\n".join(found.notes))
