"""The commands that put the CNI plugin on a node, and take the project off it; `cli.main` has the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from k8s_rdma.cli.process_commands import load_structlog

Grace = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0, help="Time between removal of network and executable, for running calls."
    ),
]


def install_cni(  # noqa: PLR0913, PLR0917  options of a command
    directory: Annotated[
        Path, typer.Argument(help="The container runtime's directory of CNI plugins.")
    ] = Path("/opt/cni/bin"),
    network: Annotated[
        Literal["none", "chained", "alone"],
        typer.Option(
            help="chained: behind the node's first other network; alone: ours; none: executable only."
        ),
    ] = "none",
    conf_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The container runtime's directory of networks.")
    ] = Path("/etc/cni/net.d"),
    conf_name: Annotated[
        str, typer.Option(metavar="NAME", help="Our file there; must sort before all others.")
    ] = "00-k8s-rdma.conflist",
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
    load_structlog()
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
        "/opt/cni/bin"
    ),
    conf_dir: Annotated[Path, typer.Option(metavar="DIR", help="As given to `install-cni`.")] = Path(
        "/etc/cni/net.d"
    ),
    conf_name: Annotated[
        str, typer.Option(metavar="NAME", help="As given to `install-cni`.")
    ] = "00-k8s-rdma.conflist",
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's runDir.")] = Path("/run/k8s-rdma"),
    state_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's stateDir.")] = Path(
        "/var/lib/k8s-rdma"
    ),
    cdi_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's cdiDir.")] = Path("/var/run/cdi"),
    grace_s: Grace = 10,
) -> None:
    """Remove the network, the executable and the agent's files from this node, unless pods hold interfaces.

    It refuses, and names the pods, before it removes anything. Exit status 1: run it again, as it says when.
    """
    load_structlog()
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
