"""`k8s-rdma init`."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.process_options import CheckConfig, ConfigFile
from k8s_rdma.cli.processes import load_without_extras


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
