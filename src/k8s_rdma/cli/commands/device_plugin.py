"""`k8s-rdma device-plugin`, with the options of the programs that it replaces."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma import __version__
from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, PrintSchema
from k8s_rdma.cli.processes import load_without_extras, run_device_plugin

HUSTCAT = "Options of hustcat/k8s-rdma-device-plugin"
MELLANOX = "Options of Mellanox/k8s-rdma-shared-dev-plugin"


def device_plugin(  # noqa: PLR0913 - typer's options
    config: ConfigFile = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="The node's name in Kubernetes, for events.")
    ] = None,
    *,
    pod_uid: Annotated[
        str | None, typer.Option(metavar="UID", help="The UID of its pod, for claims.uid.")
    ] = None,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="NETDEV", help="Use only this PF's VFs.", rich_help_panel=HUSTCAT),
    ] = None,
    resource_name: Annotated[
        str | None,
        typer.Option(
            "--resource-name",
            metavar="NAME",
            help="The resource's name; default tencent.com/rdma.",
            rich_help_panel=HUSTCAT,
        ),
    ] = None,
    verbosity: Annotated[
        str | None,
        typer.Option(
            "--verbosity", metavar="LEVEL", help="Accepted, without effect; or -v.", rich_help_panel=HUSTCAT
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level", metavar="LEVEL", help="Accepted, without effect.", rich_help_panel=HUSTCAT
        ),
    ] = None,
    config_file: Annotated[
        str | None,
        typer.Option("--config-file", metavar="FILE", help="Its JSON file.", rich_help_panel=MELLANOX),
    ] = None,
    use_cdi: Annotated[
        bool, typer.Option("--use-cdi", help="Device nodes by CDI, from the agent.", rich_help_panel=MELLANOX)
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version; or -v.")] = False,
) -> None:
    """Give containers their RDMA device nodes, by kubelet's device plugin API.

    Options of the programs that it replaces may be written with one dash.
    """
    if version:
        typer.echo(f"k8s-rdma {__version__}")
        return
    load_without_extras()
    from k8s_rdma.cli.device_plugin import CommandLine, explicit_options, read_command_line

    if print_schema:
        from k8s_rdma.config.devices import DevicePluginConfig
        from k8s_rdma.config.files import config_schema

        typer.echo(config_schema(DevicePluginConfig))
        return
    hustcat = {"--master": master, "--resource-name": resource_name}
    hustcat |= {"--verbosity": verbosity, "--log-level": log_level}
    mellanox = {"--config-file": config_file, "--use-cdi": "" if use_cdi else None}
    line = CommandLine(
        config=config,
        node=node,
        pod_uid=pod_uid,
        hustcat=explicit_options(hustcat),
        mellanox=explicit_options(mellanox),
    )
    settings = read_command_line(line)
    if check_config:
        if settings.config.kubeconfig is not None:
            from k8s_rdma.kube.client import require_kubeconfig

            require_kubeconfig(settings.config.kubeconfig)
        from k8s_rdma.http_server.asgi import access_of

        access_of(settings.config)
        for key in settings.ignored:
            typer.echo(f"{key}: has no effect", err=True)
        typer.echo("ok")
        return
    run_device_plugin(settings)
