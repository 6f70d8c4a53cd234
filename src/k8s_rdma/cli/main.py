"""The command `k8s-rdma` and its subcommands; each imports its modules when it runs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.completion import (  # type: ignore[attr-defined]  # as typer's own options do
    completion_init,
    get_completion_script,
)

from k8s_rdma import __version__
from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.diagnosis_commands import doctor_app, explain_app, forward_web, list_holders, rates_app, top
from k8s_rdma.cli.left_out import left_out_of_the_image
from k8s_rdma.cli.options import OutputForm
from k8s_rdma.cli.output import COULD_NOT, guarded_output, reported_failures
from k8s_rdma.cli.process_commands import (
    ConfigFile,
    GoCommand,
    agent_app,
    device_plugin,
    extender,
    init,
    install_cni,
    server,
    uninstall,
    web,
    webhook,
)
from k8s_rdma.cli.processes import COMPLETE
from k8s_rdma.cli.simulate import simulate
from k8s_rdma.cli.trial_commands import recommend, snapshot, verify_app, whatif_app
from k8s_rdma.cli.usage import CommandGroup, UsageError, as_kubectl_writes, flow_help, usage_text
from k8s_rdma.errors import MalformedError

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

_PROGRAM = "k8s-rdma"
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


@app.command(rich_help_panel=_TRIAL)
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the results to FILE.")
    ] = None,
    keep_running: Annotated[
        bool, typer.Option("--keep", help="Keep it running, and print how to explore it.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve pages of it on loopback, and keep it running.")
    ] = False,
) -> None:
    """Take pods from their annotation to bandwidth that holds, on two virtual nodes of this machine."""
    from k8s_rdma.cli.console import require_writable

    with left_out_of_the_image("k8s_rdma_demo", "demo"):
        from k8s_rdma_demo.launch import launch

    require_writable(json_file, "--json")
    raise typer.Exit(launch(json_file=json_file, keep=keep_running, web=web))


@app.command(rich_help_panel=_OPERATION)
@with_bundles
def gather(  # noqa: PLR0913 - typer's options
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Write to FILE, not to standard output.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write an archive (.tar.gz) with everything that a bug report needs.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="With --report: a log to include; may be repeated."),
    ] = None,
    config: ConfigFile = None,
    host_root: Annotated[
        Path | None, typer.Option("--host-root", metavar="DIR", help="With --report: the node's root.")
    ] = None,
    output: OutputForm,
) -> None:
    """Record this machine's network cards for a bug report, without host name and addresses.

    Prints YAML without --output. With --report an archive with versions, what `doctor node` says, the agent's
    state, configurations and logs as well, secrets left out.
    """
    if report is None:
        from k8s_rdma.cli.gather import gather_machine

        archive_options = {"--log": log, "--config": config, "--host-root": host_root}
        if alone := [option for option, value in archive_options.items() if value]:
            raise MalformedError(f"{alone[0]} is of an archive: name its file by --report")
        gather_machine(file, output)
        return
    if file is not None or output.format is not None:
        option = "--output" if file is None else "--file"
        raise MalformedError(f"--report and {option} do not go together: an archive has one form")
    from k8s_rdma.cli.doctor import NodeOptions
    from k8s_rdma.cli.gather import gather_report

    agent = Path(config) if config else None
    gather_report(report, NodeOptions(agent=agent, host_root=host_root), tuple(log or ()))


@app.command(rich_help_panel=_OPERATION)
@with_bundles
def claim(  # noqa: PLR0913 - typer's options
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An annotation or manifests; default, and -: standard input."),
    ] = None,
    *,
    annotation: Annotated[
        str | None, typer.Option("--annotation", metavar="JSON", help="The annotation, instead of FILE.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="POLICY", help="As the annotation k8s-rdma.io/policy.")
    ] = None,
    with_pod: Annotated[
        bool, typer.Option("--pod", help="Print the manifests as well, with claims instead of annotations.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="The template's name; default: its object's and -rdma, or rdma."
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="The template's namespace; default: its object's."
        ),
    ] = "",
    device_class: Annotated[str, typer.Option("--class", metavar="NAME", help="The DeviceClass.")] = "rdma",
    pod_claim: Annotated[
        str, typer.Option("--pod-claim", metavar="NAME", help="The claim's name in the pod.")
    ] = "rdma",
    output: OutputForm,
) -> None:
    """Turn annotations into ResourceClaimTemplates for the DRA driver. Prints, and changes nothing."""
    from k8s_rdma.cli.claim import print_manifests, print_templates
    from k8s_rdma.wire.claim_template import TemplateNames

    names = TemplateNames(name=name, namespace=namespace, device_class=device_class, pod_claim=pod_claim)
    if annotation is not None and (with_pod or file is not None):
        msg = f"--annotation and {'--pod' if with_pod else 'FILE'} do not go together"
        raise MalformedError(msg)
    if with_pod:
        print_manifests(file, policy, names, output)
    else:
        print_templates(annotation, file, policy, names, output)


@app.command("version", rich_help_panel=_PROGRAM_ITSELF)
@with_bundles
def version_command(*, output: OutputForm) -> None:
    """Print the version, its commit if known, and Python's version.

    The document has all protocol versions that it supports as well.
    """
    from k8s_rdma.cli.version import print_version

    print_version(output)


@app.command(rich_help_panel=_PROGRAM_ITSELF)
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print a script for completion, as for `source <(k8s-rdma completion bash)`."""
    typer.echo(get_completion_script(prog_name=_PROGRAM, complete_var=COMPLETE, shell=shell))


def main() -> None:
    """Run the command line; a failure is one line on stderr and exit status 2."""
    _run(_PROGRAM)


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
    line = f"{shlex.join([_PROGRAM, *arguments])} {incomplete and shlex.quote(incomplete)}"
    os.environ |= {
        COMPLETE: "complete_fish",  # whose lines are cobra's: a word, a tabulator, its description
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    try:
        _run(_PROGRAM)
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
