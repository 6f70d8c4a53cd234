"""`k8s-rdma recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import Bundle, with_bundles
from k8s_rdma.cli.duration_option import duration_option
from k8s_rdma.cli.options import ApiServer, ChartServers, OutputForm, Pods
from k8s_rdma.cli.prometheus_address import URL_VARIABLE, PrometheusAddress


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
