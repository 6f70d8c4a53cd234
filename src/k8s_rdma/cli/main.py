"""The command `k8s-rdma` and its entries, and the commands in the order of their help."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # as typer's own options do

from k8s_rdma import __version__
from k8s_rdma.cli.commands.agent import agent_app
from k8s_rdma.cli.commands.claim import claim
from k8s_rdma.cli.commands.completion import completion
from k8s_rdma.cli.commands.demo import demo
from k8s_rdma.cli.commands.device_plugin import device_plugin
from k8s_rdma.cli.commands.doctor import doctor_app
from k8s_rdma.cli.commands.explain import explain_app
from k8s_rdma.cli.commands.extender import extender
from k8s_rdma.cli.commands.gather import gather
from k8s_rdma.cli.commands.init import init
from k8s_rdma.cli.commands.install_cni import install_cni
from k8s_rdma.cli.commands.rates import rates_app
from k8s_rdma.cli.commands.recommend import recommend
from k8s_rdma.cli.commands.server import server
from k8s_rdma.cli.commands.simulate import simulate
from k8s_rdma.cli.commands.top import top
from k8s_rdma.cli.commands.uninstall import uninstall
from k8s_rdma.cli.commands.verify import verify_app
from k8s_rdma.cli.commands.version import version_command
from k8s_rdma.cli.commands.web import forward_web, web
from k8s_rdma.cli.commands.webhook import webhook
from k8s_rdma.cli.commands.whatif import snapshot, whatif_app
from k8s_rdma.cli.commands.who import list_holders
from k8s_rdma.cli.go_flags import GoCommand
from k8s_rdma.cli.output import COULD_NOT, guarded_output, reported_failures
from k8s_rdma.cli.processes import COMPLETE, PROGRAM
from k8s_rdma.cli.usage import CommandGroup, UsageError, as_kubectl_writes, flow_help, usage_text

app = typer.Typer(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RDMA interfaces with reserved bandwidth for Kubernetes pods.",
)

_OPERATION = "Operate a cluster"
_TRIAL = "Try, measure and plan"
_PROCESSES = "Processes of nodes and cluster"
_PROGRAM_ITSELF = "This program"

_NO_FILES = 4
"""The directive of cobra by which a shell completes no names of files (`ShellCompDirectiveNoFileComp`)."""


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version, or run a subcommand."""
    if version:
        typer.echo(f"k8s-rdma {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(rich_help_panel=_OPERATION)(top)
app.command("who", rich_help_panel=_OPERATION)(list_holders)
app.add_typer(explain_app, name="explain", rich_help_panel=_OPERATION)
app.add_typer(rates_app, name="rates", rich_help_panel=_OPERATION)
app.add_typer(doctor_app, name="doctor", rich_help_panel=_OPERATION)
app.add_typer(verify_app, name="verify", rich_help_panel=_TRIAL)
app.add_typer(whatif_app, name="whatif", rich_help_panel=_TRIAL)
app.command(rich_help_panel=_TRIAL)(recommend)
app.command(rich_help_panel=_TRIAL)(snapshot)
app.command(rich_help_panel=_TRIAL)(simulate)
app.add_typer(agent_app, name="agent", rich_help_panel=_PROCESSES)
app.command(rich_help_panel=_PROCESSES)(init)
app.command("install-cni", rich_help_panel=_PROCESSES)(install_cni)
app.command(rich_help_panel=_PROCESSES)(uninstall)
app.command(rich_help_panel=_PROCESSES)(server)
app.command(rich_help_panel=_PROCESSES)(extender)
app.command(rich_help_panel=_PROCESSES)(webhook)
app.command(rich_help_panel=_PROCESSES)(web)
app.command("device-plugin", cls=GoCommand, rich_help_panel=_PROCESSES)(device_plugin)
app.command(rich_help_panel=_TRIAL)(demo)
app.command(rich_help_panel=_OPERATION)(gather)
app.command(rich_help_panel=_OPERATION)(claim)
app.command("version", rich_help_panel=_PROGRAM_ITSELF)(version_command)
app.command(rich_help_panel=_PROGRAM_ITSELF)(completion)


def main() -> None:
    """Run the command line; a failure is one line on stderr and exit status 2."""
    _run(PROGRAM)


def kubectl_plugin() -> None:
    """Run the command line as `kubectl rdma`: the API server leads to the extender, if no URL is set."""
    from k8s_rdma.cli.extender_address import URL_VARIABLE, VIEWS_URL

    os.environ.setdefault(URL_VARIABLE, VIEWS_URL)
    _forward_pages()
    _run("kubectl rdma")


def _forward_pages() -> None:
    """Have `web` open the cluster's pages, instead of being the process that serves them."""
    app.command("web", rich_help_panel=_OPERATION)(forward_web)


def complete_kubectl() -> None:
    """Complete the words of a command line of `kubectl rdma`, in lines as cobra writes them.

    Source: `SetupPluginCompletion`, k8s.io/kubectl/pkg/cmd/plugin/plugin_completion.go.
    """
    _forward_pages()
    *arguments, incomplete = sys.argv[1:] or [""]
    line = f"{shlex.join([PROGRAM, *arguments])} {incomplete and shlex.quote(incomplete)}"
    os.environ |= {
        COMPLETE: "complete_fish",  # whose lines are cobra's: a word, a tabulator, its description
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    try:
        _run(PROGRAM)
    finally:
        sys.stdout.write(f":{_NO_FILES}\n")


def _run(program: str) -> None:
    completion_init()
    flow_help(app)
    with guarded_output(), reported_failures():
        try:
            status = app(as_kubectl_writes(sys.argv[1:]), prog_name=program, standalone_mode=False)
        except UsageError as error:
            sys.stderr.write(usage_text(error))
            sys.exit(COULD_NOT)
        except typer.Abort:
            sys.exit(COULD_NOT)
    sys.exit(status if isinstance(status, int) else 0)
