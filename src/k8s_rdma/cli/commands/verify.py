"""`k8s-rdma verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import ChartNamespace, NamespacedApiServer, OutputForm, RunDir
from k8s_rdma.cli.rate_option import rate_option
from k8s_rdma.cli.usage import CommandGroup
from k8s_rdma.core.node_paths import CNI_BIN_DIR, RUN_DIR

Pf = Annotated[
    list[str] | None,
    typer.Option("--pf", metavar="PF", help="A PF's name or PCI address; may be repeated. Default: all."),
]

Cap = Annotated[int, rate_option("--cap", "The cap; 0 for a tenth of the link.")]

Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", help="The time of each measurement.", min=1.0, max=60.0)
]

Yes = Annotated[bool, typer.Option("--yes", help="Also where pods hold VFs of these PFs.")]

VerifyResult = Annotated[Path, typer.Option("--result", metavar="FILE")]

VerifyReport = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write a report (JSON) to send.")
]

verify_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Measure whether reservations and caps hold on these cards."
)


@verify_app.callback()
def verify() -> None:
    """Measure whether reservations and caps hold. Sends at the links' rates."""


@verify_app.command("node")
@with_bundles
def verify_node(  # noqa: PLR0913 - typer's options
    *,
    pf: Pf = None,
    receiver_pf: Annotated[
        str | None,
        typer.Option(metavar="PF", help="Receive on this PF, over the wire. Default: on the sending one."),
    ] = None,
    cap: Cap = 0,
    seconds: Seconds = 4.0,
    soft_roce: Annotated[
        bool, typer.Option("--soft-roce", help="Make soft-RoCE devices where VFs have none of their own.")
    ] = False,
    yes: Yes = False,
    report: VerifyReport = None,
    run_dir: RunDir = Path(RUN_DIR),
    plugin: Annotated[Path, typer.Option("--plugin", metavar="FILE", help="The CNI executable.")] = Path(
        CNI_BIN_DIR, "k8s-rdma-cni"
    ),
    output: OutputForm,
) -> None:
    """Measure between VFs of this node, without Kubernetes.

    Needs root, a running agent that takes pods without placements, iproute2 and util-linux; perftest for
    verbs. The exit status is 0 when every rate holds, 1 when one does not, and 2 when one could not be
    measured.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_node as run
    from k8s_rdma.verify.node import NodeSite

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    site = NodeSite(
        run_dir=run_dir, plugin=plugin, seconds=seconds, receiver_pf=receiver_pf, soft_roce=soft_roce
    )
    raise typer.Exit(run(trials, site, output))


@verify_app.command("cluster")
@with_bundles
def verify_cluster(  # noqa: PLR0913 - typer's options
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The node whose PFs are verified.")],
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The node that receives.")],
    *,
    pf: Pf = None,
    receiver_pf: Annotated[
        str | None,
        typer.Option(metavar="PF", help="The receiving PF's name. Default: the sending PF's name."),
    ] = None,
    cap: Cap = 0,
    seconds: Seconds = 4.0,
    yes: Yes = False,
    report: VerifyReport = None,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="An image of k8s-rdma. Default: the image of SENDER's agent.")
    ] = "",
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="The pods' scheduler, where no policy adds it.")
    ] = "",
    output: OutputForm,
    chart: ChartNamespace,
    kubeconfig: NamespacedApiServer,
) -> None:
    """Measure between pods on two nodes, over the wire.

    Makes up to four pods at a time, and deletes them. Exits as `verify node` does.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_cluster as run
    from k8s_rdma.verify.cluster import PodOptions

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    pods = PodOptions(
        sender=sender,
        receiver=receiver,
        receiver_pf=receiver_pf,
        namespace=kubeconfig.namespace or "",
        chart_namespace=chart.namespace,
        image=image,
        scheduler=scheduler,
        seconds=seconds,
    )
    raise typer.Exit(run(trials, pods, kubeconfig, output))


@verify_app.command("receive", hidden=True)
def verify_receive(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    result: VerifyResult,
) -> None:
    """Receive in a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import receive_in_pod

    raise typer.Exit(receive_in_pod(session, result))


@verify_app.command("send", hidden=True)
def verify_send(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    flow: Annotated[int, typer.Argument(min=0)],
    address: Annotated[str, typer.Argument()],
    result: VerifyResult,
) -> None:
    """Send from a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import send_from_pod

    raise typer.Exit(send_from_pod(session, flow, address, result))
