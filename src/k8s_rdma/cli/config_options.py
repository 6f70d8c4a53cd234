"""Options of the commands that read a configuration file."""

from __future__ import annotations

from typing import Annotated

import typer

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML; unknown keys are refused.")
]

CheckConfig = Annotated[
    bool, typer.Option("--check-config", help="Only say whether the configuration can be used, and end.")
]

PrintSchema = Annotated[
    bool, typer.Option("--print-schema", help="Print the JSON schema of the file, and end.")
]
