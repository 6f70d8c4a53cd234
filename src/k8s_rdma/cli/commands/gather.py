"""`k8s-rdma gather`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import OutputForm
from k8s_rdma.cli.process_options import ConfigFile
from k8s_rdma.errors import MalformedError


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
