"""`k8s-rdma uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.options import Grace, RunDir
from k8s_rdma.cli.processes import load_without_extras
from k8s_rdma.core.node_paths import CDI_DIR, CNI_BIN_DIR, CNI_CONF_DIR, CONFLIST, RUN_DIR, STATE_DIR


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
    from k8s_rdma.cli.uninstall import Places
    from k8s_rdma.cli.uninstall import uninstall as run_uninstall

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
