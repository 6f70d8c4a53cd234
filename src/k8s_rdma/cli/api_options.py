"""Options that say which API server a command asks, and as whom, as kubectl has them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from k8s_rdma.kube.selection import KubeconfigSelection

_ENTRIES = {
    "context": "The context of the kubeconfig. Default: current-context.",
    "cluster": "The cluster of the kubeconfig. Default: the context's.",
    "user": "The user of the kubeconfig. Default: the context's.",
}

Kubeconfig = Annotated[
    KubeconfigSelection,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        parser=KubeconfigSelection.from_file,
        show_default=False,
        help="Default: KUBECONFIG, ~/.kube/config, the service account.",
    ),
]
PodNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        show_default=False,
        help="The namespace of pods that are named without one. Default: the context's.",
    ),
]


class ApiCommand(TyperCommand):
    """A command with `--kubeconfig`, which has kubectl's other options of the API server as well."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **settings: Any) -> None:
        options = list(params or ())
        place = next(index for index, option in enumerate(options) if option.name == "kubeconfig") + 1
        options[place:place] = [
            TyperOption(param_decls=[f"--{entry}"], type=str, metavar="NAME", help=description)
            for entry, description in _ENTRIES.items()
        ]
        super().__init__(name, params=options, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Pass all of these options as one value."""
        entries = {entry: ctx.params.pop(entry) for entry in _ENTRIES}
        ctx.params["kubeconfig"] = KubeconfigSelection(file=ctx.params["kubeconfig"].file, **entries)
        return super().invoke(ctx)
