"""The options that commands share: API server, namespaces, chart, extender, and the form of the output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import Bundle
from k8s_rdma.cli.extender_address import (
    SERVICE_SCHEME,
    URL_VARIABLE,
    VIEWS,
    VIEWS_URL,
    ExtenderAddress,
)
from k8s_rdma.cli.formats import Format, Output
from k8s_rdma.config.addresses import EXTENDER_URL, NAMESPACE
from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection
from k8s_rdma.wire.tokens import TOKENS_SECRET

VerdictsExtender = Annotated[
    str | None,
    typer.Option(
        "--extender",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Ask this extender which nodes it refuses. Default: by the nodes' Leases.",
    ),
]
"""The extender, if it is asked about nodes alone."""

RunDir = Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The agent's runDir.")]

Grace = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0, help="Time between removal of network and executable, for running calls."
    ),
]


def _api_server(
    *,
    kubeconfig: Annotated[
        KubeconfigSelection,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            parser=KubeconfigSelection.from_file,
            show_default=False,
            help="Default: KUBECONFIG, ~/.kube/config, the service account.",
        ),
    ] = USUAL_KUBECONFIG,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The context of the kubeconfig. Default: current-context."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The cluster of the kubeconfig. Default: the context's."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="The user of the kubeconfig. Default: the context's.")
    ] = None,
) -> KubeconfigSelection:
    return replace(kubeconfig, context=context, cluster=cluster, user=user)


ApiServer = Annotated[KubeconfigSelection, Bundle(_api_server)]
"""The API server that a command asks, and its user, as kubectl has them."""


def _in_namespace(
    *,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            show_default=False,
            help="The namespace of pods that are named without one. Default: the context's.",
        ),
    ] = "",
    kubeconfig: ApiServer,
) -> KubeconfigSelection:
    return replace(kubeconfig, namespace=namespace or None)


NamespacedApiServer = Annotated[KubeconfigSelection, Bundle(_in_namespace)]
"""`ApiServer` with `--namespace`, for commands that are about pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScope:
    """The pods that a command is about.

    kubeconfig: with the namespace, if one is named.
    all_namespaces: whether pods of all namespaces are meant.
    """

    kubeconfig: KubeconfigSelection
    all_namespaces: bool = False


def _in_namespaces(
    *,
    kubeconfig: NamespacedApiServer,
    all_namespaces: Annotated[
        bool,
        typer.Option("--all-namespaces", "-A", help="Pods of all namespaces, also with --namespace."),
    ] = False,
) -> PodScope:
    if all_namespaces:
        kubeconfig = replace(kubeconfig, namespace=None)
    return PodScope(kubeconfig=kubeconfig, all_namespaces=all_namespaces)


Pods = Annotated[PodScope, Bundle(_in_namespaces)]
"""`NamespacedApiServer` with `--all-namespaces`, for commands that list pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The namespace of the chart. secret: the name of the Secret with the token of its servers."""

    namespace: str = NAMESPACE
    secret: str = TOKENS_SECRET


def _chart_namespace(
    *,
    chart_namespace: Annotated[
        str, typer.Option("--chart-namespace", metavar="NAME", help="The namespace of the chart.")
    ] = NAMESPACE,
) -> Chart:
    return Chart(namespace=chart_namespace)


ChartNamespace = Annotated[Chart, Bundle(_chart_namespace)]


def _chart(
    *,
    chart: ChartNamespace,
    tokens_secret: Annotated[
        str,
        typer.Option(
            "--tokens-secret",
            metavar="NAME",
            help="The Secret, in the chart's namespace, with the token of its servers.",
        ),
    ] = TOKENS_SECRET,
) -> Chart:
    return replace(chart, secret=tokens_secret)


ChartServers = Annotated[Chart, Bundle(_chart)]
"""The chart, for commands that read its servers."""


def _extender(  # noqa: PLR0913 - typer's options
    *,
    extender: Annotated[
        str | None,
        typer.Option(
            "--extender",
            metavar="URL",
            envvar=URL_VARIABLE,
            help="The extender's URL, or service://NAMESPACE/NAME:PORT by the API server's proxy. Default: "
            f"{EXTENDER_URL}, of `kubectl rdma` the chart's Service.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="The extender's bearer token.")
    ] = None,
    cert_file: Annotated[
        Path | None, typer.Option("--cert-file", metavar="FILE", help="PEM: the client certificate.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="PEM: the client certificate's key."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="PEM: the CA of the extender's certificate. Default: the system's CAs.",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Trust any certificate.")] = False,
    kubeconfig: ApiServer,
    chart: ChartServers,
) -> ExtenderAddress:
    of_chart = f"{SERVICE_SCHEME}{chart.namespace}/{VIEWS}"
    return ExtenderAddress(
        url=of_chart if extender == VIEWS_URL else extender or EXTENDER_URL,
        is_named=bool(extender),
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
        kubeconfig=kubeconfig,
        tokens_secret=chart.secret,
    )


Extender = Annotated[ExtenderAddress, Bundle(_extender)]
"""The extender, if it is asked by its URL or by the API server's proxy."""


def _form_alone(
    *,
    output: Annotated[
        Format | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FORMAT",
            case_sensitive=True,
            help="wide: every column, whole; json, yaml: the document; name: names alone.",
        ),
    ] = None,
) -> Output:
    return Output(output)


FormAlone = Annotated[Output, Bundle(_form_alone)]
"""The form of an answer, for a command that has a `--json` of another meaning."""


def _output(
    *,
    output: FormAlone,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> Output:
    if as_json and output.format not in (None, Format.JSON):
        msg = f"--json and --output {output.format} do not go together"
        raise typer.BadParameter(msg)
    return Output(Format.JSON) if as_json else output


OutputForm = Annotated[Output, Bundle(_output)]
"""The form of an answer."""
