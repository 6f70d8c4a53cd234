"""`k8s-rdma rates`."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import NamespacedApiServer, OutputForm
from k8s_rdma.cli.rate_option import rate_option
from k8s_rdma.cli.usage import CommandGroup

rates_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Change reservations and caps of running pods."
)


@rates_app.callback()
def rates() -> None:
    """Change rates of running pods."""


@rates_app.command("set")
@with_bundles
def set_rates(  # noqa: PLR0913 - typer's options
    pod: Annotated[str | None, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")] = None,
    *,
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-l", metavar="LABELS", help="Pods with these labels, one by one."),
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface",
            metavar="NAME",
            help="Its name or its index, from 0; may be repeated. Default: all.",
        ),
    ] = None,
    min_mbps: Annotated[int | None, rate_option("--min", "The reservation; 0 for none.")] = None,
    max_mbps: Annotated[int | None, rate_option("--max", "The cap; 0 for none.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until the node has programmed them, not only until admitted.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For each pod.", min=0.0)
    ] = 30.0,
    output: OutputForm,
    kubeconfig: NamespacedApiServer,
) -> None:
    """Change reservation and cap of a running pod's interfaces.

    Edits the pod's annotation; the extender admits or refuses it. The exit status is 1 when a pod is refused
    them, and 2 when that is not decided in time.
    """
    from k8s_rdma.cli.rates import RatesOptions
    from k8s_rdma.cli.rates import set_rates as run

    if (pod is None) == (selector is None):
        msg = "[NAMESPACE/]NAME or --selector: one of them is needed"
        raise typer.BadParameter(msg)
    options = RatesOptions(
        pod=pod,
        selector=selector,
        interfaces=tuple(interface or ()),
        min_mbps=min_mbps,
        max_mbps=max_mbps,
        wait=wait,
        timeout_s=timeout,
        kubeconfig=kubeconfig,
        output=output,
    )
    raise typer.Exit(run(options))
