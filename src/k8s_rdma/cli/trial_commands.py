"""The commands that measure and plan; each imports its implementation when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import Bundle, with_bundles
from k8s_rdma.cli.duration_option import duration_option
from k8s_rdma.cli.options import (
    ApiServer,
    ChartNamespace,
    ChartServers,
    NamespacedApiServer,
    OutputForm,
    Pods,
    RunDir,
    VerdictsExtender,
)
from k8s_rdma.cli.prometheus_address import URL_VARIABLE, PrometheusAddress
from k8s_rdma.cli.rate_option import rate_option
from k8s_rdma.cli.usage import CommandGroup
from k8s_rdma.cli.whatif_source import FROM_CLUSTER, WhatifSource
from k8s_rdma.core.node_paths import CNI_BIN_DIR, RUN_DIR
from k8s_rdma.core.types import Strategy

Manifest = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Manifests with the pods, or an annotation; -: standard input."),
]

whatif_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Answer capacity questions; changes nothing."
)

verify_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Measure whether reservations and caps hold on these cards."
)
Pf = Annotated[
    list[str] | None,
    typer.Option("--pf", metavar="PF", help="A PF's name or PCI address; may be repeated. Default: all."),
]
Cap = Annotated[int, rate_option("--cap", "The cap; 0 for a tenth of the link.")]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", help="The time of each measurement.", min=1.0, max=60.0)
]
Yes = Annotated[bool, typer.Option("--yes", help="Also where pods hold VFs of these PFs.")]
VerifyResult = Annotated[Path, typer.Option("--result", metavar="FILE")]
VerifyReport = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write a report (JSON) to send.")
]


def _source(
    *,
    origin: Annotated[
        str,
        typer.Option("--from", metavar="cluster|FILE", help="The cluster, or a file that `snapshot` wrote."),
    ] = FROM_CLUSTER,
    chart: ChartNamespace,
    kubeconfig: ApiServer,
    extender: VerdictsExtender = None,
) -> WhatifSource:
    return WhatifSource(origin=origin, kubeconfig=kubeconfig, namespace=chart.namespace, extender=extender)


Source = Annotated[WhatifSource, Bundle(_source)]
"""The cluster that a capacity question is about."""


def _percent(text: object) -> float:
    """Parse a percentage; the option's default comes as a number."""
    try:
        found = float(str(text).removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100:
        msg = f"{text}: wanted a part of 0 to 100, such as 5%"
        raise typer.BadParameter(msg)
    return found


@with_bundles
def snapshot(
    *,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Replace names of nodes, pods and namespaces, and MACs.")
    ] = False,
    output: OutputForm,
    chart: ChartNamespace,
    kubeconfig: ApiServer,
    extender: VerdictsExtender = None,
) -> None:
    """Write nodes, pods and limits as a file: for `whatif`, and for bug reports."""
    from k8s_rdma.cli import whatif

    source = WhatifSource(kubeconfig=kubeconfig, namespace=chart.namespace, extender=extender)
    whatif.write_snapshot(source, output, anonymous=anonymous)


def _prometheus(
    *,
    prometheus: Annotated[
        str,
        typer.Option(
            "--prometheus",
            metavar="URL",
            envvar=URL_VARIABLE,
            show_default=False,
            help="Prometheus' URL, or service://NAMESPACE/NAME:PORT by the API server's proxy.",
        ),
    ] = "",
    prometheus_token_file: Annotated[
        Path | None,
        typer.Option("--prometheus-token-file", metavar="FILE", help="The bearer token that it demands."),
    ] = None,
    prometheus_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--prometheus-ca-file",
            metavar="FILE",
            help="PEM: the CA of its certificate. Default: the system's.",
        ),
    ] = None,
    kubeconfig: ApiServer,
) -> PrometheusAddress:
    return PrometheusAddress(
        url=prometheus,
        token_file=prometheus_token_file,
        ca_file=prometheus_ca_file,
        kubeconfig=kubeconfig,
    )


Prometheus = Annotated[PrometheusAddress, Bundle(_prometheus)]
"""Prometheus, if it is named."""


@with_bundles
def recommend(  # noqa: PLR0913 - typer's options
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[POD|WORKLOAD]", help="Default: all. Also pod/NAME, or KIND/NAME of the pods' owner."
        ),
    ] = None,
    *,
    window: Annotated[
        float, duration_option("--window", "The time that Prometheus is asked about.")
    ] = 604_800,
    sample: Annotated[
        float, duration_option("--for", "Without Prometheus: for how long nodes are read.")
    ] = 600,
    shape: Annotated[
        Path | None,
        typer.Option(
            "--shape", metavar="FILE", help="Also count how many more of these pods fit; as of `whatif`."
        ),
    ] = None,
    apply_dry_run: Annotated[
        bool,
        typer.Option(
            "--apply-dry-run", help="Print annotations and claim templates with the suggestions alone."
        ),
    ] = False,
    output: OutputForm,
    pods: Pods,
    prometheus: Prometheus,
    chart: ChartServers,
) -> None:
    """Suggest reservations and caps by what pods sent, with the reasons. Changes nothing.

    By Prometheus, or by the nodes' servers for as long as the command runs; Ctrl-C then ends it with the
    figures until then. The exit status is 1 if a pod got less than it reserves although there was demand, or
    was at its cap all the time.
    """
    from k8s_rdma.cli.recommend import RecommendOptions
    from k8s_rdma.cli.recommend import recommend as run

    options = RecommendOptions(
        pods=pods,
        chart=chart,
        subject=subject,
        prometheus=prometheus,
        window_s=window,
        sample_s=sample,
        shape=shape,
        requests_only=apply_dry_run,
        output=output,
    )
    raise typer.Exit(run(options))


@whatif_app.command("fit")
@with_bundles
def whatif_fit(
    file: Manifest = None,
    *,
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=0, help="Pods of each workload; default: the manifest's."),
    ] = None,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Evict pods of lower priority, as kube-scheduler would.")
    ] = False,
    output: OutputForm,
    source: Source,
) -> None:
    """Report whether pods fit, and where; without FILE the pods that wait. Status 1 when they do not."""
    from k8s_rdma.cli import whatif

    question = whatif.Question(manifest=file, count=count)
    raise typer.Exit(whatif.answer_fit(source, question, preempt=preempt, output=output))


@whatif_app.command("headroom")
@with_bundles
def whatif_headroom(
    file: Manifest = None,
    *,
    output: OutputForm,
    source: Source,
) -> None:
    """Count how many more pods fit, without FILE of common shapes; and capacity that is stranded."""
    from k8s_rdma.cli import whatif

    raise typer.Exit(whatif.answer_headroom(source, whatif.Question(manifest=file), output=output))


@whatif_app.command("without")
@with_bundles
def whatif_without(
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node; may be repeated.")
    ] = None,
    pf: Annotated[
        list[str] | None, typer.Option("--pf", metavar="NODE/PF", help="This PF; may be repeated.")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="NODE/PF", help="The link of this PF; may be repeated."),
    ] = None,
    output: OutputForm,
    source: Source,
) -> None:
    """Show where pods go when nodes, PFs or links fail. Status 1 when one of them fits nowhere."""
    from k8s_rdma.cli import whatif

    if not (node or pf or link):
        msg = "name what fails: --node, --pf or --link"
        raise typer.BadParameter(msg)
    losses = whatif.PlannedFailures(nodes=tuple(node or ()), pfs=tuple(pf or ()), links=tuple(link or ()))
    raise typer.Exit(whatif.answer_without(source, losses, output=output))


@whatif_app.command("with")
@with_bundles
def whatif_with(  # noqa: PLR0913 - typer's options
    file: Manifest = None,
    *,
    vfs: Annotated[
        int | None,
        typer.Option(
            "--vfs", metavar="N", min=0, max=1024, help="VFs of each PF that has VFs for annotations."
        ),
    ] = None,
    headroom: Annotated[
        float,
        typer.Option("--headroom", parser=_percent, metavar="PERCENT", help="Of each link stays unreserved."),
    ] = 0,
    strategy: Annotated[
        Strategy | None,
        typer.Option(metavar="NAME", help=f"Another strategy of the extender: {', '.join(Strategy)}."),
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=0, max=10_000, help="New nodes; needs --like.")
    ] = 0,
    like: Annotated[str, typer.Option("--like", metavar="NAME", help="The node that new ones equal.")] = "",
    output: OutputForm,
    source: Source,
) -> None:
    """Compare how many more pods fit with changes. Status 1 when pods hold more than there would be."""
    from k8s_rdma.cli import whatif

    if bool(nodes) != bool(like):
        msg = "--nodes and --like go together: a number, and the name of a node"
        raise typer.BadParameter(msg)
    if vfs is None and not headroom and strategy is None and not nodes:
        msg = "name a change: --vfs, --headroom, --strategy, or --nodes and --like"
        raise typer.BadParameter(msg)
    changes = whatif.ClusterChanges(
        vfs=vfs, headroom_percent=headroom, strategy=strategy, nodes=nodes, like=like
    )
    raise typer.Exit(whatif.answer_with(source, changes, whatif.Question(manifest=file), output=output))


@verify_app.callback()
def verify() -> None:
    """Measure whether reservations and caps hold. Sends at the links' rates."""


@verify_app.command("node")
@with_bundles
def verify_node(  # noqa: PLR0913 - typer's options
    *,
    pf: Pf = None,
    receiver_pf: Annotated[
        str | None,
        typer.Option(metavar="PF", help="Receive on this PF, over the wire. Default: on the sending one."),
    ] = None,
    cap: Cap = 0,
    seconds: Seconds = 4.0,
    soft_roce: Annotated[
        bool, typer.Option("--soft-roce", help="Make soft-RoCE devices where VFs have none of their own.")
    ] = False,
    yes: Yes = False,
    report: VerifyReport = None,
    run_dir: RunDir = Path(RUN_DIR),
    plugin: Annotated[Path, typer.Option("--plugin", metavar="FILE", help="The CNI executable.")] = Path(
        CNI_BIN_DIR, "k8s-rdma-cni"
    ),
    output: OutputForm,
) -> None:
    """Measure between VFs of this node, without Kubernetes.

    Needs root, a running agent that takes pods without placements, iproute2 and util-linux; perftest for
    verbs. The exit status is 0 when every rate holds, 1 when one does not, and 2 when one could not be
    measured.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_node as run
    from k8s_rdma.verify.node import NodeSite

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    site = NodeSite(
        run_dir=run_dir, plugin=plugin, seconds=seconds, receiver_pf=receiver_pf, soft_roce=soft_roce
    )
    raise typer.Exit(run(trials, site, output))


@verify_app.command("cluster")
@with_bundles
def verify_cluster(  # noqa: PLR0913 - typer's options
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The node whose PFs are verified.")],
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The node that receives.")],
    *,
    pf: Pf = None,
    receiver_pf: Annotated[
        str | None,
        typer.Option(metavar="PF", help="The receiving PF's name. Default: that of the sending one."),
    ] = None,
    cap: Cap = 0,
    seconds: Seconds = 4.0,
    yes: Yes = False,
    report: VerifyReport = None,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="An image of k8s-rdma. Default: that of SENDER's agent.")
    ] = "",
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="The pods' scheduler, where no policy adds it.")
    ] = "",
    output: OutputForm,
    chart: ChartNamespace,
    kubeconfig: NamespacedApiServer,
) -> None:
    """Measure between pods on two nodes, over the wire.

    Makes up to four pods at a time, and deletes them. The exit status is as that of `verify node`.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_cluster as run
    from k8s_rdma.verify.cluster import PodOptions

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    pods = PodOptions(
        sender=sender,
        receiver=receiver,
        receiver_pf=receiver_pf,
        namespace=kubeconfig.namespace or "",
        chart_namespace=chart.namespace,
        image=image,
        scheduler=scheduler,
        seconds=seconds,
    )
    raise typer.Exit(run(trials, pods, kubeconfig, output))


@verify_app.command("receive", hidden=True)
def verify_receive(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    result: VerifyResult,
) -> None:
    """Receive in a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import receive_in_pod

    raise typer.Exit(receive_in_pod(session, result))


@verify_app.command("send", hidden=True)
def verify_send(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    flow: Annotated[int, typer.Argument(min=0)],
    address: Annotated[str, typer.Argument()],
    result: VerifyResult,
) -> None:
    """Send from a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import send_from_pod

    raise typer.Exit(send_from_pod(session, flow, address, result))
