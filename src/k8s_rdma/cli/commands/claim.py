"""`k8s-rdma claim`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import OutputForm
from k8s_rdma.errors import MalformedError


@with_bundles
def claim(  # noqa: PLR0913 - typer's options
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An annotation or manifests; default, and -: standard input."),
    ] = None,
    *,
    annotation: Annotated[
        str | None, typer.Option("--annotation", metavar="JSON", help="The annotation, instead of FILE.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="POLICY", help="As the annotation k8s-rdma.io/policy.")
    ] = None,
    with_pod: Annotated[
        bool, typer.Option("--pod", help="Print the manifests as well, with claims instead of annotations.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="The template's name; default: its object's and -rdma, or rdma."
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="The template's namespace; default: its object's."
        ),
    ] = "",
    device_class: Annotated[str, typer.Option("--class", metavar="NAME", help="The DeviceClass.")] = "rdma",
    pod_claim: Annotated[
        str, typer.Option("--pod-claim", metavar="NAME", help="The claim's name in the pod.")
    ] = "rdma",
    output: OutputForm,
) -> None:
    """Turn annotations into ResourceClaimTemplates for the DRA driver. Prints, and changes nothing."""
    from k8s_rdma.cli.claim import print_manifests, print_templates
    from k8s_rdma.wire.claim_template import TemplateNames

    names = TemplateNames(name=name, namespace=namespace, device_class=device_class, pod_claim=pod_claim)
    if annotation is not None and (with_pod or file is not None):
        msg = f"--annotation and {'--pod' if with_pod else 'FILE'} do not go together"
        raise MalformedError(msg)
    if with_pod:
        print_manifests(file, policy, names, output)
    else:
        print_templates(annotation, file, policy, names, output)
