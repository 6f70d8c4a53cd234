"""`k8s-rdma completion`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as typer's own options do

from k8s_rdma.cli.processes import COMPLETE, PROGRAM


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print a script for completion, as for `source <(k8s-rdma completion bash)`."""
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE, shell=shell))
