"""`k8s-rdma server`."""

from __future__ import annotations

import typer

from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, NodeName
from k8s_rdma.cli.processes import load_without_extras, start_server


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
