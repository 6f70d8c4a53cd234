"""Options that several commands have: of those that read a configuration file, and that ask the extender."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from k8s_rdma.cli.extender_client import ExtenderAddress

Extender = Annotated[
    str | None,
    typer.Option(
        "--extender",
        metavar="URL",
        envvar="K8S_RDMA_EXTENDER",
        help="Where the extender is; default http://127.0.0.1:8888.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Holds the bearer token that it demands.")
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="YAML; unknown keys are refused.")
]
CheckConfig = Annotated[
    bool, typer.Option("--check-config", help="Only say whether the configuration can be used, and end.")
]
PrintSchema = Annotated[
    bool, typer.Option("--print-schema", help="Print the JSON schema of the file, and end.")
]
CertFile = Annotated[
    Path | None,
    typer.Option("--cert-file", metavar="FILE", help="PEM: the client certificate that it demands."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="PEM: the key of that certificate.")
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", metavar="FILE", help="PEM: whom its certificate is from; default the system's."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Trust any certificate.")]
Json = Annotated[bool, typer.Option("--json", help="Print the extender's document.")]


def extender_address(  # noqa: PLR0913 - as many as there are options
    *,
    extender: str | None,
    token_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
    insecure: bool,
) -> ExtenderAddress:
    """What the options say together."""
    from k8s_rdma.cli.extender_client import DEFAULT_URL, ExtenderAddress

    return ExtenderAddress(
        url=extender or DEFAULT_URL,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
