"""`k8s-rdma agent`, and `agent adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import OutputForm, RunDir
from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, NodeName
from k8s_rdma.cli.processes import read_agent_config, start_agent
from k8s_rdma.cli.usage import CommandGroup
from k8s_rdma.core.node_paths import RUN_DIR

agent_app = typer.Typer(cls=CommandGroup, invoke_without_command=True)


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
    from k8s_rdma.cli.rebuild_ledger import rebuild

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
