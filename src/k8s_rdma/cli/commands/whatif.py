"""`k8s-rdma whatif`, and `snapshot`, which writes the file that it can ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import Bundle, with_bundles
from k8s_rdma.cli.options import ApiServer, ChartNamespace, OutputForm, VerdictsExtender
from k8s_rdma.cli.usage import CommandGroup
from k8s_rdma.cli.whatif_source import FROM_CLUSTER, WhatifSource
from k8s_rdma.core.types import Strategy

Manifest = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Manifests with the pods, or an annotation; -: standard input."),
]

whatif_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Answer capacity questions; changes nothing."
)


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
