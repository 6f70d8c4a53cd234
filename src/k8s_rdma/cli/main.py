"""The command `k8s-rdma` and its subcommands; each imports what it needs when it runs.

It takes command lines as the device plugin's predecessors, which are written in Go, took them. Source: Go's
package `flag`: one dash or two, `-name=value`, and booleans whose value can only follow `=`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from k8s_rdma import __version__
from k8s_rdma.cli.cluster_commands import explain_app, top
from k8s_rdma.cli.doctor_commands import doctor_app
from k8s_rdma.cli.node_commands import install_cni, uninstall
from k8s_rdma.cli.options import ConfigFile
from k8s_rdma.cli.process_commands import agent_app, device_plugin, extender, init, server
from k8s_rdma.errors import K8sRdmaError, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VALUES = frozenset({"master", "resource-name", "config-file", "log-level"})
_BOOLEANS = frozenset({"use-cdi", "version"})

_LOGGING_VALUES = frozenset(
    {"stderrthreshold", "vmodule", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size"}
)
_LOGGING_BOOLEANS = frozenset(
    {"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output"}
)
"""Of glog and klog, with which hustcat's plugin logged; they mean nothing here."""

_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(=(?P<value>.*))?", re.DOTALL)
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def with_two_dashes(arguments: Sequence[str]) -> list[str]:
    """The same as `--name value`, `--name=value` and `--name`; what those programs did not know is as it was.

    `-v` was a level of logging to one of them, and asked another for its version: a number tells.
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


class GoCommand(TyperCommand):
    """Takes options with one dash as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As for any command."""
        return super().parse_args(ctx, with_two_dashes(args))


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RDMA interfaces with guaranteed bandwidth for Kubernetes pods.",
)


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


app.add_typer(agent_app, name="agent")
app.command()(init)
app.command("install-cni")(install_cni)
app.command()(uninstall)
app.command()(server)
app.command()(extender)
app.command("device-plugin", cls=GoCommand)(device_plugin)
app.add_typer(explain_app, name="explain")
app.command()(top)
app.add_typer(doctor_app, name="doctor")


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
    try:
        from k8s_rdma_demo.launch import launch
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("k8s_rdma_demo"):
            raise
        msg = (
            "the demo is not installed: the container image leaves it out. "
            "Install the k8s-rdma wheel with pip, or run `make demo` in a checkout"
        )
        raise K8sRdmaError(msg) from error

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
    from k8s_rdma.cli.doctor import NodeOptions
    from k8s_rdma.cli.gather import gather_report

    agent = Path(config) if config else None
    gather_report(report, NodeOptions(agent=agent, host_root=host_root), tuple(log or ()))


@app.command("version")
def version_command(
    *, as_json: Annotated[bool, typer.Option("--json", help="Also all versions that it speaks.")] = False
) -> None:
    """Print the version, of what commit it is if that is known, and Python's."""
    from k8s_rdma.cli.version import tell_version

    tell_version(as_json=as_json)


def main() -> None:
    """Run the command line; a failure is one line on stderr and exit status 1."""
    try:
        app()
    except K8sRdmaError as error:
        details = "".join(f"\n  {visible(line)}" for line in error.details.splitlines())
        sys.stderr.write(f"k8s-rdma: {visible(error.message)}{details}\n")
        sys.exit(1)
