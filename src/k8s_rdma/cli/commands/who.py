"""`k8s-rdma who`."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import ChartServers, OutputForm, Pods
from k8s_rdma.wire.views import HolderSort


@with_bundles
def list_holders(  # noqa: PLR0913 - typer's options
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE|PF|POD]", help="Default: all. Also NODE/PF, NAMESPACE/POD, or a PF's PCI address."
        ),
    ] = None,
    *,
    sort: Annotated[
        HolderSort,
        typer.Option(metavar="COLUMN", help=f"{', '.join(HolderSort)}.", case_sensitive=False),
    ] = HolderSort.NODE,
    measure: Annotated[
        bool, typer.Option("--measure", help="Wait up to 15 s for a second sample of traffic.")
    ] = False,
    output: OutputForm,
    pods: Pods,
    chart: ChartServers,
) -> None:
    """Show which pods hold interfaces, what they reserve, may use and use.

    By the RdmaNodes of the API server; interfaces' names, VFs, enforcement and traffic by the nodes' servers.
    A pod that is named without a namespace is one of --namespace. Without a name, and of a node or PF, pods
    of all namespaces are shown unless --namespace names one.
    """
    from k8s_rdma.cli.holders import HolderOptions, print_holders

    print_holders(
        HolderOptions(pods=pods, chart=chart, subject=subject, sort=sort, measure=measure, output=output)
    )
