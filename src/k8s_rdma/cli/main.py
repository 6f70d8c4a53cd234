"""The command `k8s-rdma` and its subcommands; each imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma import __version__
from k8s_rdma.cli.doctor_commands import doctor_app
from k8s_rdma.cli.extender_options import (
    CaFile,
    CertFile,
    Extender,
    Insecure,
    Json,
    KeyFile,
    TokenFile,
)
from k8s_rdma.cli.go_flags import GoCommand
from k8s_rdma.cli.node_commands import install_cni, uninstall
from k8s_rdma.cli.plain_structlog import load_structlog
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.cluster_view import Sort

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RDMA interfaces with guaranteed bandwidth for Kubernetes pods.",
)

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML; unknown keys are refused.")
]

CheckConfig = Annotated[
    bool, typer.Option("--check-config", help="Only say whether the configuration can be used, and end.")
]

PrintSchema = Annotated[
    bool, typer.Option("--print-schema", help="Print the JSON schema of the file, and end.")
]

HUSTCAT = "Options of hustcat/k8s-rdma-device-plugin"
MELLANOX = "Options of Mellanox/k8s-rdma-shared-dev-plugin"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version, or leave the work to a subcommand."""
    if version:
        typer.echo(f"k8s-rdma {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


agent_app = typer.Typer(invoke_without_command=True)
app.add_typer(agent_app, name="agent")


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
    from k8s_rdma.config.files import load_config, load_key

    settings = load_config(AgentConfig, config, {"node": node, "kernel": kernel})
    if check_config:
        load_key(settings.placement_key_file)
        typer.echo("ok")
        return
    if rebuild_ledger:
        from k8s_rdma.cli.rebuild import rebuild

        raise typer.Exit(rebuild(settings))
    from k8s_rdma.agent.run import run

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


@app.command()
def init(config: ConfigFile = None, check_config: CheckConfig = False) -> None:
    """Make the virtual functions of this machine's PFs, and ready them; then end."""
    from k8s_rdma.config.files import load_config
    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.run import run

    settings = load_config(InitConfig, config, {})
    if check_config:
        typer.echo("ok")
        return
    if not run(settings):
        raise typer.Exit(1)


app.command("install-cni")(install_cni)
app.command("uninstall")(uninstall)


@app.command()
def server(
    config: ConfigFile = None,
    node: Annotated[str | None, typer.Option(help="The node's name in Kubernetes.")] = None,
    check_config: CheckConfig = False,
) -> None:
    """Show the node's functions and allocations as read-only REST (:54005)."""
    load_structlog()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.server.config import ServerConfig
    from k8s_rdma.server.run import access_of, run

    settings = load_config(ServerConfig, config, {"node": node})
    if check_config:
        access_of(settings)
        typer.echo("ok")
        return
    run(settings)


@app.command()
def extender(
    config: ConfigFile = None,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
) -> None:
    """Tell kube-scheduler where pods fit, and bind them (:8888)."""
    load_structlog()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.schema import config_schema
    from k8s_rdma.extender.config import ExtenderConfig

    if print_schema:
        typer.echo(config_schema(ExtenderConfig))
        return
    settings = load_config(ExtenderConfig, config, {})
    if check_config:
        from k8s_rdma.extender.checking import check

        check(settings)
        typer.echo("ok")
        return
    from k8s_rdma.extender.run import run

    run(settings)


@app.command("device-plugin", cls=GoCommand)
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
    from k8s_rdma.cli.device_plugin import CommandLine, given, read_command_line

    if print_schema:
        from k8s_rdma.config.devices import DevicePluginConfig
        from k8s_rdma.config.schema import config_schema

        typer.echo(config_schema(DevicePluginConfig))
        return
    hustcat = {"--master": master, "--resource-name": resource_name}
    hustcat |= {"--verbosity": verbosity, "--log-level": log_level}
    mellanox = {"--config-file": config_file, "--use-cdi": "" if use_cdi else None}
    line = CommandLine(config=config, node=node, hustcat=given(hustcat), mellanox=given(mellanox))
    settings = read_command_line(line)
    if check_config:
        for key in settings.ignored:
            typer.echo(f"{key}: means nothing", err=True)
        typer.echo("ok")
        return
    from k8s_rdma.deviceplugin.run import run

    run(settings.config, ignored=settings.ignored)


explain_app = typer.Typer(no_args_is_help=True, help="Why something is as it is.")
app.add_typer(explain_app, name="explain")


@explain_app.callback()
def explain() -> None:
    """Say why something is as it is."""


@explain_app.command("pod")
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Where a pod is, and for every node why it takes it or not, PF by PF; asks the extender."""
    from k8s_rdma.cli.explain import explain as show
    from k8s_rdma.cli.extender_options import where

    asked = where(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(asked, pod, nodes=node or [], every=every, as_json=as_json)


@app.command()
def top(  # noqa: PLR0913 - typer's options
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once; so does a pipe.")] = False,
    sort: Annotated[
        Sort, typer.Option(help="Which nodes come first.", show_choices=True, case_sensitive=False)
    ] = Sort.RESERVED,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Nodes, PFs, reservations and the pods that wait, every 2 s until Ctrl-C; asks the extender."""
    from k8s_rdma.cli.extender_options import where
    from k8s_rdma.cli.top import top as show

    asked = where(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(asked, once=once, as_json=as_json, sort=sort)


@app.command()
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything shown to FILE.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running and say how to look around.")
    ] = False,
) -> None:
    """Take pods from their annotation to bandwidth that holds, on two virtual nodes of this machine."""
    from k8s_rdma.cli.demo.launch import launch

    raise typer.Exit(launch(json_file=json_file, keep=keep))


@app.command()
def gather(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to FILE, not to standard output.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Instead an archive (.tar.gz) of all that a report needs."
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="With --report: a log; may be repeated."),
    ] = None,
    config: ConfigFile = None,
    host_root: Annotated[
        Path | None, typer.Option("--host-root", metavar="DIR", help="With --report: the node's root.")
    ] = None,
) -> None:
    """Record this machine's network cards in a file for a bug report: no host name, no addresses.

    With --report an archive with versions, what `doctor node` says, the agent's state, configurations and
    logs as well, secrets left out.
    """
    if report is None:
        from k8s_rdma.cli.gather import gather_machine

        gather_machine(output)
        return
    from k8s_rdma.cli.doctor_node import NodeOptions
    from k8s_rdma.cli.gather_report import gather_report

    agent = Path(config) if config else None
    gather_report(report, NodeOptions(agent=agent, host_root=host_root), tuple(log or ()))


@app.command("version")
def version_command(
    *, as_json: Annotated[bool, typer.Option("--json", help="Also all versions that it speaks.")] = False
) -> None:
    """Print the version, of what commit it is if that is known, and Python's."""
    from k8s_rdma.cli.version import tell_version

    tell_version(as_json=as_json)


app.add_typer(doctor_app, name="doctor")


def main() -> None:
    """Run the command line; a failure is one line on stderr and exit status 1."""
    try:
        app()
    except K8sRdmaError as error:
        details = f"\n  {error.details}" if error.details else ""
        sys.stderr.write(f"k8s-rdma: {error}{details}\n")
        sys.exit(1)
