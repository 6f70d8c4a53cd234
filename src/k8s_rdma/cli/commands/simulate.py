"""The options of `k8s-rdma simulate`; its work is a package of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.left_out import left_out_of_the_image
from k8s_rdma.cli.options import FormAlone


@with_bundles
def simulate(  # noqa: PLR0913 - typer's options
    scenario: Annotated[
        Path, typer.Argument(metavar="FILE", help="The scenario, in YAML; docs/simulate.md has its keys.")
    ],
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="May be repeated; default all that there are."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the first run.")] = 1,
    runs: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="Runs of each policy, by consecutive seeds.")
    ] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures to FILE.")
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Also write a row per run and shape of pods to FILE."),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write plots, as SVG and PNG, to DIR; needs matplotlib."),
    ] = None,
    output: FormAlone,
) -> None:
    """Simulate pods that come and go on a cluster, by the extender's own placement, and compare policies.

    Ctrl-C ends it with the figures until then.
    """
    with left_out_of_the_image("k8s_rdma_simulation", "simulate"):
        from k8s_rdma_simulation.command import Comparison, compare

    comparison = Comparison(
        scenario=scenario,
        policies=policy or [],
        seed=seed,
        runs=runs,
        json_file=json_file,
        csv_file=csv_file,
        plots=plots,
        output=output,
    )
    raise typer.Exit(compare(comparison))
