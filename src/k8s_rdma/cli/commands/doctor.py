"""`k8s-rdma doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import ApiServer, ChartNamespace, Extender, OutputForm
from k8s_rdma.cli.usage import CommandGroup

Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 on warnings, too.")]

doctor_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Find problems of a node or a cluster, and their remedies."
)


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
    control-plane node of kubeadm's the scheduler's configuration is found, elsewhere name it. Exits as
    `doctor node` does.
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
