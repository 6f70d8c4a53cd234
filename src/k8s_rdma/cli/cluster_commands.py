"""The commands that ask the extender: what it decides about a pod, and how full the cluster is."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.options import (
    CaFile,
    CertFile,
    Extender,
    Insecure,
    Json,
    KeyFile,
    TokenFile,
    extender_address,
)
from k8s_rdma.wire.cluster_view import Sort

explain_app = typer.Typer(no_args_is_help=True, help="Why something is as it is.")


@explain_app.callback()
def explain() -> None:
    """Say why something is as it is."""


@explain_app.command("pod")
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Where a pod is, and for every node why it takes it or not, PF by PF; asks the extender."""
    from k8s_rdma.cli.explain import explain as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(endpoint, pod, nodes=node or [], every=every, as_json=as_json)


def top(  # noqa: PLR0913 - typer's options
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once; so does a pipe.")] = False,
    sort: Annotated[
        Sort, typer.Option(help="Which nodes come first.", show_choices=True, case_sensitive=False)
    ] = Sort.RESERVED,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Nodes, PFs, reservations and the pods that wait, every 2 s until Ctrl-C; asks the extender."""
    from k8s_rdma.cli.top import top as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(endpoint, once=once, as_json=as_json, sort=sort)
