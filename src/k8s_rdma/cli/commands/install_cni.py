"""`k8s-rdma install-cni`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.options import Grace
from k8s_rdma.cli.processes import load_without_extras
from k8s_rdma.core.node_paths import CNI_BIN_DIR, CNI_CONF_DIR, CONFLIST
from k8s_rdma.install.network_mode import NetworkMode


def install_cni(  # noqa: PLR0913, PLR0917  options of a command
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The container runtime's directory of CNI plugins.")
    ] = Path(CNI_BIN_DIR),
    network: Annotated[
        NetworkMode,
        typer.Option(
            metavar="WHERE",
            help="chained: behind the node's first other network; alone: ours; none: executable only.",
        ),
    ] = NetworkMode.NONE,
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
