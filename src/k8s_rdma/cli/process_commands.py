"""The commands that are the processes of nodes and control plane; each imports its own when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma import __version__
from k8s_rdma.cli.options import CheckConfig, ConfigFile, PrintSchema
from k8s_rdma.cli.plain_structlog import load_structlog

HUSTCAT = "Options of hustcat/k8s-rdma-device-plugin"
MELLANOX = "Options of Mellanox/k8s-rdma-shared-dev-plugin"


agent_app = typer.Typer(invoke_without_command=True)


@agent_app.callback()
def agent(  # noqa: PLR0913, PLR0917  options of a command
    context: typer.Context,
    config: ConfigFile = None,
    node: Annotated[str | None, typer.Option(help="The node's name in Kubernetes.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Where the functions come from: linux, virtual.")] = None,
    rebuild_ledger: Annotated[
        bool,
        typer.Option(
            "--rebuild-ledger",
            help="Make the ledger anew of what kernel and container runtime know; the agent must not run.",
        ),
    ] = False,
    check_config: CheckConfig = False,
) -> None:
    """Own the node's virtual functions: allocate, program, move, release."""
    if context.invoked_subcommand is not None:
        return
    load_structlog()
    from k8s_rdma.agent.config import AgentConfig
    from k8s_rdma.config.files import load_config

    settings = load_config(AgentConfig, config, {"node": node, "kernel": kernel})
    if check_config:
        from k8s_rdma.agent.main import check

        check(settings)
        typer.echo("ok")
        return
    if rebuild_ledger:
        from k8s_rdma.cli.adopt import rebuild

        raise typer.Exit(rebuild(settings))
    from k8s_rdma.agent.main import run

    run(settings)


@agent_app.command("adopt")
def agent_adopt(
    every: Annotated[bool, typer.Option("--all", help="All foreign VFs of the node.")] = False,
    pf: Annotated[
        str | None, typer.Option(metavar="NAME", help="Those of one PF, or its PCI address.")
    ] = None,
    vf: Annotated[int | None, typer.Option(metavar="N", min=0, help="This VF of the PF alone.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's runDir.")] = Path("/run/k8s-rdma"),
) -> None:
    """Reset VFs that lie unused with rates or a VLAN that nobody accounts for, so that pods may have them.

    The running agent does it. VFs that a pod holds or that are in another network namespace are left alone.
    """
    from k8s_rdma.cli.adopt import adopt
    from k8s_rdma.wire.adopt import AdoptRequest

    raise typer.Exit(adopt(run_dir, AdoptRequest(pf=pf, vf=vf, dry_run=dry_run), every=every))


def init(config: ConfigFile = None, check_config: CheckConfig = False) -> None:
    """Make the virtual functions of this machine's PFs, and ready them; then end."""
    from k8s_rdma.config.files import load_config
    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.main import run

    settings = load_config(InitConfig, config, {})
    if check_config:
        typer.echo("ok")
        return
    if not run(settings):
        raise typer.Exit(1)


def server(
    config: ConfigFile = None,
    node: Annotated[str | None, typer.Option(help="The node's name in Kubernetes.")] = None,
    check_config: CheckConfig = False,
) -> None:
    """Show the node's functions and allocations as read-only REST (:54005)."""
    load_structlog()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.server.config import ServerConfig
    from k8s_rdma.server.main import check, run

    settings = load_config(ServerConfig, config, {"node": node})
    if check_config:
        check(settings)
        typer.echo("ok")
        return
    run(settings)


def extender(
    config: ConfigFile = None,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
) -> None:
    """Tell kube-scheduler where pods fit, and bind them (:8888)."""
    load_structlog()
    from k8s_rdma.config.files import config_schema, load_config
    from k8s_rdma.extender.config import ExtenderConfig

    if print_schema:
        typer.echo(config_schema(ExtenderConfig))
        return
    settings = load_config(ExtenderConfig, config, {})
    if check_config:
        from k8s_rdma.extender.main import check

        check(settings)
        typer.echo("ok")
        return
    from k8s_rdma.extender.main import run

    run(settings)


def device_plugin(  # noqa: PLR0913 - typer's options
    config: ConfigFile = None,
    node: Annotated[str | None, typer.Option(help="The node's name in Kubernetes, for events.")] = None,
    *,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="NETDEV", help="Only this PF's VFs.", rich_help_panel=HUSTCAT),
    ] = None,
    resource_name: Annotated[
        str | None,
        typer.Option(
            "--resource-name", metavar="NAME", help="Not tencent.com/rdma.", rich_help_panel=HUSTCAT
        ),
    ] = None,
    verbosity: Annotated[
        str | None, typer.Option("--verbosity", help="Taken, without effect; or -v.", rich_help_panel=HUSTCAT)
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="Taken, without effect.", rich_help_panel=HUSTCAT)
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
    load_structlog()
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
        config=config, node=node, hustcat=explicit_options(hustcat), mellanox=explicit_options(mellanox)
    )
    settings = read_command_line(line)
    if check_config:
        if settings.config.kubeconfig is not None:
            from k8s_rdma.kube.client import require_kubeconfig

            require_kubeconfig(settings.config.kubeconfig)
        from k8s_rdma.http_server.access import access_of

        access_of(settings.config)
        for key in settings.ignored:
            typer.echo(f"{key}: means nothing", err=True)
        typer.echo("ok")
        return
    from k8s_rdma.deviceplugin.main import run

    run(settings.config, ignored=settings.ignored)
