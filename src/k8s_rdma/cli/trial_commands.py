"""The commands that measure and plan; each imports its implementation when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k8s_rdma.cli.api_options import ApiCommand, Kubeconfig, PodNamespace
from k8s_rdma.cli.diagnosis_commands import Json, Namespace
from k8s_rdma.core.types import Strategy
from k8s_rdma.kube.selection import USUAL_KUBECONFIG

From = Annotated[
    str,
    typer.Option("--from", metavar="cluster|FILE", help="The cluster, or a file that `snapshot` wrote."),
]
AskedExtender = Annotated[
    str | None,
    typer.Option(
        "--extender",
        metavar="URL",
        envvar="K8S_RDMA_EXTENDER",
        help="Ask this extender which nodes it refuses; default: by the nodes' Leases.",
    ),
]
Manifest = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Manifests with the pods, or an annotation; -: standard input."),
]


def _percent(text: object) -> float:
    """Parse a percentage; the option's default comes as a number."""
    try:
        found = float(str(text).removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100:
        msg = f"{text}: wanted a part of 0 to 100, such as 5%"
        raise typer.BadParameter(msg)
    return found


whatif_app = typer.Typer(no_args_is_help=True, help="Answer capacity questions; changes nothing.")


def snapshot(
    *,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Replace names of nodes, pods and namespaces, and MACs.")
    ] = False,
    namespace: Namespace = "k8s-rdma",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: AskedExtender = None,
) -> None:
    """Write nodes, pods and limits as a file: for `whatif`, and for bug reports."""
    from k8s_rdma.cli import whatif

    whatif.write_snapshot(
        whatif.Source(kubeconfig=kubeconfig, namespace=namespace, extender=extender), anonymous=anonymous
    )


@whatif_app.command("fit", cls=ApiCommand)
def whatif_fit(  # noqa: PLR0913 - typer's options
    file: Manifest = None,
    *,
    count: Annotated[
        int | None, typer.Option("--count", min=0, help="Pods of each workload; default: the manifest's.")
    ] = None,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Evict pods of lower priority, as kube-scheduler would.")
    ] = False,
    origin: From = "cluster",
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: AskedExtender = None,
) -> None:
    """Report whether pods fit, and where; without FILE the pods that wait. Status 1 when they do not."""
    from k8s_rdma.cli import whatif

    source = whatif.Source(origin=origin, kubeconfig=kubeconfig, namespace=namespace, extender=extender)
    question = whatif.Question(manifest=file, count=count)
    raise typer.Exit(whatif.answer_fit(source, question, preempt=preempt, as_json=as_json))


@whatif_app.command("headroom", cls=ApiCommand)
def whatif_headroom(  # noqa: PLR0913 - typer's options
    file: Manifest = None,
    *,
    origin: From = "cluster",
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: AskedExtender = None,
) -> None:
    """Count how many more pods fit, without FILE of common shapes; and capacity that is stranded."""
    from k8s_rdma.cli import whatif

    source = whatif.Source(origin=origin, kubeconfig=kubeconfig, namespace=namespace, extender=extender)
    raise typer.Exit(whatif.answer_headroom(source, whatif.Question(manifest=file), as_json=as_json))


@whatif_app.command("without", cls=ApiCommand)
def whatif_without(  # noqa: PLR0913 - typer's options
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node; may be repeated.")
    ] = None,
    pf: Annotated[
        list[str] | None, typer.Option("--pf", metavar="NODE/PF", help="This PF; may be repeated.")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="NODE/PF", help="The link of this PF; may be repeated."),
    ] = None,
    origin: From = "cluster",
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: AskedExtender = None,
) -> None:
    """Show where pods go when nodes, PFs or links fail. Status 1 when one of them fits nowhere."""
    from k8s_rdma.cli import whatif

    if not (node or pf or link):
        msg = "name what fails: --node, --pf or --link"
        raise typer.BadParameter(msg)
    losses = whatif.Losses(nodes=tuple(node or ()), pfs=tuple(pf or ()), links=tuple(link or ()))
    source = whatif.Source(origin=origin, kubeconfig=kubeconfig, namespace=namespace, extender=extender)
    raise typer.Exit(whatif.answer_without(source, losses, as_json=as_json))


@whatif_app.command("with", cls=ApiCommand)
def whatif_with(  # noqa: PLR0913 - typer's options
    file: Manifest = None,
    *,
    vfs: Annotated[
        int | None,
        typer.Option("--vfs", min=0, max=1024, help="VFs of each PF that has VFs for annotations."),
    ] = None,
    headroom: Annotated[
        float,
        typer.Option("--headroom", parser=_percent, metavar="PERCENT", help="Of each link stays unreserved."),
    ] = 0,
    strategy: Annotated[Strategy | None, typer.Option(help="Another strategy of the extender.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=0, max=10_000, help="New nodes; needs --like.")] = 0,
    like: Annotated[str, typer.Option("--like", metavar="NAME", help="The node that new ones equal.")] = "",
    origin: From = "cluster",
    as_json: Json = False,
    namespace: Namespace = "k8s-rdma",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
    extender: AskedExtender = None,
) -> None:
    """Compare how many more pods fit with changes. Status 1 when pods hold more than there would be."""
    from k8s_rdma.cli import whatif

    if bool(nodes) != bool(like):
        msg = "--nodes and --like go together: a number, and the name of a node"
        raise typer.BadParameter(msg)
    if vfs is None and not headroom and strategy is None and not nodes:
        msg = "name a change: --vfs, --headroom, --strategy, or --nodes and --like"
        raise typer.BadParameter(msg)
    changes = whatif.Changes(vfs=vfs, headroom_percent=headroom, strategy=strategy, nodes=nodes, like=like)
    source = whatif.Source(origin=origin, kubeconfig=kubeconfig, namespace=namespace, extender=extender)
    raise typer.Exit(whatif.answer_with(source, changes, whatif.Question(manifest=file), as_json=as_json))


verify_app = typer.Typer(
    no_args_is_help=True, help="Measure whether reservations and caps hold on these cards."
)
Pf = Annotated[
    list[str] | None,
    typer.Option("--pf", metavar="PF", help="A PF's name or PCI address; may be repeated. Default: all."),
]
Cap = Annotated[int, typer.Option("--cap", metavar="MBPS", help="The cap; 0 for a tenth of the link.", min=0)]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", help="The time of each measurement.", min=1.0, max=60.0)
]
Yes = Annotated[bool, typer.Option("--yes", help="Also where pods hold VFs of these PFs.")]
VerifyReport = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write a report (JSON) to send.")
]


@verify_app.callback()
def verify() -> None:
    """Measure whether reservations and caps hold. Sends at the links' rates."""


@verify_app.command("node")
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
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The agent's runDir.")] = Path(
        "/run/k8s-rdma"
    ),
    plugin: Annotated[Path, typer.Option("--plugin", metavar="FILE", help="The CNI executable.")] = Path(
        "/opt/cni/bin/k8s-rdma-cni"
    ),
) -> None:
    """Measure between VFs of this node, without Kubernetes.

    Needs root, a running agent that takes pods without placements, iproute2 and util-linux; perftest for
    verbs. The exit status is 0 when every promise holds, 1 when one does not, and 2 when one could not be
    measured.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_node as run
    from k8s_rdma.verify.node import NodeSite

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    site = NodeSite(
        run_dir=run_dir, plugin=plugin, seconds=seconds, receiver_pf=receiver_pf, soft_roce=soft_roce
    )
    raise typer.Exit(run(trials, site))


@verify_app.command("cluster", cls=ApiCommand)
def verify_cluster(  # noqa: PLR0913 - typer's options
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The node whose PFs are verified.")],
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The node that receives.")],
    *,
    pf: Pf = None,
    receiver_pf: Annotated[
        str | None,
        typer.Option(metavar="PF", help="The receiving PF's name. Default: that of the sending one."),
    ] = None,
    cap: Cap = 0,
    seconds: Seconds = 4.0,
    yes: Yes = False,
    report: VerifyReport = None,
    namespace: PodNamespace = "",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="An image of k8s-rdma. Default: that of SENDER's agent.")
    ] = "",
    chart_namespace: Annotated[
        str, typer.Option("--chart-namespace", metavar="NAME", help="Where to look for that agent.")
    ] = "k8s-rdma",
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="The pods' scheduler, where no policy adds it.")
    ] = "",
    kubeconfig: Kubeconfig = USUAL_KUBECONFIG,
) -> None:
    """Measure between pods on two nodes, over the wire.

    Makes up to four pods at a time, and deletes them. The exit status is as that of `verify node`.
    """
    from k8s_rdma.cli.verify import TrialOptions
    from k8s_rdma.cli.verify import verify_cluster as run
    from k8s_rdma.verify.cluster import PodOptions

    trials = TrialOptions(pfs=tuple(pf or ()), cap_mbps=cap, is_confirmed=yes, report=report)
    pods = PodOptions(
        sender=sender,
        receiver=receiver,
        receiver_pf=receiver_pf,
        namespace=namespace,
        chart_namespace=chart_namespace,
        image=image,
        scheduler=scheduler,
        seconds=seconds,
    )
    raise typer.Exit(run(trials, pods, kubeconfig))


@verify_app.command("receive", hidden=True)
def verify_receive(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    result: Annotated[Path, typer.Option("--result", metavar="FILE")],
) -> None:
    """Receive in a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import receive_in_pod

    raise typer.Exit(receive_in_pod(session, result))


@verify_app.command("send", hidden=True)
def verify_send(
    session: Annotated[str, typer.Argument(metavar="JSON")],
    flow: Annotated[int, typer.Argument(min=0)],
    address: Annotated[str, typer.Argument()],
    result: Annotated[Path, typer.Option("--result", metavar="FILE")],
) -> None:
    """Send from a pod of `verify cluster`."""
    from k8s_rdma.verify.traffic import send_from_pod

    raise typer.Exit(send_from_pod(session, flow, address, result))
