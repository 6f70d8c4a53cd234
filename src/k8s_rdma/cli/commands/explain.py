"""`k8s-rdma explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import Extender, NamespacedApiServer, OutputForm
from k8s_rdma.cli.usage import CommandGroup

explain_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Explain why a pod waits, or why it is where it is."
)


@explain_app.callback()
def explain() -> None:
    """Explain a decision."""


@explain_app.command("pod")
@with_bundles
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    output: OutputForm,
    kubeconfig: NamespacedApiServer,
    extender: Extender,
) -> None:
    """Show where a pod is, and why each node accepts or refuses it, PF by PF.

    Queries the extender about an annotation, and the API server about ResourceClaims.
    """
    from k8s_rdma.cli.explain import ExplainOptions
    from k8s_rdma.cli.explain import explain as show

    show(
        extender,
        pod,
        ExplainOptions(kubeconfig=kubeconfig, nodes=tuple(node or ()), every=every, output=output),
    )
