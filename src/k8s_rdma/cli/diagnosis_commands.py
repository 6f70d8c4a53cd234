"""The commands that diagnose, and `rates`; each imports its implementation when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import (
    ApiServer,
    ChartNamespace,
    ChartServers,
    Extender,
    NamespacedApiServer,
    OutputForm,
    Pods,
)
from k8s_rdma.cli.rate_option import rate_option
from k8s_rdma.cli.usage import CommandGroup
from k8s_rdma.wire.views import HolderSort, Sort

Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 on warnings, too.")]
explain_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Explain why a pod waits, or why it is where it is."
)
rates_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Change reservations and caps of running pods."
)
doctor_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Find problems of a node or a cluster, and their remedies."
)


@explain_app.callback()
def explain() -> None:
    """Explain a decision."""


@explain_app.command("pod")
@with_bundles
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    output: OutputForm,
    kubeconfig: NamespacedApiServer,
    extender: Extender,
) -> None:
    """Show where a pod is, and why each node accepts or refuses it, PF by PF.

    Queries the extender about an annotation, and the API server about ResourceClaims.
    """
    from k8s_rdma.cli.explain import ExplainOptions
    from k8s_rdma.cli.explain import explain as show

    show(
        extender,
        pod,
        ExplainOptions(kubeconfig=kubeconfig, nodes=tuple(node or ()), every=every, output=output),
    )


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


@with_bundles
def forward_web(*, chart: ChartNamespace, kubeconfig: ApiServer) -> None:
    """Show the cluster as pages: forward the port of the chart's `k8s-rdma-web` here, until Ctrl-C."""
    import shutil
    import signal
    import subprocess

    from k8s_rdma.config.addresses import WEB_PORT
    from k8s_rdma.errors import K8sRdmaError

    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise K8sRdmaError("there is no kubectl on PATH")
    command = [kubectl, "--namespace", chart.namespace, *kubeconfig.arguments(), "port-forward"]
    command += ["deployment/k8s-rdma-web", str(WEB_PORT)]
    typer.echo(f"Open http://127.0.0.1:{WEB_PORT}; Ctrl-C ends it.")
    try:
        ended = subprocess.run(command, check=False)
    except KeyboardInterrupt as interrupt:  # kubectl has it, too
        raise typer.Exit(128 + signal.SIGINT) from interrupt
    msg = f"kubectl port-forward ended with status {ended.returncode}"
    advice = "set viewers.enabled and web.enabled in the chart, and have the right to pods/portforward"
    raise K8sRdmaError(msg, details=f"{advice} (docs/web.md)")


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


@doctor_app.callback()
def doctor() -> None:
    """Show problems with evidence and remedies. Changes nothing."""


@doctor_app.command("node")
@with_bundles
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
    strict: Strict = False,
    output: OutputForm,
    kubeconfig: ApiServer,
) -> None:
    """Check this node: cards, kernel, runtime, CNI configuration, our processes, versions.

    Files that are not named are looked for in /etc/k8s-rdma. Without --kubeconfig the cluster's versions are
    read with the agent's credentials. The exit status is 0 when nothing is wrong, 1 with errors, and 2 when
    it could not look.
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
    raise typer.Exit(run(options, output, strict=strict))


@doctor_app.command("cluster")
@with_bundles
def doctor_cluster(  # noqa: PLR0913 - typer's options
    *,
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
    strict: Strict = False,
    output: OutputForm,
    chart: ChartNamespace,
    kubeconfig: ApiServer,
    extender: Extender,
) -> None:
    """Check the cluster: scheduler, extender, versions, CRD, rights, policies, nodes, stuck pods.

    By the API server, with whatever credentials one has, and by the extender if --extender names it. On a
    control-plane node of kubeadm's the scheduler's configuration is found, elsewhere name it. The exit status
    is as that of `doctor node`.
    """
    from k8s_rdma.cli.doctor import ClusterOptions
    from k8s_rdma.cli.doctor import doctor_cluster as run

    options = ClusterOptions(
        kubeconfig=kubeconfig,
        namespace=chart.namespace,
        scheduler=scheduler_config,
        extender=extender_config,
        host_root=host_root,
        address=extender if extender.is_named else None,
    )
    raise typer.Exit(run(options, output, strict=strict))
