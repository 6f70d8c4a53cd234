"""The commands that diagnose, and `rates`; each imports its implementation when it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k8s_rdma.cli.api_options import ApiCommand, Kubeconfig, PodNamespace
from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection
from k8s_rdma.wire.rest import TOKENS_SECRET
from k8s_rdma.wire.views import HolderSort, Sort

if TYPE_CHECKING:
    from k8s_rdma.cli.extender_client import ExtenderAddress

Extender = Annotated[
    str | None,
    typer.Option(
        "--extender",
        metavar="URL",
        envvar="K8S_RDMA_EXTENDER",
        help="The extender's URL, or service://NAMESPACE/NAME:PORT by the API server's proxy; "
        "default http://127.0.0.1:8888, of `kubectl rdma` the chart's Service.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="The extender's bearer token.")
]
CertFile = Annotated[
    Path | None,
    typer.Option("--cert-file", metavar="FILE", help="PEM: the client certificate."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="PEM: the client certificate's key.")
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="PEM: the CA of the extender's certificate; default the system's CAs.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Trust any certificate.")]
Json = Annotated[bool, typer.Option("--json", help="Print the document.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The chart's namespace.")]
TokensSecret = Annotated[
    str,
    typer.Option(
        "--tokens-secret",
        metavar="NAME",
        help="The Secret, in the chart's namespace, with the token of its servers.",
    ),
]
DoctorJson = Annotated[bool, typer.Option("--json", help="Print a document; docs/doctor.md has its form.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 on warnings, too.")]
explain_app = typer.Typer(no_args_is_help=True, help="Explain why a pod waits, or why it is where it is.")
rates_app = typer.Typer(no_args_is_help=True, help="Change reservations and caps of running pods.")
doctor_app = typer.Typer(
    no_args_is_help=True, help="Find problems of a node or a cluster, and their remedies."
)


@explain_app.callback()
def explain() -> None:
    """Explain a decision."""


@explain_app.command("pod", cls=ApiCommand)
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    as_json: Json = False,
    namespace: PodNamespace = "",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Show where a pod is, and why each node accepts or refuses it, PF by PF.

    Queries the extender about an annotation, and the API server about ResourceClaims.
    """
    from k8s_rdma.cli.explain import ExplainOptions
    from k8s_rdma.cli.explain import explain as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
        kubeconfig=kubeconfig,
    )
    kubeconfig = replace(kubeconfig, namespace=namespace or None)
    options = ExplainOptions(kubeconfig=kubeconfig, nodes=tuple(node or ()), every=every, as_json=as_json)
    show(endpoint, pod, options)


def top(  # noqa: PLR0913 - typer's options
    *,
    one_shot: Annotated[
        bool,
        typer.Option("--once", help="Print once and exit; the default when the output is not a terminal."),
    ] = False,
    sort: Annotated[
        Sort, typer.Option(help="The order of nodes.", show_choices=True, case_sensitive=False)
    ] = Sort.RESERVED,
    holders: Annotated[
        bool, typer.Option("--holders", help="Who holds what, as `who`, in place of nodes.")
    ] = False,
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    tokens_secret: TokensSecret = TOKENS_SECRET,
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Show nodes, PFs, reservations and the pods that wait, every 2 s until Ctrl-C.

    Queries the extender, and the API server about ResourceClaims and, with --holders, RdmaNodes.
    """
    from k8s_rdma.cli.top import TopOptions
    from k8s_rdma.cli.top import top as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
        kubeconfig=kubeconfig,
        tokens_secret=tokens_secret,
    )
    options = TopOptions(
        kubeconfig=kubeconfig,
        one_shot=one_shot,
        as_json=as_json,
        sort=sort,
        holders=holders,
        namespace=namespace,
        secret=tokens_secret,
    )
    show(endpoint, options)


def forward_web(namespace: Namespace = "k8s-rdma", kubeconfig: Kubeconfig = USUAL_KUBECONFIG) -> None:
    """Show the cluster as pages: forward the port of the chart's `k8s-rdma-web` here, until Ctrl-C."""
    import shutil
    import signal
    import subprocess

    from k8s_rdma.errors import K8sRdmaError
    from k8s_rdma.web.config import DEFAULT_PORT

    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise K8sRdmaError("there is no kubectl on PATH")
    command = [kubectl, "--namespace", namespace, *kubeconfig.arguments(), "port-forward"]
    command += ["deployment/k8s-rdma-web", str(DEFAULT_PORT)]
    typer.echo(f"Open http://127.0.0.1:{DEFAULT_PORT}; Ctrl-C ends it.")
    try:
        ended = subprocess.run(command, check=False)
    except KeyboardInterrupt as interrupt:  # kubectl has it, too
        raise typer.Exit(128 + signal.SIGINT) from interrupt
    msg = f"kubectl port-forward ended with status {ended.returncode}"
    advice = "set viewers.enabled and web.enabled in the chart, and have the right to pods/portforward"
    raise K8sRdmaError(msg, details=f"{advice} (docs/web.md)")


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
        typer.Option(help="The column by which to order.", show_choices=True, case_sensitive=False),
    ] = HolderSort.NODE,
    measure: Annotated[
        bool, typer.Option("--measure", help="Wait up to 15 s for a second sample of traffic.")
    ] = False,
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    tokens_secret: TokensSecret = TOKENS_SECRET,
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
) -> None:
    """Show which pods hold interfaces, what they reserve, may use and use.

    By the RdmaNodes of the API server; interfaces' names, VFs, enforcement and traffic by the nodes' servers.
    """
    from k8s_rdma.cli.holders import HolderOptions, print_holders

    print_holders(
        HolderOptions(
            kubeconfig=kubeconfig,
            namespace=namespace,
            secret=tokens_secret,
            subject=subject,
            sort=sort,
            measure=measure,
            as_json=as_json,
        )
    )


@rates_app.callback()
def rates() -> None:
    """Change rates of running pods."""


@rates_app.command("set", cls=ApiCommand)
def set_rates(  # noqa: PLR0913 - typer's options
    pod: Annotated[str | None, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")] = None,
    *,
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-l", metavar="LABELS", help="Pods with these labels, one by one."),
    ] = None,
    namespace: PodNamespace = "",
    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface",
            metavar="NAME",
            help="Its name or its index, from 0; may be repeated. Default: all.",
        ),
    ] = None,
    min_mbps: Annotated[
        int | None, typer.Option("--min", metavar="MBPS", help="The reservation; 0 for none.", min=0)
    ] = None,
    max_mbps: Annotated[
        int | None, typer.Option("--max", metavar="MBPS", help="The cap; 0 for none.", min=0)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until the node has programmed them, not only until admitted.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For each pod.", min=0.0)
    ] = 30.0,
    as_json: Json = False,
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
) -> None:
    """Change reservation and cap of a running pod's interfaces.

    Edits the pod's annotation; the extender admits or refuses it. The exit status is 1 when a pod does not
    have the rates afterwards.
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
        kubeconfig=replace(kubeconfig, namespace=namespace or None),
        as_json=as_json,
    )
    raise typer.Exit(run(options))


@doctor_app.callback()
def doctor() -> None:
    """Show problems with evidence and remedies. Changes nothing."""


@doctor_app.command("node", cls=ApiCommand)
def doctor_node(  # noqa: PLR0913 - typer's options
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The agent's file; default as below.")
    ] = None,
    device_plugin_config: Annotated[
        Path | None, typer.Option("--device-plugin-config", metavar="FILE", help="The device plugin's file.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The node's name; default the variable NODE_NAME, or the name in the agent's file.",
        ),
    ] = None,
    kubeconfig: Annotated[
        KubeconfigSelection,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            parser=KubeconfigSelection.from_file,
            show_default=False,
            help="For the cluster's versions; default the agent's kubeconfig.",
        ),
    ] = USUAL_KUBECONFIG,
    host_root: Annotated[
        Path | None, typer.Option("--host-root", metavar="DIR", help="The node's root file system.")
    ] = None,
    server_url: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", help="The node's server; default from its file; empty for none."
        ),
    ] = None,
    device_plugin_url: Annotated[
        str | None,
        typer.Option(
            "--device-plugin", metavar="URL", help="The device plugin; default from its file; empty for none."
        ),
    ] = None,
    conf_dir: Annotated[
        str | None, typer.Option("--cni-conf-dir", metavar="DIR", help="Default from the runtime's file.")
    ] = None,
    bin_dir: Annotated[
        str | None, typer.Option("--cni-bin-dir", metavar="DIR", help="Default from the runtime's file.")
    ] = None,
    as_json: DoctorJson = False,
    strict: Strict = False,
) -> None:
    """Check this node: cards, kernel, runtime, CNI configuration, our processes, versions.

    Files that are not named are looked for in /etc/k8s-rdma. The exit status is 0 when nothing is wrong, 1
    with errors, and 2 when it could not look.
    """
    from k8s_rdma.cli.doctor import NodeOptions
    from k8s_rdma.cli.doctor import doctor_node as run

    options = NodeOptions(
        agent=config,
        node=node,
        kubeconfig=kubeconfig,
        plugin=device_plugin_config,
        host_root=host_root,
        server=server_url,
        plugin_url=device_plugin_url,
        conf_dir=conf_dir,
        bin_dir=bin_dir,
    )
    raise typer.Exit(run(options, as_json=as_json, strict=strict))


@doctor_app.command("cluster", cls=ApiCommand)
def doctor_cluster(  # noqa: PLR0913 - typer's options
    *,
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="The chart's namespace.")] = "k8s-rdma",
    scheduler_config: Annotated[
        Path | None, typer.Option("--scheduler-config", metavar="FILE", help="kube-scheduler's file.")
    ] = None,
    extender_config: Annotated[
        Path | None,
        typer.Option("--extender-config", metavar="FILE", help="The extender's file; default the chart's."),
    ] = None,
    host_root: Annotated[
        Path, typer.Option("--host-root", metavar="DIR", help="This machine's root, for kubeadm's files.")
    ] = Path("/"),
    extender: Annotated[
        str | None,
        typer.Option(
            "--extender", metavar="URL", envvar="K8S_RDMA_EXTENDER", help="Also query this extender."
        ),
    ] = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    as_json: DoctorJson = False,
    strict: Strict = False,
) -> None:
    """Check the cluster: scheduler, extender, versions, CRD, rights, policies, nodes, stuck pods.

    By the API server, with whatever credentials one has. On a control-plane node of kubeadm's the
    scheduler's configuration is found, elsewhere name it. The exit status is as that of `doctor node`.
    """
    from k8s_rdma.cli.doctor import ClusterOptions
    from k8s_rdma.cli.doctor import doctor_cluster as run

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
        kubeconfig=kubeconfig,
    )
    options = ClusterOptions(
        kubeconfig=kubeconfig,
        namespace=namespace,
        scheduler=scheduler_config,
        extender=extender_config,
        host_root=host_root,
        address=endpoint if extender else None,
    )
    raise typer.Exit(run(options, as_json=as_json, strict=strict))


def extender_address(  # noqa: PLR0913 - as many as there are options
    *,
    extender: str | None,
    token_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
    insecure: bool,
    kubeconfig: KubeconfigSelection,
    tokens_secret: str = TOKENS_SECRET,
) -> ExtenderAddress:
    """Combine the options into the extender's address."""
    from k8s_rdma.cli.extender_client import DEFAULT_URL, ExtenderAddress

    return ExtenderAddress(
        url=extender or DEFAULT_URL,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
        kubeconfig=kubeconfig,
        tokens_secret=tokens_secret,
    )
