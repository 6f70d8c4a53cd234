"""`k8s-rdma snapshot` and `k8s-rdma whatif`: capacity questions, answered in tables or as JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.text import Text

from k8s_rdma.cli.console import for_terminal
from k8s_rdma.cli.extender_address import ExtenderAddress
from k8s_rdma.cli.extender_client import extender_reader, node_verdicts
from k8s_rdma.cli.formats import CommandAnswer, indented
from k8s_rdma.cli.omissions import MOST_ROWS, listed, print_omitted
from k8s_rdma.cli.tables import NONE, Column, Table, mbps
from k8s_rdma.cli.whatif_source import FROM_CLUSTER, WhatifSource
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.planning.anonymity import anonymised
from k8s_rdma.planning.manifest_workloads import load_workloads
from k8s_rdma.planning.planned_cluster import PlannedCluster, Workload, workload_of
from k8s_rdma.planning.snapshot import Snapshot, decode_snapshot, encode_snapshot, snapshot_of_cluster
from k8s_rdma.planning.whatif import (
    ClusterChanges,
    Eviction,
    FitAnswer,
    HeadroomAnswer,
    Move,
    PlannedFailures,
    WithAnswer,
    WithoutAnswer,
    fit,
    headroom,
    lose,
    with_changes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.cli.console import Page
    from k8s_rdma.cli.formats import Output

__all__ = [
    "ClusterChanges",
    "PlannedFailures",
    "Question",
    "answer_fit",
    "answer_headroom",
    "answer_with",
    "answer_without",
    "planned_cluster",
    "write_snapshot",
]

DOES_NOT_FIT = 1
MAX_SNAPSHOT_BYTES = 512 << 20
"""The limit for the file of a snapshot: that of 5,000 nodes with 100,000 pods has a tenth."""

CapacityAnswer = TypeVar("CapacityAnswer", FitAnswer, HeadroomAnswer, WithAnswer, WithoutAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The pods that a question is about. manifest: if there is one; `-` is standard input."""

    manifest: Path | None = None
    count: int | None = None

    def workloads(self, planned: PlannedCluster) -> tuple[Workload, ...]:
        """Read the manifest, with priorities of the cluster; keys that are not judged are noted.

        MalformedError names the part that cannot be read.
        """
        found = load_workloads(self.manifest, self.count, planned.priority_classes)
        planned.unreadable += found.warnings
        return found.workloads

    def shapes(self, planned: PlannedCluster) -> tuple[Workload, ...]:
        """Read the manifest as `workloads`, for questions in which the number of pods does not matter."""
        return replace(self, count=1).workloads(planned)


def write_snapshot(source: WhatifSource, output: Output, *, anonymous: bool) -> None:
    """Write a snapshot of the cluster to standard output."""
    snapshot = _of_cluster(source)
    document = encode_snapshot(anonymised(snapshot) if anonymous else snapshot)
    names = [f"node/{node.name}" for node in snapshot.nodes]
    output.write(
        CommandAnswer(
            document=lambda: document, names=names, show=lambda _: sys.stdout.write(document.decode())
        )
    )
    for sentence in snapshot.unreadable:
        sys.stderr.write(f"k8s-rdma: warning: {visible(sentence)}\n")


def answer_fit(source: WhatifSource, question: Question, *, preempt: bool, output: Output) -> int:
    """Print whether pods fit, by default those that wait; return the exit status."""

    def answer(planned: PlannedCluster) -> FitAnswer:
        workloads = question.workloads(planned) or list(_pending(planned))
        return fit(planned, workloads, preempt=preempt)

    return _answer(source, answer, _show_fit, output=output)


def answer_headroom(source: WhatifSource, question: Question, *, output: Output) -> int:
    """Print how many more pods fit; return the exit status."""
    return _answer(
        source,
        lambda planned: headroom(planned, question.shapes(planned)),
        _show_headroom,
        output=output,
    )


def answer_without(source: WhatifSource, losses: PlannedFailures, *, output: Output) -> int:
    """Print where pods go that lose their place; return the exit status."""
    return _answer(source, lambda planned: lose(planned, losses), _show_without, output=output)


def answer_with(source: WhatifSource, changes: ClusterChanges, question: Question, *, output: Output) -> int:
    """Print how changes alter the room for pods; return the exit status."""
    return _answer(
        source,
        lambda planned: with_changes(planned, changes, question.shapes(planned)),
        _show_with,
        output=output,
    )


def _answer(
    source: WhatifSource,
    ask: Callable[[PlannedCluster], CapacityAnswer],
    show: Callable[[CapacityAnswer, Page], None],
    *,
    output: Output,
) -> int:
    found = ask(planned_cluster(source))

    def show_all(page: Page) -> None:
        shown = for_terminal(found)
        show(shown, page)
        for sentence in shown.unreadable[:MOST_ROWS]:
            page.print(f"warning: {sentence}")
        page.print(shown.not_modelled, style="dim")

    output.write(
        CommandAnswer(
            document=lambda: indented(found),
            names=_names(found),
            show=show_all,
        )
    )
    return DOES_NOT_FIT if not getattr(found, "fits", True) else 0


def _names(answer: FitAnswer | HeadroomAnswer | WithAnswer | WithoutAnswer) -> Iterator[str]:
    """Yield the names in the first column of the answer's table."""
    match answer:
        case FitAnswer():
            yield from (found.name for found in answer.workloads)
        case WithoutAnswer():
            yield from (move.pod for move in answer.moves)
        case HeadroomAnswer() | WithAnswer():
            yield from (found.shape for found in answer.shapes)


def planned_cluster(source: WhatifSource) -> PlannedCluster:
    """Read the cluster that a question is about. MalformedError; ApiRefusedError and the like."""
    if source.origin == FROM_CLUSTER:
        return PlannedCluster.from_snapshot(_of_cluster(source))
    try:
        data = read_named_file(source.origin, MAX_SNAPSHOT_BYTES)
    except OSError as error:
        msg = f"--from {source.origin}: {error.strerror}"
        raise MalformedError(msg) from error
    return PlannedCluster.from_snapshot(decode_snapshot(data, source.origin))


def _of_cluster(source: WhatifSource) -> Snapshot:
    """Take a snapshot; a missing right is an error with its remedy."""
    verdicts, why = _verdicts(source)
    try:
        snapshot = snapshot_of_cluster(source.kubeconfig, source.namespace, verdicts)
        unreadable = (*snapshot.unreadable, *filter(None, [why]))
        return msgspec.structs.replace(snapshot, unreadable=unreadable)
    except ApiRefusedError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        msg = (
            f"{error.message}; the chart's ClusterRole k8s-rdma-planner has this right; without it, have "
            "someone run `k8s-rdma snapshot --anonymous`, and use `whatif --from FILE`"
        )
        raise ApiRefusedError(msg, status=error.status) from error


def _verdicts(source: WhatifSource) -> tuple[Mapping[str, str] | None, str]:
    """Ask the extender, if there is one, for its reasons to refuse nodes, or say why they are unknown."""
    if source.extender is None:
        return None, ""
    lacking = "nodes are judged by their Leases, and clocks that differ mislead that"
    try:
        with extender_reader(ExtenderAddress(url=source.extender, kubeconfig=source.kubeconfig)) as extender:
            found = node_verdicts(extender)
    except K8sRdmaError as error:
        return None, f"{error.message}; {lacking}"
    return found, f"the extender at {source.extender} is starting; {lacking}" if found is None else ""


def _pending(planned: PlannedCluster) -> Iterable[Workload]:
    """Yield the pods that wait; those that cannot be read are noted."""
    for pod in planned.pending():
        try:
            yield workload_of(pod)
        except MalformedError as error:
            planned.unreadable += (f"pod {pod.namespace}/{pod.name}: {error.message}",)


def _show_fit(answer: FitAnswer, page: Page) -> None:
    if not answer.workloads:
        page.print("No pod waits for interfaces.")
        return
    number = sum(found.count for found in answer.workloads)
    homeless = number - sum(found.placed for found in answer.workloads)
    verdict = "All pods fit." if answer.fits else f"Not all pods fit: no place for {homeless} of {number}."
    rows = Table(
        *(Column("WORKLOAD"), Column("PODS", right=True), Column("FIT", right=True)),
        *(Column("NODES", prose=True, rank=1), Column("MESSAGE", prose=True)),
    )
    for found in sorted(answer.workloads, key=lambda found: found.fits)[:MOST_ROWS]:
        nodes = listed([f"{node}: {pods}" for node, pods in found.nodes.items()])
        obstacles = listed([f"{count(nodes, 'node')}: {why}" for why, nodes in found.obstacles.items()])
        style = "" if found.fits else "red"
        rows.add(found.name, str(found.count), Text(str(found.placed), style), nodes, obstacles)
    page.print(verdict, rows, sep="\n")
    print_omitted(len(answer.workloads), page)
    for why in dict.fromkeys(found.no_eviction for found in answer.workloads if found.no_eviction):
        page.print(f"No pod is evicted for those that do not fit: {why}.")
    if answer.evictions:
        page.print()
        _show_moves(answer.evictions, "be evicted", page)


def _show_moves(moves: Sequence[Move], verb: str, page: Page) -> None:
    """Show pods that lose their place; those that do not fit on any node come first."""
    homeless = sum(not move.to for move in moves)
    elsewhere = len(moves) - homeless
    fates = f"{elsewhere} {'fits' if elsewhere == 1 else 'fit'} elsewhere, {homeless} nowhere"
    verdict = f"{count(len(moves), 'pod')} would {verb}: {fates}."
    with_reasons = [move for move in moves if isinstance(move, Eviction)]
    reasons = (Column("PRIORITY", right=True, rank=2), Column("FOR", rank=1)) if with_reasons else ()
    rows = Table(
        *(Column("POD"), Column("NODE", rank=3), Column("NEW NODE")), *reasons, Column("MESSAGE", prose=True)
    )
    for move in sorted(moves, key=lambda move: bool(move.to))[:MOST_ROWS]:
        reason = (str(move.priority), move.workload) if isinstance(move, Eviction) else ()
        rows.add(move.pod, move.node, move.to or Text(NONE, "red"), *reason, move.why)
    page.print(verdict, rows, sep="\n")
    print_omitted(len(moves), page)


def _show_headroom(answer: HeadroomAnswer, page: Page) -> None:
    numbers = ("PODS", "NODES", "MOST ON A NODE")
    rows = Table(Column("SHAPE"), *(Column(heading, right=True) for heading in numbers))
    for room in answer.shapes:
        rows.add(room.shape, str(room.pods), str(room.nodes), str(room.most_on_a_node))
    page.print("Pods that still fit, of each shape by itself:", rows, sep="\n")
    if answer.stranded:
        stranded_mbps, vfs = (sum(getattr(pf, key) for pf in answer.stranded) for key in ("mbps", "vfs"))
        page.print(f"\nStranded: {stranded_mbps} Mb/s without VFs, {vfs} VFs without bandwidth\n")
        largest = sorted(answer.stranded, key=lambda pf: (-pf.mbps, -pf.vfs, pf.node, pf.pf))
        parts = ("BANDWIDTH WITHOUT VFS", "VFS WITHOUT BANDWIDTH")
        rows = Table(Column("NODE"), Column("PF"), *(Column(heading, right=True) for heading in parts))
        for pf in largest[:MOST_ROWS]:
            rows.add(pf.node, pf.pf, mbps(pf.mbps) if pf.mbps else NONE, str(pf.vfs or NONE))
        page.print(rows)
        print_omitted(len(answer.stranded), page)


def _show_without(answer: WithoutAnswer, page: Page) -> None:
    if answer.moves:
        _show_moves(answer.moves, "have to move", page)
    else:
        page.print("No pod would have to move.")


def _show_with(answer: WithAnswer, page: Page) -> None:
    numbers = ("NOW", "THEN", "DIFFERENCE")
    rows = Table(Column("SHAPE"), *(Column(heading, right=True) for heading in numbers))
    for found in answer.shapes:
        rows.add(found.shape, str(found.now), str(found.then), f"{found.then - found.now:+d}")
    page.print("Pods that still fit, of each shape by itself:", rows, sep="\n")
    for sentence in answer.overcommitted[:MOST_ROWS]:
        page.print(f"beyond what there would be: {sentence}", style="red")
    print_omitted(len(answer.overcommitted), page)
