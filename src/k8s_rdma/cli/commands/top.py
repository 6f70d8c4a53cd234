"""`k8s-rdma top`."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import ChartServers, Extender, OutputForm, Pods
from k8s_rdma.wire.views import Sort


@with_bundles
def top(  # noqa: PLR0913 - typer's options
    *,
    one_shot: Annotated[
        bool,
        typer.Option("--once", help="Print once and exit; the default when the output is not a terminal."),
    ] = False,
    sort: Annotated[
        Sort, typer.Option(metavar="ORDER", help=f"Of nodes: {', '.join(Sort)}.", case_sensitive=False)
    ] = Sort.RESERVED,
    holders: Annotated[
        bool, typer.Option("--holders", help="Who holds what, as `who`, in place of nodes.")
    ] = False,
    output: OutputForm,
    pods: Pods,
    extender: Extender,
    chart: ChartServers,
) -> None:
    """Show nodes, PFs, reservations and the pods that wait, every 2 s until Ctrl-C.

    Queries the extender, and the API server about ResourceClaims and, with --holders, RdmaNodes. With
    --namespace it shows pods of one namespace alone; nodes show what all pods have.
    """
    from k8s_rdma.cli.top import TopOptions
    from k8s_rdma.cli.top import top as show

    options = TopOptions(pods=pods, one_shot=one_shot, output=output, sort=sort, holders=holders, chart=chart)
    show(extender, options)
