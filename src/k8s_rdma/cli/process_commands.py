"""The commands that run as processes or change a node; each imports its implementation when it runs.

`device-plugin` accepts the command lines of its predecessors, which are written in Go. Source: Go's package
`flag`: one dash or two, `-name=value`, and booleans whose value can only follow `=`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from k8s_rdma import __version__
from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import OutputForm, RunDir
from k8s_rdma.cli.processes import (
    load_without_extras,
    read_agent_config,
    run_device_plugin,
    start_agent,
    start_extender,
    start_server,
    start_web,
    start_webhook,
)
from k8s_rdma.cli.usage import Command, CommandGroup
from k8s_rdma.core.node_paths import CDI_DIR, CNI_BIN_DIR, CNI_CONF_DIR, CONFLIST, RUN_DIR, STATE_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from msgspec import Struct

_VALUES = frozenset({"master", "resource-name", "config-file", "log-level"})
_BOOLEANS = frozenset({"use-cdi", "version"})
_LOGGING_VALUES = frozenset(
    {"stderrthreshold", "vmodule", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size"}
)

_LOGGING_BOOLEANS = frozenset(
    {"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output"}
)
"""Options of glog and klog, with which hustcat's plugin logged; they have no effect here."""
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(=(?P<value>.*))?", re.DOTALL)
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
HUSTCAT = "Options of hustcat/k8s-rdma-device-plugin"
MELLANOX = "Options of Mellanox/k8s-rdma-shared-dev-plugin"
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML; unknown keys are refused.")
]
NodeName = Annotated[str | None, typer.Option(metavar="NAME", help="The node's name in Kubernetes.")]
CheckConfig = Annotated[bool, typer.Option("--check-config", help="Check the configuration, and exit.")]
PrintSchema = Annotated[bool, typer.Option("--print-schema", help="Print the file's JSON schema, and exit.")]
ProcessConfig = TypeVar("ProcessConfig", bound="Struct")
agent_app = typer.Typer(cls=CommandGroup, invoke_without_command=True)

Grace = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0, help="Time between removal of network and executable, for running calls."
    ),
]


def with_two_dashes(arguments: Sequence[str]) -> list[str]:
    """Translate options to `--name value`, `--name=value` and `--name`; unknown options stay as they are.

    `-v` with a number is a level of logging, and without one prints the version, because one predecessor had
    the former and another the latter.
    """
    return list(_rewritten(list(arguments)))


def _rewritten(remaining: list[str]) -> Iterator[str]:
    while remaining:
        argument = remaining.pop(0)
        if argument == "--":
            yield from (argument, *remaining)
            return
        flag = _FLAG.fullmatch(argument)
        if flag is None:
            yield argument
        else:
            yield from _rewrite_flag(argument, flag["name"], flag["value"], remaining)


def _rewrite_flag(argument: str, name: str, value: str | None, remaining: list[str]) -> Iterator[str]:
    if name == "v":
        yield from _verbosity(argument, value, remaining)
    elif name in _LOGGING_VALUES:
        if value is None and remaining:
            remaining.pop(0)
    elif name in _BOOLEANS and (value is None or value in _TRUE):
        yield f"--{name}"
    elif name in _VALUES:
        yield f"--{name}" if value is None else f"--{name}={value}"
        if value is None and remaining:
            yield remaining.pop(0)
    elif not (name in _LOGGING_BOOLEANS or (name in _BOOLEANS and value in _FALSE)):
        yield argument


def _verbosity(argument: str, value: str | None, remaining: list[str]) -> Iterator[str]:
    if value is None and remaining and remaining[0].isdecimal():
        value = remaining.pop(0)
    if value is None or value in _TRUE - {"1"}:
        yield "--version"
    elif value.isdecimal():
        yield f"--verbosity={value}"
    elif value not in _FALSE:
        yield argument


class GoCommand(Command):
    """Takes options with one dash as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite options with one dash, then parse as usual."""
        return super().parse_args(ctx, with_two_dashes(args))


@agent_app.callback()
def agent(  # noqa: PLR0913, PLR0917  options of a command
    context: typer.Context,
    config: ConfigFile = None,
    node: NodeName = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="NAME", help="The source of virtual functions: linux, virtual.")
    ] = None,
    rebuild_ledger: Annotated[
        bool,
        typer.Option(
            "--rebuild-ledger",
            help="Rebuild the ledger from kernel and container runtime; the agent must not run.",
        ),
    ] = False,
    check_config: CheckConfig = False,
) -> None:
    """Own the node's virtual functions: allocate, program, move, release."""
    if context.invoked_subcommand is not None:
        return
    if not (check_config or rebuild_ledger):
        start_agent(config=config, node=node, kernel=kernel)
        return
    settings = read_agent_config(config, node, kernel)
    if check_config:
        from k8s_rdma.agent.main import check

        check(settings)
        typer.echo("ok")
        return
    from k8s_rdma.cli.adopt import rebuild

    raise typer.Exit(rebuild(settings))


@agent_app.command("adopt")
@with_bundles
def agent_adopt(  # noqa: PLR0913 - typer's options
    *,
    every: Annotated[bool, typer.Option("--all", help="All foreign VFs of the node.")] = False,
    pf: Annotated[
        str | None, typer.Option(metavar="NAME", help="VFs of one PF, by name or PCI address.")
    ] = None,
    vf: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this VF of the PF.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
    ] = False,
    run_dir: RunDir = Path(RUN_DIR),
    output: OutputForm,
) -> None:
    """Reset unused VFs that have rates or a VLAN of no allocation, so that pods can use them.

    The running agent does it, except for VFs that a pod holds or that are in another network namespace.
    """
    from k8s_rdma.cli.adopt import adopt
    from k8s_rdma.wire.adopt import AdoptRequest

    request = AdoptRequest(pf=pf, vf=vf, dry_run=dry_run)
    raise typer.Exit(adopt(run_dir, request, output, every=every))


def init(
    config: ConfigFile = None,
    check_config: CheckConfig = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print what would be made and what is left out, and change nothing."),
    ] = False,
) -> None:
    """Create and configure the virtual functions of this machine's PFs, then exit."""
    load_without_extras()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.init import InitConfig

    settings = load_config(InitConfig, config, {})
    if check_config:
        typer.echo("ok")
        return
    from k8s_rdma.cli.init import init as run

    raise typer.Exit(run(settings, dry_run=plan))


def server(
    config: ConfigFile = None,
    node: NodeName = None,
    check_config: CheckConfig = False,
) -> None:
    """Show the node's functions and allocations as read-only REST (:54005)."""
    if not check_config:
        start_server(config=config, node=node)
        return
    load_without_extras()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.server import ServerConfig
    from k8s_rdma.server.main import check

    check(load_config(ServerConfig, config, {"node": node}))
    typer.echo("ok")


def extender(
    config: ConfigFile = None,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
) -> None:
    """Serve kube-scheduler: filter and score nodes, and bind pods (:8888)."""
    if not (check_config or print_schema):
        start_extender(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.extender import ExtenderConfig
    from k8s_rdma.extender.main import check

    _check_only(ExtenderConfig, config, check, print_schema=print_schema)


def webhook(
    config: ConfigFile = None, check_config: CheckConfig = False, print_schema: PrintSchema = False
) -> None:
    """Add what pods with the annotation need, as an admission webhook (:54007)."""
    if not (check_config or print_schema):
        start_webhook(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.webhook import WebhookConfig
    from k8s_rdma.webhook.main import check

    _check_only(WebhookConfig, config, check, print_schema=print_schema)


def web(
    config: ConfigFile = None, check_config: CheckConfig = False, print_schema: PrintSchema = False
) -> None:
    """Show the cluster as pages for people, read-only (:54008)."""
    if not (check_config or print_schema):
        start_web(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.web import WebConfig
    from k8s_rdma.web.main import check

    _check_only(WebConfig, config, check, print_schema=print_schema)


def _check_only(
    kind: type[ProcessConfig],
    file: str | None,
    check: Callable[[ProcessConfig], object],
    *,
    print_schema: bool,
) -> None:
    """Print `ok` if a process could start with its configuration; with `print_schema` print the schema."""
    from k8s_rdma.config.files import config_schema, load_config

    if print_schema:
        typer.echo(config_schema(kind))
        return
    check(load_config(kind, file, {}))
    typer.echo("ok")


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


def install_cni(  # noqa: PLR0913, PLR0917  options of a command
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The container runtime's directory of CNI plugins.")
    ] = Path(CNI_BIN_DIR),
    network: Annotated[
        Literal["none", "chained", "alone"],
        typer.Option(
            metavar="WHERE",
            help="chained: behind the node's first other network; alone: ours; none: executable only.",
        ),
    ] = "none",
    conf_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The container runtime's directory of networks.")
    ] = Path(CNI_CONF_DIR),
    conf_name: Annotated[
        str, typer.Option(metavar="NAME", help="Our file there; must sort before all others.")
    ] = CONFLIST,
    plugin: Annotated[
        str,
        typer.Option(metavar="JSON|FILE", help="Keys of our plugin's section: runDir, ipam, delegate, ..."),
    ] = "{}",
    network_name: Annotated[
        str, typer.Option(metavar="NAME", help="With alone: the network's name.")
    ] = "k8s-rdma",
    cni_version: Annotated[
        str, typer.Option(metavar="VERSION", help="With alone: the network's version.")
    ] = "1.0.0",
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and keep both in place; SIGTERM removes nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until both are in place, then exit; for an init container.")
    ] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove network and executable; with --follow, on SIGTERM."),
    ] = False,
    grace_s: Grace = 10,
) -> None:
    """Install the CNI executable and the network for the container runtime, or remove them."""
    load_without_extras()
    from k8s_rdma.cli.install_cni import desired_conflist
    from k8s_rdma.cli.install_cni import install_cni as install

    install(
        desired=desired_conflist(
            network=network, file=conf_name, plugin=plugin, name=network_name, version=cni_version
        ),
        binaries=directory,
        confs=conf_dir,
        following=follow,
        until_in_place=wait,
        remove=remove,
        grace_s=grace_s,
    )


def uninstall(  # noqa: PLR0913, PLR0917  options of a command
    host_root: Annotated[
        Path, typer.Option(metavar="DIR", help="The node's root file system; other paths are below it.")
    ] = Path("/"),
    bin_dir: Annotated[Path, typer.Option(metavar="DIR", help="As given to `install-cni`.")] = Path(
        CNI_BIN_DIR
    ),
    conf_dir: Annotated[Path, typer.Option(metavar="DIR", help="As given to `install-cni`.")] = Path(
        CNI_CONF_DIR
    ),
    conf_name: Annotated[str, typer.Option(metavar="NAME", help="As given to `install-cni`.")] = CONFLIST,
    run_dir: RunDir = Path(RUN_DIR),
    state_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's stateDir.")] = Path(STATE_DIR),
    cdi_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's cdiDir.")] = Path(CDI_DIR),
    grace_s: Grace = 10,
) -> None:
    """Remove the network, the executable and the agent's files from this node, unless pods hold interfaces.

    It refuses, and names the pods, before it removes anything. Exit status 1: run it again, as it says when.
    """
    load_without_extras()
    from k8s_rdma.cli.install_cni import Places
    from k8s_rdma.cli.install_cni import uninstall as run_uninstall

    places = Places(
        host_root=host_root,
        bin_dir=bin_dir,
        conf_dir=conf_dir,
        conf_name=conf_name,
        run_dir=run_dir,
        state_dir=state_dir,
        cdi_dir=cdi_dir,
    )
    raise typer.Exit(run_uninstall(places, grace_s))
