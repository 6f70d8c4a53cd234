"""The options that processes share, and the check of a configuration before a process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML; unknown keys are refused.")
]
NodeName = Annotated[str | None, typer.Option(metavar="NAME", help="The node's name in Kubernetes.")]
CheckConfig = Annotated[bool, typer.Option("--check-config", help="Check the configuration, and exit.")]
PrintSchema = Annotated[bool, typer.Option("--print-schema", help="Print the file's JSON schema, and exit.")]

ProcessConfig = TypeVar("ProcessConfig", bound="Struct")


def check_only(
    kind: type[ProcessConfig],
    file: str | None,
    check: Callable[[ProcessConfig], object],
    *,
    print_schema: bool,
) -> None:
    """Print `ok` if a process could start with its configuration; with `print_schema` print the schema."""
    from k8s_rdma.config.files import config_schema, load_config

    if print_schema:
        typer.echo(config_schema(kind))
        return
    check(load_config(kind, file, {}))
    typer.echo("ok")
