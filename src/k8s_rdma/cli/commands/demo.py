"""`k8s-rdma demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.left_out import left_out_of_the_image


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
