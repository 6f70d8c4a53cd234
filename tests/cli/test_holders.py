"""Holders by nodes' objects and metrics: rows, rates, orders, and unknown values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from rich.console import Console

from cli.asking import k8s_rdma
from k8s_rdma.cli.holders import holders_table, ordered
from k8s_rdma.cli.tables import WHOLE
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma.wire.report import ReportedPod, encode_report
from k8s_rdma.wire.views import HolderRow, HolderSort
from kube.stored_objects import serving_objects
from server.serving import report

if TYPE_CHECKING:
    from pathlib import Path

NODES = "/apis/k8s-rdma.io/v1alpha1/rdmanodes"
PCI = "0000:03:00.0"


def row(pod: str, **changes: object) -> HolderRow:
    fields = {"node": "w1", "pf": "enp3s0f0", "pci": PCI, "namespace": "default", "uid": f"u-{pod}"}
    return HolderRow(**{**fields, "pod": pod, "reserved_mbps": 0, "cap_mbps": 0, **changes})


def node_object(
    name: str, pod: str = "p", ready: str = "True", namespace: str = "default"
) -> dict[str, object]:
    """A node whose only pod has the name."""
    told = report(node=name)
    allocation = replace(told.allocations[0], pod=ReportedPod(namespace=namespace, name=pod, uid=f"u-{name}"))
    status = json.loads(encode_status(status_of(replace(told, allocations=(allocation,)))))
    status["conditions"][0] |= {"status": ready, "message": "its agent is down"}
    return {"metadata": {"name": name}, "status": status}


def stored(*nodes: dict[str, object]) -> dict[str, bytes | int]:
    return {NODES: json.dumps({"items": nodes}).encode()}


def shown(*rows: HolderRow) -> list[str]:
    console = Console(width=WHOLE, color_system=None)
    with console.capture() as captured:
        console.print(holders_table(rows), crop=False)
    return [" ".join(each.split()) for each in captured.get().splitlines()[1:]]


def test_unknown_is_not_zero():
    assert shown(row("a")) == [
        "w1 enp3s0f0 <unknown> default/a <unknown> 0Mb/s <none> <unknown> <unknown> <unknown> <none>"
    ]
    measured = row("b", vf=3, interface="rdma0", sent_mbps=0.0, received_mbps=12.34)
    enforced = replace(measured, min_by="accounted", max_by="software", reserved_mbps=5, cap_mbps=7)
    [line] = shown(enforced)
    assert line.startswith(
        "w1 enp3s0f0 3 default/b rdma0 5Mb/s 7Mb/s reservation: accounted only, cap: softw"
    )
    assert line.endswith("software 0.0Mb/s 12.3Mb/s <none>")
    assert "accounted only 0.0Mb/s" in shown(replace(enforced, max_by="none"))[0]


def test_change_that_is_not_programmed_yet_is_shown():
    assert shown(row("a", generation=2, admitted=3))[0].endswith(" 3 admitted, 2 programmed")
    assert shown(row("a", generation=3, admitted=3))[0].endswith(" 3 programmed")


@pytest.mark.parametrize(
    ("sort", "pods"),
    [
        (HolderSort.POD, "abc"),
        (HolderSort.RESERVED, "bca"),
        (HolderSort.CAP, "cab"),
        (HolderSort.SENT, "cba"),
        (HolderSort.VF, "acb"),
        (HolderSort.RATES, "bac"),
    ],
)
def test_holders_are_ordered_by_any_column(sort: HolderSort, pods: str):
    rows = [
        row("a", reserved_mbps=1, cap_mbps=9, vf=0, generation=2, admitted=2),
        row("b", reserved_mbps=5, cap_mbps=8, vf=7, sent_mbps=0.0, admitted=1),
        row("c", reserved_mbps=3, vf=2, sent_mbps=4.0),
    ]
    assert "".join(each.pod for each in ordered(rows, sort)) == pods


@pytest.mark.anyio
async def test_many_nodes_are_shown_by_their_objects_alone(tmp_path: Path):
    nodes = [node_object(f"n{number:02}") for number in range(17)]
    with serving_objects(stored(*nodes), tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "--kubeconfig", kubeconfig)
    assert ran.out.startswith("17 interfaces of 17 pods on 17 PFs; 5100 Mb/s reserved\n")
    assert ran.out.splitlines()[-1].startswith("note: interfaces, enforcement and traffic are shown of")


@pytest.mark.anyio
async def test_node_without_a_server_is_shown_by_its_object_and_says_why(tmp_path: Path):
    answers = stored(node_object("w1", ready="False"), {"metadata": {"name": "w2"}, "status": {"pfs": 3}})
    with serving_objects(answers, tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "--kubeconfig", kubeconfig)
        document = await k8s_rdma("who", "w2", "--json", "--kubeconfig", kubeconfig)
    lines = ran.out.splitlines()
    assert (
        " ".join(lines[3].split())
        == "w1 enp3s0f0 <unknown> default/p <unknown> 300Mb/s <none> <unknown> <unknown> <unknown> <none>"
    )
    assert [line.partition(": ")[2][:34] for line in lines[4:]] == [
        "w1 is not ready: its agent is down",
        "w2: RdmaNode status: Expected `arr",
        "w1: its server was not read: no po",
    ]
    assert json.loads(document.out)["holders"] == []


@pytest.mark.anyio
async def test_report_of_another_node_is_not_shown(tmp_path: Path):
    server = {"name": "server", "ports": [{"containerPort": 54005}]}
    pods = {"items": [{"metadata": {"name": "node-x"}, "spec": {"containers": [server]}}]}
    in_namespace = "/api/v1/namespaces/k8s-rdma/pods"
    answers = stored(node_object("w1")) | {
        in_namespace: json.dumps(pods).encode(),
        f"{in_namespace}/node-x:54005/proxy/v1/node": encode_report(report(node="w2")),
    }
    with serving_objects(answers, tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "--kubeconfig", kubeconfig)
    assert "note: w1: its server was not read: the address answers for node 'w2'" in ran.out
    assert "default/p <unknown> 300Mb/s" in " ".join(ran.out.split())


@pytest.mark.anyio
async def test_names_that_pods_gave_themselves_cannot_order_the_terminal(tmp_path: Path):
    with serving_objects(stored(node_object("w1", pod="p~")), tmp_path) as kubeconfig:
        ran = await k8s_rdma(
            "top", "--holders", "--kubeconfig", kubeconfig, "--extender", "http://127.0.0.1:1"
        )
        refused = await k8s_rdma("who", "x\x1b[2J", "--kubeconfig", kubeconfig)
    assert "default/p~" in ran.out
    assert "extender absent" in ran.out
    assert refused.err.startswith("k8s-rdma: x\\x1b[2J: no node, PF or pod")


@pytest.mark.anyio
async def test_rights_that_lack_are_named(tmp_path: Path):
    with serving_objects({NODES: 403}, tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "--kubeconfig", kubeconfig)
    assert ran.status == 2
    assert f"get {NODES}: " in ran.err
