"""`k8s-rdma verify`: whether rates hold on these cards, as a table, a report and an exit status."""

from __future__ import annotations

import platform
import re
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from k8s_rdma import __version__
from k8s_rdma.cli.console import require_writable
from k8s_rdma.cli.formats import CommandAnswer
from k8s_rdma.cli.tables import NONE, Column, Table, mbps
from k8s_rdma.core.verification import PfFacts, Result, Site, TrialOutcome, exit_status, verify_pf
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.kube.documents import Documents
from k8s_rdma.verify.cluster import ClusterSite, PodOptions
from k8s_rdma.verify.interruption import ENDS
from k8s_rdma.wire.verification import (
    CardReport,
    Receiver,
    VerificationReport,
    card_report,
    encode_verification,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.cli.formats import Output
    from k8s_rdma.kube.selection import KubeconfigSelection
    from k8s_rdma.verify.node import NodeSite

COULD_NOT_MEASURE = 2
"""The exit status of a run that ended before it had a result."""

_STYLES = {
    Result.PASS: "green",
    Result.FAIL: "bold red",
    Result.UNENFORCED: "cyan",
    Result.UNMEASURED: "yellow",
}
_WORDS = {Result.UNENFORCED: "not enforced", Result.UNMEASURED: "NOT MEASURED"}

_COLUMNS = (
    Column("PF"),
    Column("DRIVER", rank=4),
    Column("TRAFFIC", rank=1),
    Column("CHECK"),
    Column("RATE", right=True, rank=2),
    Column("ENFORCED BY", rank=5),
    Column("MEASURED", right=True, rank=3),
    Column("RESULT"),
    Column("MESSAGE", prose=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Options of both forms.

    pfs: names or PCI addresses; empty for all.
    cap_mbps: 0 for the default.
    report: the file.
    """

    pfs: tuple[str, ...]
    cap_mbps: int
    is_confirmed: bool
    report: Path | None


def verify_node(trials: TrialOptions, site: NodeSite, output: Output) -> int:
    """Measure on this node; return the exit status."""

    def run() -> int:
        with site:
            pfs = site.facts()
            receivers = tuple(chosen(pfs, (site.receiver_pf,)) if site.receiver_pf else ())
            receiver: Receiver = "another PF" if receivers else "same PF"
            bench = Bench(site=site, pfs=pfs, receiver=receiver, receivers=receivers)
            return run_trials(bench, trials, output)

    return _run(run)


def verify_cluster(
    trials: TrialOptions, pods: PodOptions, kubeconfig: KubeconfigSelection, output: Output
) -> int:
    """Measure between two nodes of a cluster; return the exit status."""

    def run() -> int:
        if pods.sender == pods.receiver:
            raise MalformedError("SENDER and RECEIVER are one node: use `k8s-rdma verify node` there")
        with Documents(kubeconfig) as api:
            site = ClusterSite(api, replace(pods, namespace=pods.namespace or api.namespace))
            pfs, peers = site.facts(), site.receivers()
            names = [pods.receiver_pf or pf.name for pf in chosen(pfs, trials.pfs)]
            bench = Bench(
                site=site,
                pfs=pfs,
                receiver="another node",
                receivers=tuple(chosen(peers, names)),
                nodes=(pods.sender, pods.receiver),
            )
            site.prepare()
            return run_trials(bench, trials, output)

    return _run(run)


def _run(run: Callable[[], int]) -> int:
    """Run to the end, or to one of the signals that end a command."""
    for number in ENDS:
        signal.signal(number, _interrupt)
    try:
        return run()
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"k8s-rdma: could not measure: {visible(str(error))}\n")
    except KeyboardInterrupt:
        sys.stderr.write("k8s-rdma: interrupted; everything that was made is gone\n")
    return COULD_NOT_MEASURE


def _interrupt(*_: object) -> None:
    """End the trials; further signals do not end the clean-up."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def chosen(pfs: Sequence[PfFacts], names: Sequence[str]) -> list[PfFacts]:
    """Choose PFs by name or PCI address; all without names. MalformedError if a PF does not exist."""
    by_name = {name: pf for pf in pfs for name in (pf.name, pf.pci)}
    for name in names:
        if name not in by_name:
            choices = ", ".join(pf.name for pf in pfs) or "none"
            raise MalformedError(f"PF {name}: there is no such PF with VFs for pods; the node has {choices}")
    return [by_name[name] for name in names] if names else list(pfs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The site of trials.

    pfs: of the sending node.
    receivers: further PFs that receive traffic.
    nodes: their names, which the report leaves out.
    """

    site: Site
    pfs: tuple[PfFacts, ...]
    receiver: Receiver
    receivers: tuple[PfFacts, ...] = ()
    nodes: tuple[str, ...] = ()


def run_trials(bench: Bench, options: TrialOptions, output: Output) -> int:
    """Make the trials of the chosen PFs, print the table, write the report; return the exit status."""
    require_writable(options.report, "--report")
    pfs, receivers = bench.pfs, bench.receivers
    tested = chosen(pfs, options.pfs)
    if not tested:
        raise K8sRdmaError("there is no PF with VFs for pods: see `k8s-rdma doctor node`")
    _require_consent([*tested, *receivers], options)
    results: list[tuple[PfFacts, list[TrialOutcome]]] = []
    for pf in tested:
        outcomes: list[TrialOutcome] = []
        results.append((pf, outcomes))
        for outcome in verify_pf(bench.site, pf, cap_mbps=options.cap_mbps):
            outcomes.append(outcome)
            _progress(pf, outcome)
    stand_ins = dict.fromkeys(bench.nodes, "NODE") | {
        name: "PF" for pf in (*pfs, *receivers) for name in (pf.name, pf.pci)
    }
    cards = tuple(card_report(pf, bench.receiver, outcomes, stand_ins) for pf, outcomes in results)
    report = encode_verification(_report(cards))
    output.write(
        CommandAnswer(
            document=lambda: report,
            names=(f"pf/{pf.name}" for pf, _ in results),
            show=lambda page: page.print(results_table(results)),
        )
    )
    if options.report is not None:
        _write(options.report, report)
    return exit_status([outcome for _, outcomes in results for outcome in outcomes])


def _require_consent(pfs: Sequence[PfFacts], options: TrialOptions) -> None:
    """Refuse to send at line rate beside pods, unless that was confirmed."""
    for pf in pfs:
        if pf.holders and not options.is_confirmed:
            first = ", ".join(sorted(set(pf.holders))[:3])
            msg = (
                f"PF {pf.name}: pods hold VFs ({first}), and the trials send at the link's rate beside them; "
                "what they reserve stays theirs as far as it is enforced. --yes to go on"
            )
            raise MalformedError(msg)


def _progress(pf: PfFacts, outcome: TrialOutcome) -> None:
    figure = "" if outcome.mbps is None else f", {outcome.mbps:.0f} Mb/s"
    sys.stderr.write(
        f"{visible(pf.name)}: {outcome.traffic} {outcome.check} {outcome.rate_mbps} Mb/s{figure}: "
        f"{_word(outcome.result)}\n"
    )


def _word(result: Result) -> str:
    return _WORDS.get(result, result.value.upper())


def results_table(results: Sequence[tuple[PfFacts, list[TrialOutcome]]]) -> Table:
    """Make a row of each outcome."""
    rows = Table(*_COLUMNS)
    for pf, outcomes in results:
        for outcome in outcomes:
            rows.add(
                visible(pf.name),
                visible(pf.driver),
                outcome.traffic,
                outcome.check,
                mbps(outcome.rate_mbps),
                outcome.enforced or NONE,
                NONE if outcome.mbps is None else mbps(f"{outcome.mbps:.0f}"),
                Text(_word(outcome.result), style=_STYLES[outcome.result]),
                visible(outcome.why),
            )
    return rows


def _report(cards: tuple[CardReport, ...]) -> VerificationReport:
    kernel = re.match(r"[0-9.]*[0-9]|", platform.release())  # the rest may name its builder
    return VerificationReport(version=__version__, kernel=kernel[0] if kernel else "", cards=cards)


def _write(path: Path, report: bytes) -> None:
    try:
        path.write_bytes(report)
    except OSError as error:
        raise K8sRdmaError(f"--report {path}: {error.strerror or error}") from error
    sys.stderr.write(f"k8s-rdma: read {path} through, then send it: docs/verify.md says what it holds\n")
